"""Which files a run on a person's own table was started on: a digest of each, kept PRIVATE.

A run that goes on with other rows would be one model of two data sets, and its ledger would be that
of neither. The digests are not among the settings, which may be published: a plain hash lets anyone
who can guess a whole file test the guess, and of a table of which all but one row is known the
guesses are few. A keyed hash would need its key in the folder, to be kept from publication just so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from plumbline.experiments.files import FileError, write_bytes
from plumbline.experiments.manifest import sha256_of

DIGESTS = "data.PRIVATE"  # the ending keeps it out of the manifest, which has hashes of its own
_MARK = (
    "PRIVATE: digests of the files that this Plumbline run was made on. No guarantee covers this "
    "file; keep it as you keep the data, and never publish it.\n"
)


def keep_digests(folder: Path, files: Mapping[str, Path]) -> None:
    """Writes the digest of each file, by the option that named it."""
    content = _MARK + json.dumps(_digests(files), indent=2) + "\n"
    write_bytes(folder / DIGESTS, content.encode(), permissions=0o600)


def changed_files(folder: Path, files: Mapping[str, Path]) -> list[str]:
    """In words, every file that is not what it was when the run in the folder was started.

    Raises:
        FileError: If the digests are damaged.
    """
    path = folder / DIGESTS
    if not path.is_file():
        return [f"{DIGESTS}, which would tell whether the data are the same, is not there"]
    try:
        stored = json.loads(path.read_text(encoding="utf-8").removeprefix(_MARK))
        was = {str(option): str(digest) for option, digest in stored.items()}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise FileError(f"{path} is damaged, or cannot be read ({error}).") from error
    return [
        f"the content of {files[option].name} ({option}) is not what the run was started on"
        for option, digest in _digests(files).items()
        if was.get(option) != digest
    ]


def _digests(files: Mapping[str, Path]) -> dict[str, str]:
    return {option: sha256_of(path) for option, path in files.items()}
