"""Whether a run goes on with the records it was started on: digests of the data, kept PRIVATE.

A run that went on with other rows would be one model of two data sets, and its ledger would be that
of neither. Data sets that are shipped or downloaded have checksums of their own; here are the files
of a table, and objects given in Python.
"""

from __future__ import annotations

import json
from pathlib import Path

from plumbline.data.digests import file_digest, object_digest
from plumbline.experiments.files import FileError, write_bytes
from plumbline.experiments.objects import OBJECTS, is_object
from plumbline.experiments.run_spec import RunSpec

DIGESTS = "data.PRIVATE"  # the ending keeps it out of the manifest, which has hashes of its own
_MARK = (
    "PRIVATE: digests of the data that this Plumbline run was made on. No guarantee covers this "
    "file; keep it as you keep the data, and never publish it.\n"
)


class OtherData(ValueError):
    """A run's folder belongs to other data than it is asked to go on with."""


def keep_identity(folder: Path, spec: RunSpec) -> None:
    """Writes the digests of a new run's data; compares those of a run that was begun.

    Raises:
        OtherData: If the data are not what the run was started on.
        FileError: If the digests are damaged.
    """
    found = changed(folder, spec)
    if found is None:
        content = _MARK + json.dumps(_digests(spec), indent=2) + "\n"
        write_bytes(folder / DIGESTS, content.encode(), permissions=0o600)
    elif found:
        raise OtherData(
            f"{folder} holds a run on other data: {'; '.join(found)}. Give the data of that run to "
            "go on with it, or another folder with --out."
        )


def changed(folder: Path, spec: RunSpec) -> list[str] | None:
    """In words, all data that are not what the run was started on; None if nothing was kept.

    Raises:
        FileError: If the digests are damaged.
    """
    path = folder / DIGESTS
    now = _digests(spec)
    if not path.is_file():
        return None if now else []
    try:
        stored = json.loads(path.read_text(encoding="utf-8").removeprefix(_MARK))
        was = {str(name): str(digest) for name, digest in stored.items()}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise FileError(f"{path} is damaged, or cannot be read ({error}).") from error
    return [
        f"the content of {name} is not what the run was started on"
        for name, digest in now.items()
        if was.get(name) != digest
    ]


def _digests(spec: RunSpec) -> dict[str, str]:
    """By file name or object; empty for data sets that have checksums of their own."""
    part = spec.data
    if is_object(part.name):
        return {part.name: object_digest(OBJECTS.get(part.name))}
    if part.name != "table":
        return {}
    paths = [Path(part.options[name]) for name in ("path", "test") if part.options.get(name)]
    return {path.name: file_digest(path) for path in paths}
