"""A package of somebody's own: every kind of part in Python, in recipes and by command."""

from __future__ import annotations

from pathlib import Path

import pytest

import plumbline as pl
from plumbline.auditing import NotAdmitted
from plumbline.experiments.recipe import Recipe
from tests.cli.calling import Called

pytestmark = pytest.mark.usefixtures("outside")

DATA, NETWORK = "outside_parts.tables:our_patients", "outside_parts.networks:small_net"
CLIPPING, METHOD = "outside_parts.rules:Soft", "outside_parts.ways:soft_bam"
LIAR = "outside_parts.rules:SoftLiar"
LOOK = "outside_parts.looks:longest_gradient"
BUDGET = pl.Budget(epsilon=3, delta=1e-4, steps=4, expected_batch_size=50)
RECIPE = {
    "name": "ours",
    "seeds": [0],
    "data": {"name": DATA},
    "model": {"name": NETWORK},
    "budget": {"epsilon": 3.0, "delta": 1e-4, "steps": 4, "expected_batch_size": 50},
    "optimizer": {"name": "sgd", "learning_rate": 0.5},
    "methods": [{"name": CLIPPING}, {"name": METHOD, "settings": {"clip": 0.5}}],
    "probe": {"every": 2, "records": 50, "measure": ["bias", LOOK]},
}


def longest(page: Path) -> bool:
    """Whether the page shows what the diagnostic from outside measured."""
    text = page.read_text()
    return "Longest gradient" in text and "others-longest-gradient" in text


def test_objects_in_python(tmp_path: Path) -> None:
    from outside_parts import networks, rules, tables, ways

    found = pl.compare(
        data=tables.our_patients(),
        model=networks.small_net,
        methods={
            "free": "nonprivate",
            "soft": pl.methods.compose(clipping=rules.Soft(0.5)),
            "BAM": ways.soft_bam(),
        },
        budget=BUDGET,
        measure=["bias", LOOK],
        seeds=1,
        trials=0,
        workers=1,
        folder=tmp_path,
        name="ours",
    )
    assert list(found.to_pandas().index) == ["free", "soft", "BAM"]
    assert longest(found.page())


def test_references_in_a_recipe(tmp_path: Path) -> None:
    found = pl.compare(Recipe.of(RECIPE), workers=1, folder=tmp_path)
    assert [row.title for row in found.table.rows] == ["Soft", "soft_bam"]
    assert longest(found.page())


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Called:
    monkeypatch.chdir(tmp_path)
    return Called(monkeypatch, capsys)


OPTIONS = ("--data", DATA, "--model", NETWORK, "--epochs", "1", "--batch", "50")
QUICK = ("--trials", "0", "--seeds", "1", "--workers", "1", "--json")


def test_references_on_the_command_line(call: Called) -> None:
    assert call("compare", *OPTIONS, "--methods", f"{CLIPPING},{METHOD}", *QUICK) == 0
    assert [row["method"] for row in call.json["rows"]] == ["Soft", "soft_bam"]
    Path("ours.toml").write_text(Recipe.of(RECIPE).toml())
    assert call("compare", "ours.toml", "--workers", "1", "--json") == 0
    assert longest(Path(call.json["page"]))
    measured = ("--measure", "bias", "--measure", LOOK)
    assert call("diagnose", *OPTIONS, "--method", METHOD, *measured, "--json") == 0
    assert "longest_gradient" in call.out


def charges(folder: Path) -> list[str]:
    """What stands in all ledgers after their first line."""
    ledgers = folder.rglob("ledger")
    return [line for one in ledgers for line in one.read_text().splitlines()[1:]]


def test_the_twin_that_lies_is_refused_before_anything_is_charged(
    call: Called, tmp_path: Path
) -> None:
    with pytest.raises(NotAdmitted, match=r"'gradient' moves by 1\.5, not 1, between"):
        pl.train(data=DATA, model=NETWORK, method=LIAR, budget=BUDGET, folder=tmp_path)
    assert call("train", *OPTIONS, "--method", LIAR) != 0
    assert "'gradient' moves by 1.5, not 1, between" in " ".join(call.err.split())
    assert call("compare", *OPTIONS, "--methods", f"dpsgd,{LIAR}", *QUICK) != 0
    assert "'gradient' moves by 1.5, not 1, between" in " ".join(call.err.split())
    assert charges(tmp_path) == []
