"""A whole run on a disk that is too small: the command says so, and goes on once there is room."""

import json
from pathlib import Path

import pytest

from plumbline.mechanism.ledger import Ledger
from tests.cli.calling import Called, people, small_recipe
from tests.disks import SmallDisk, small_disk

__all__ = ["small_disk"]


def charged(folder: Path) -> int:
    return sum(count for path in folder.rglob("ledger") for _, count in Ledger.read(path).entries())


@pytest.mark.parametrize(
    "pages",
    [
        3,
        9,
        *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, *range(4, 9), *range(10, 20))),
    ],
)
def test_a_run_of_a_recipe(pages: int, call: Called, tmp_path: Path, small_disk: SmallDisk) -> None:
    small_recipe(tmp_path)
    small_disk.resize(pages)
    arguments = ["train", "small.toml", "--method", "DPSGD", "--out", str(small_disk.path)]
    code = call(*arguments)
    assert "Traceback" not in call.err
    if code == 0:  # there was room for all of it
        assert pages > 9
        return
    assert code == 1
    assert "No space left on device" in call.err
    assert "Free some space on the disk" in call.err
    assert str(small_disk.path) in call.err
    # The result is the last file but for the page: whoever has it lacked room for the page alone.
    finished = list(small_disk.path.rglob("result.json"))
    assert bool(finished) == ("report.html" in call.err)
    assert not list(small_disk.path.rglob("*.tmp"))
    assert charged(small_disk.path) <= 8
    small_disk.resize(20_000)
    assert call(*arguments, "--json") == 0
    assert call.json["steps"] == charged(small_disk.path) == 8
    assert call("verify", call.json["folder"]) == 0


def test_a_folder_that_is_read_only(call: Called, tmp_path: Path, small_disk: SmallDisk) -> None:
    people(tmp_path / "people.csv")
    small_recipe(tmp_path)
    small_disk.make_read_only()
    out = str(small_disk.path / "runs")
    for arguments in (
        ["train", "small.toml", "--method", "DPSGD", "--out", out],
        ["train", "--from-data", "--data", "people.csv", "--target", "income", "--out", out],
    ):
        assert call(*arguments) == 1
        assert "Read-only file system" in call.err
        assert "Choose a folder that you may write to" in call.err
        assert out in call.err


def test_a_run_on_a_table_of_ones_own(call: Called, tmp_path: Path, small_disk: SmallDisk) -> None:
    people(tmp_path / "people.csv")
    small_disk.resize(9)
    out = str(small_disk.path / "run")
    arguments = ["train", "--from-data", "--data", "people.csv", "--target", "income", "--out", out]
    arguments += ["--epochs", "2", "--batch", "100", "--method", "dpsgd"]
    assert call(*arguments) == 1
    assert "No space left on device" in call.err
    assert "Traceback" not in call.err
    small_disk.resize(20_000)
    assert call(*arguments, "--json") == 0
    # Secure noise is never drawn again: steps that were charged and could not be saved are lost.
    (path,) = small_disk.path.rglob("result.json")
    result = json.loads(path.read_text())
    assert result["steps"] <= charged(small_disk.path) == 7
    assert ("their results lost" in " ".join(result["statement"].split())) == (result["steps"] < 7)
    assert call("verify", path.parent) == 0
