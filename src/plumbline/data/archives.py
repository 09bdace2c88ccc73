"""Unpacks downloaded archives safely.

Guarantee: nothing is written outside the folder, whatever the archive's members are called; links
and devices are refused; and an archive with one such member is refused as a whole, before anything
is written.
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from plumbline.data.files import DataError, File, reading


def unpack(archive: str | os.PathLike[str], folder: str | os.PathLike[str]) -> list[Path]:
    """Unpacks a tar (compressed or not) or zip archive into a folder; returns the files written.

    Each file appears under its name only when it is complete.

    Raises:
        DataError: If a member would leave the folder or is not a plain file, or the archive is
            damaged.
    """
    source, root = Path(archive), Path(folder)
    with reading(File(str(source)), source):
        with source.open("rb") as start:
            kind = _Zip if start.read(2) == b"PK" else _Tar
        for name in kind(source).names():
            _target(source, root, name)  # check all of them before writing the first
        written = []
        for name, stream in kind(source).files():
            target = _target(source, root, name)
            if target == root:  # only a folder may be called "."
                raise _refused(source, name, "has no name")
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(target.name + ".part")
            with stream, part.open("wb") as sink:
                shutil.copyfileobj(stream, sink, 1 << 20)
            part.replace(target)
            written.append(target)
    return written


class _Tar:
    """The plain files of a tar archive."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> Iterator[str]:
        with tarfile.open(self._path) as archive:
            for member in archive:
                if not (member.isreg() or member.isdir()):
                    kind = "a link" if member.islnk() or member.issym() else "a device"
                    raise _refused(self._path, member.name, f"is {kind}")
                yield member.name

    def files(self) -> Iterator[tuple[str, IO[bytes]]]:
        with tarfile.open(self._path) as archive:
            for member in archive:
                stream = archive.extractfile(member)
                if stream is not None:
                    yield member.name, stream


class _Zip:
    """The plain files of a zip archive."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> Iterator[str]:
        with zipfile.ZipFile(self._path) as archive:
            for member in archive.infolist():
                mode = member.external_attr >> 16  # as Unix programs store it; otherwise zero
                if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise _refused(self._path, member.filename, "is a link or a device")
                yield member.filename

    def files(self) -> Iterator[tuple[str, IO[bytes]]]:
        with zipfile.ZipFile(self._path) as archive:
            for member in archive.infolist():
                if not member.is_dir():
                    yield member.filename, archive.open(member)


def _target(archive: Path, root: Path, name: str) -> Path:
    """Where a member goes: inside ``root``, on any platform and through any link there."""
    path, windows = PurePosixPath(name), PureWindowsPath(name)
    if not name:
        raise _refused(archive, name, "has no name")
    if path.is_absolute() or windows.drive or windows.root or ".." in (*path.parts, *windows.parts):
        raise _refused(archive, name, "is a path that leaves the folder")
    target = root / path
    if not target.resolve().is_relative_to(root.resolve()):
        raise _refused(archive, name, "leads out of the folder through a link that is there")
    return target


def _refused(archive: Path, name: str, why: str) -> DataError:
    return DataError(
        f"{archive} was not unpacked: its member {name!r} {why}. No published data set has such a "
        "member; do not use this archive."
    )
