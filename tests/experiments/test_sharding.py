"""Parts of an experiment: together they are the experiment, to the bit."""

from pathlib import Path

import pytest

from plumbline.experiments import Recipe, RunSpec, compare, pool, tune
from plumbline.experiments.engines import workers_for
from plumbline.experiments.recipe import RecipeError
from plumbline.experiments.reproducing import reproduce
from plumbline.experiments.run_result import read_result
from plumbline.experiments.sharding import PartMade, Shard, ShardWorkers
from plumbline.instruments import compare as compare_data
from tests.experiments.small import recipe


def weights(root: Path, recipe: Recipe) -> dict[str, bytes]:
    """Of every run, the file."""
    specs = [RunSpec(recipe, row, seed) for seed in recipe.seeds for row in recipe.rows]
    return {spec.folder: (root / spec.folder / "model.pt").read_bytes() for spec in specs}


def made(root: Path) -> set[str]:
    return {one.name for one in root.iterdir() if one.is_dir() and read_result(one) is not None}


@pytest.mark.parametrize("of", [1, 2, 3, 16])
def test_every_run_is_in_one_part(of: int) -> None:
    parts = [Shard.parse(f"{number}/{of}") for number in range(1, of + 1)]
    assert [sum(part.has(place) for part in parts) for place in range(40)] == [1] * 40


@pytest.mark.parametrize(
    "text", ["", "3", "0/4", "5/4", "-1/4", "1/0", "1/4/2", "1.0/4", "a/b", " 1/4"]
)
def test_what_names_no_part_is_refused(text: str) -> None:
    with pytest.raises(RecipeError, match="from 1/16 to 16/16"):
        Shard.parse(text)


def test_parts_make_the_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = recipe(seeds=[0])
    whole = compare(one, tmp_path / "whole", workers=1)
    parts = tmp_path / "parts"
    for number, runs in ((2, 1), (1, 3)):
        with (
            workers_for(f"{number}/2", 1) as workers,
            pytest.raises(PartMade, match=rf"Part {number}/2 is made: . of 3 runs"),
        ):
            compare(one, parts, workers=workers)
        assert len(made(parts)) == runs
    monkeypatch.setattr(pool, "_here", lambda runs: pytest.fail("repeated") if runs.specs else None)
    merged = compare(one, parts, workers=1)
    assert [row.seeds for row in merged.rows] == [row.seeds for row in whole.rows]
    assert weights(parts, one) == weights(tmp_path / "whole", one)


def test_parts_make_the_search_row_by_row(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    one = recipe(tune={"trials": 2, "seeds": [7]})
    rows = len(one.methods)
    for number in range(1, rows):
        with ShardWorkers(Shard(number, rows), 1) as workers, pytest.raises(PartMade):
            tune(one, tmp_path / "parts", workers=workers)
        assert len(made(tmp_path / "parts")) == 2 * number
    with ShardWorkers(Shard(rows, rows), 1) as workers:  # the last one finds all others' rows
        merged = tune(one, tmp_path / "parts", workers=workers)
    assert merged == tune(one, tmp_path / "whole", workers=1)


def test_a_part_makes_no_release_of_a_table_s_schema(tmp_path: Path) -> None:
    table = tmp_path / "people.csv"
    rows = "".join(f"{20 + n % 50},{'yes' if n % 3 else 'no'}\n" for n in range(400))
    table.write_text("age,married\n" + rows)
    with pytest.raises(RecipeError, match="cannot find the schema"):
        compare_data(
            data=str(table), target="married", epsilon=3.0, folder=tmp_path / "runs", shard="1/2"
        )
    assert [one.name for one in tmp_path.rglob("*") if one.is_file()] == ["people.csv"]


def test_what_cannot_be_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="leave out --shard"):
        reproduce("002-table-4", folder=tmp_path, shard="1/2")
    with pytest.raises(RecipeError, match="leave out --shard"):
        compare_data("demo", folder=tmp_path, shard="1/2", private_selection=True)
    assert list(tmp_path.iterdir()) == []
