"""What leaves and what stays: the lists, the docs, and a folder full of what must not leave."""

import re
import shutil
from pathlib import Path

import pytest

from plumbline.experiments.exporting import LEAVES, STAYS, export
from plumbline.experiments.exporting.leaving import listed, staying

DOCS = Path(__file__).parents[3] / "docs" / "security.md"
SECRET = "a secret that must not leave"
EXTRA = (
    "account.json", "checkpoint.pt", "checkpoint.pt.PRIVATE", "checkpoint.pt.PRIVATE.new",
    "checkpoint.pt.journal", "checkpoint.pt.journal.PRIVATE", "diagnostics.jsonl", "page.html",
    "held-out.csv", "rows.parquet", "rows.jsonl", "sketch.PRIVATE", "whatever.bin", "README.md",
    "model.json", "predict.py", "model.pt2",
)  # fmt: skip
BELONGING = ("account.json", "checkpoint.pt", "diagnostics.jsonl")
"""What is read when a run is verified or released, and must not be nonsense."""


def test_the_docs_have_the_lists() -> None:
    text = DOCS.read_text(encoding="utf-8").partition("## What leaves with a model")[2]
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \|$", text.partition("\n## ")[0], re.MULTILINE)
    assert dict(rows[: len(LEAVES)]) == LEAVES
    assert dict(rows[len(LEAVES) :]) == STAYS


def test_an_export_has_listed_files_only(runs: dict[str, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs["a number"], tmp_path / runs["a number"].name))
    extra = [name for name in EXTRA if name not in BELONGING]
    for name in extra:
        (run / name).write_text(SECRET)
    (run / "tensorboard").mkdir()
    (run / "tensorboard" / "events").write_text(SECRET)
    found = export(run, tmp_path / "model", program=False)
    for path in found.folder.rglob("*"):
        assert path.is_dir() or SECRET not in path.read_text("utf-8", "replace"), path
        assert path.relative_to(found.folder).parts[0] in {name.rstrip("/") for name in LEAVES}
    stays = set(found.stays)
    assert {name for name in extra if name not in LEAVES} <= stays
    assert {"tensorboard", "ledger", "data.PRIVATE", "result.json", "metrics.jsonl"} <= stays


@pytest.mark.parametrize("name", EXTRA)
def test_there_is_a_reason_for_each(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("")
    found = staying(tmp_path)
    if name in LEAVES and name not in STAYS:
        assert found == {}  # it has the name of a file that is written anew
    else:
        known = name != "whatever.bin"
        assert (found[name] != "not on the list of what may leave") == known


@pytest.mark.parametrize("name", ["result.json", "rows", "rows.py", "model.pt.bak", "x/model.pt"])
def test_a_file_that_is_not_listed_is_not_written(name: str) -> None:
    assert list(listed(["rows/a.py", "model.pt", "rows/b.py"])) == ["model.pt", "rows/"]
    with pytest.raises(ValueError, match="must not leave"):
        listed(["model.pt", name])
