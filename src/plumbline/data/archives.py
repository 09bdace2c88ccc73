"""Unpacks downloaded archives safely.

Guarantee: nothing is written outside the folder, whatever the archive's members are called; links
and devices are refused; and an archive with one such member is refused as a whole, before anything
is written.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath, PureWindowsPath

from plumbline.data.files import DataError, File, reading


def unpack(archive: str | os.PathLike[str], folder: str | os.PathLike[str]) -> list[Path]:
    """Unpacks a tar archive (compressed or not) into a folder; returns the files written.

    Each file appears under its name only when it is complete.

    Raises:
        DataError: If a member would leave the folder or is not a plain file, or the archive is
            damaged.
    """
    source, root = Path(archive), Path(folder)
    written = []
    with reading(File(str(source)), source), tarfile.open(source) as opened:
        targets = {member: _target(member, root, source) for member in opened.getmembers()}
        for member, target in targets.items():
            stream = opened.extractfile(member)
            if stream is None:  # a folder
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(target.name + ".part")
            with stream, part.open("wb") as sink:
                shutil.copyfileobj(stream, sink, 1 << 20)
            part.replace(target)
            written.append(target)
    return written


def _target(member: tarfile.TarInfo, root: Path, archive: Path) -> Path:
    """Where a member goes: inside ``root``, on any platform and through any link there."""
    path, windows = PurePosixPath(member.name), PureWindowsPath(member.name)
    target = root / path
    why = None
    if not (member.isreg() or member.isdir()):
        why = "is a link" if member.islnk() or member.issym() else "is a device"
    elif path.is_absolute() or windows.drive or windows.root or ".." in path.parts + windows.parts:
        why = "is a path that leaves the folder"
    elif target == root and not member.isdir():
        why = "has no name"
    elif not target.resolve().is_relative_to(root.resolve()):
        why = "leads out of the folder through a link that is there"
    if why is not None:
        raise DataError(
            f"{archive} was not unpacked: its member {member.name!r} {why}. No published data set "
            "has such a member; do not use this archive."
        )
    return target
