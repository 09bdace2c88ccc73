import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from plumbline.experiments.files import FileError
from plumbline.experiments.manifest import MANIFEST, changes, read_manifest
from plumbline.mechanism.ledger import Ledger


def test_a_finished_run_has_a_manifest_of_all_its_files(finished: Path) -> None:
    manifest = read_manifest(finished)
    assert manifest is not None
    there = {path.name for path in finished.iterdir()}
    assert set(manifest.files) == there - {"ledger", MANIFEST}
    assert changes(finished, manifest) == []
    ledger = Ledger.read(finished / "ledger")
    assert manifest.ledger == ledger.position
    assert {manifest.run} == ledger.runs()


def test_what_is_added_later_is_no_change(copied: Callable[[], Path]) -> None:
    folder = copied()
    (folder / "report.html").write_text("a page")
    manifest = read_manifest(folder)
    assert manifest is not None
    assert changes(folder, manifest) == []


def test_a_file_that_was_taken_out_of_the_manifest(copied: Callable[[], Path]) -> None:
    folder = copied()
    manifest = read_manifest(folder)
    assert manifest is not None
    files = {name: digest for name, digest in manifest.files.items() if name != "result.json"}
    assert changes(folder, replace(manifest, files=files)) == ["result.json is not in the manifest"]


@pytest.mark.parametrize("field", ["format", "run", "ledger", "sha256"])
@pytest.mark.parametrize("value", [None, 2, "text", {"a": 1}])
def test_a_damaged_manifest_is_refused(
    copied: Callable[[], Path], field: str, value: object
) -> None:
    folder = copied()
    path = folder / MANIFEST
    if (field, value) == ("run", "text"):
        value = ["text"]
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(FileError, match=r"manifest\.json is damaged"):
        read_manifest(folder)


def test_none(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None
