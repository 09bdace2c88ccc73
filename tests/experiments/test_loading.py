"""A run's data and features, and a model judged on them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from plumbline.data import Split
from plumbline.data.table_records import OTHER
from plumbline.experiments import RecipeError, loading
from tests.experiments.small import spec
from tests.experiments.small_table import patients
from tests.experiments.small_table import spec as table_spec


def test_measuring_leaves_the_model_in_its_mode() -> None:
    one = spec()
    splits = loading.load_data(one)
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(98, 2))
    first = loading.measure(model, splits.test, splits.groups)
    assert model.training
    assert loading.measure(model, splits.test, splits.groups) == first


def test_features_of_a_selection_are_those_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def features(part: Split, **_: object) -> torch.Tensor:
        seen.append(len(part))
        return torch.arange(len(part)).float()[:, None]

    monkeypatch.setattr(loading.scattering, "features", features)
    whole = Split(torch.zeros(10, 1, 8, 8), torch.arange(10))
    chosen = whole.select(torch.tensor([7, 2]))
    scattered = loading._scattered(chosen, 2)
    assert seen == [10]
    assert scattered.x.flatten().tolist() == [7.0, 2.0]  # type: ignore[union-attr]
    assert scattered.y.tolist() == [7, 2]


def numbered(count: int) -> Split:
    return Split(torch.arange(count)[:, None], torch.zeros(count))


def test_one_record_more_or_less_changes_the_side_of_no_other() -> None:
    parts = [loading._apart(numbered(count), 0.3, "seed 1") for count in (2000, 1999, 500)]
    trained, held = (
        [set(one[side].x.flatten().tolist()) for one in parts]  # type: ignore[union-attr]
        for side in (0, 1)
    )
    assert held[0] | trained[0] == set(range(2000))
    assert not held[0] & trained[0]
    for count, fewer, others in zip((1999, 500), held[1:], trained[1:], strict=True):
        assert fewer == {number for number in held[0] if number < count}
        assert others == {number for number in trained[0] if number < count}
    assert abs(len(held[0]) - 600) < 4 * (0.3 * 0.7 * 2000) ** 0.5
    _, other = loading._apart(numbered(2000), 0.3, "seed 2")
    assert set(other.x.flatten().tolist()) != held[0]  # type: ignore[union-attr]


def test_a_row_without_a_target_changes_the_side_of_no_other(tmp_path: Path) -> None:
    """It takes no part, and leaves its place in the file empty; also for a third part."""
    lines = patients(tmp_path / "patients.csv", 120).read_text().splitlines()
    sides = []
    for lacking in (False, True):
        rows = [f"{k},{line.split(',', 1)[1]}" for k, line in enumerate(lines)]
        rows[0], rows[3] = lines[0], rows[3].rpartition(",")[0] + ("," if lacking else ",no")
        path = tmp_path / f"{lacking}.csv"
        path.write_text("\n".join(rows) + "\n")
        one = replace(table_spec(path, threshold="auto"), held_out=0.2)
        splits = loading.load_data(one)
        assert splits.third is not None
        ages = [part.x[:, 0].tolist() for part in (splits.train, splits.test, splits.third)]
        sides.append([set(one) for one in ages])
    whole, lacking_one = sides
    gone = [a - b for a, b in zip(whole, lacking_one, strict=True)]
    assert sorted(map(len, gone)) == [0, 0, 1]
    assert all(b <= a for a, b in zip(whole, lacking_one, strict=True))


def test_a_part_of_the_training_rows_lists_all_that_is_not_covered(tmp_path: Path) -> None:
    path = patients(tmp_path / "patients.csv", 120)
    data = {"table": str(path), "target": "died", "drop": ["code"], "from_data": True}
    whole, apart = (
        loading.load_data(table_spec(path, data=data, threshold=one)).train.not_covered
        for one in (None, "auto")
    )
    assert any("encoding.json" in words for words in whole)
    assert apart == whole


def test_both_sides_have_records() -> None:
    with pytest.raises(RecipeError, match="leaves no record on one side"):
        loading._apart(numbered(1), 0.5, "seed 1")


@pytest.mark.parametrize(("groups", "shown"), [([0, 1], ["f", "m"]), ([0, 2], ["f", "m", OTHER])])
def test_all_others_are_shown_if_there_are_any(groups: list[int], shown: list[str]) -> None:
    part = Split(torch.zeros(2, 1), torch.tensor([0, 1]), torch.tensor(groups))
    assert list(loading.measure(torch.nn.Linear(1, 2), part, ("f", "m", OTHER)).by_group) == shown
