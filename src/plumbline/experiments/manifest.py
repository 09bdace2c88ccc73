"""The manifest of a finished run: the hash of every file, and how far its ledger was written.

It is written just before the result, whose hash it has too, so that a finished run always has one.
Guarantee: a file that was changed, cut short or lost afterwards, and a ledger that has lost its
end, are found by ``changes``. It finds accidents and edits of single files, not a forger: whoever
can write the folder can write another manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from plumbline.data.digests import file_digest
from plumbline.experiments.files import (
    ACCOUNT,
    CHECKPOINT,
    ENCODING,
    LEDGER,
    METRICS,
    MODEL,
    RECIPE,
    RESULT,
    STATEMENT,
    VERSIONS,
    FileError,
    read_json,
    write_json,
)
from plumbline.mechanism.ledger import Position

MANIFEST = "manifest.json"
FORMAT = 1
_ALWAYS = (
    RECIPE, VERSIONS, METRICS, "diagnostics.jsonl", ENCODING, MODEL, STATEMENT, RESULT,
)  # fmt: skip
# A ledger may be charged further, or move; and the checkpoint goes when the run is finished.
_LEFT_OUT = (ACCOUNT, LEDGER, CHECKPOINT, MANIFEST)


@dataclass(frozen=True)
class Manifest:
    """What was there when a run ended.

    Attributes:
        run: The run's id in its ledger.
        ledger: How far the ledger was written.
        files: The SHA-256 of each file of the folder, by name, in hexadecimal.
    """

    run: str
    ledger: Position
    files: Mapping[str, str]


def write_manifest(folder: Path, *, run: str, ledger: Position, result: str) -> None:
    """Writes the manifest of a run that is finished but for its result.

    Args:
        folder: The run's folder, with all its other files.
        run: The run's id.
        ledger: The ledger's position after its last line.
        result: The text of the result, which is written next.
    """
    there = (path for path in sorted(folder.iterdir()) if path.is_file())
    files = {path.name: file_digest(path) for path in there if _counts(path.name)}
    files[RESULT] = hashlib.sha256(result.encode("utf-8")).hexdigest()
    position = {"lines": ledger.count, "hash": ledger.hash}
    write_json(
        folder / MANIFEST, {"format": FORMAT, "run": run, "ledger": position, "sha256": files}
    )


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a run; None if it has none.

    Raises:
        FileError: If it is damaged.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return None
    match read_json(path):
        case {
            "format": int(version),
            "run": str(run),
            "ledger": {"lines": int(lines), "hash": str(digest)},
            "sha256": dict(files),
        } if version == FORMAT and all(isinstance(one, str) for one in files.values()):
            return Manifest(run, Position(lines, digest), files)
    raise FileError(
        f"{path} is damaged, or of another version: it has not the fields of format {FORMAT}."
    )


def changes(folder: Path, manifest: Manifest) -> list[str]:
    """In words, every file that is no longer what the manifest says."""
    found = [
        f"{name} is not in the manifest"
        for name in _ALWAYS
        if name not in manifest.files and (folder / name).is_file()
    ]
    return found + changed_files(folder, manifest.files)


def changed_files(folder: Path, files: Mapping[str, str]) -> list[str]:
    """In words, every file that is not there, or has another SHA-256 than the one given."""
    found = []
    for name, digest in files.items():
        path = folder / name
        if not path.is_file():
            found.append(f"{name} is missing")
        elif file_digest(path) != digest:
            found.append(f"{name} was changed")
    return found


def _counts(name: str) -> bool:
    passing = (".tmp", ".journal", ".PRIVATE", ".PRIVATE.new")
    return name not in _LEFT_OUT and not name.endswith(passing)
