"""Downloads the files of a data set, with published checksums, a progress bar, and resuming.

pooch downloads and checks. It cannot resume, so the bytes come through ``Resuming``, which keeps
what has arrived in a file ``NAME.part`` and requests only the rest. A file gets its name when its
checksum is right, and is removed when it is not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from plumbline.data.archives import unpack
from plumbline.data.base import FILES
from plumbline.data.files import DataError, File, check, data_folder, placed
from plumbline.registry import UnknownPart, unknown

_BLOCK = 1 << 16
_ATTEMPTS = 3
_SECONDS = 30.0


def get(
    name: str, folder: str | os.PathLike[str] | None = None, progress: bool = True
) -> list[Path]:
    """Downloads the missing files of a data set, and returns the paths of all its files.

    Args:
        name: The data set's name.
        folder: The data folder; by default ``PLUMBLINE_DATA`` or the platform's cache folder.
        progress: Whether to show a progress bar.

    Raises:
        DataError: If a file cannot be downloaded (the error says which files to put where), or is
            not the published one.
    """
    if name not in FILES:
        raise UnknownPart(unknown("data set", name, list(FILES)))
    root = data_folder(folder)
    files = FILES[name]
    by_hand = [file for file in files if file.url is None and not (root / file.path).is_file()]
    if by_hand:
        raise DataError(
            f"The data set '{name}' has files that cannot be downloaded by a program, because of "
            f"their terms of use. Get them yourself and put them here:\n{placed(by_hand, root)}"
        )
    return [_get_one(name, files, file, root, progress) for file in files]


def _get_one(name: str, files: Sequence[File], file: File, root: Path, progress: bool) -> Path:
    path = root / file.path
    if not path.is_file():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _download(file, path, progress)
        except OSError as error:  # includes requests' errors
            raise DataError(
                f"{path.name} of the data set '{name}' could not be downloaded from {file.url}: "
                f"{error}. What has arrived is kept, and the next attempt continues from there. "
                f"Without a network, put these files here by hand:\n{placed(files, root)}"
            ) from error
    elif file.url is not None:
        check(file, path, checksum=True)
    if file.unpack is not None:
        unpack(path, root / file.unpack)
    return path


def _download(file: File, path: Path, progress: bool) -> None:
    import pooch  # imports requests: slow, and only needed here

    pooch.get_logger().setLevel("WARNING")
    part = path.with_name(path.name + ".part")
    try:
        pooch.retrieve(
            url=file.url,
            known_hash=None if file.md5 is None else f"md5:{file.md5}",
            fname=path.name,
            path=path.parent,
            downloader=Resuming(part, progress=progress),
        )
    except ValueError as error:  # pooch: the checksum is wrong, and the file was removed
        raise DataError(
            f"What {file.url} sent for {path} has another checksum than the published md5 "
            f"{file.md5}, and was removed: {error} Try again; if it stays so, the file there is "
            "not the published one."
        ) from error


class Resuming:
    """A downloader for pooch that continues where an earlier attempt stopped.

    Attributes:
        part: The file that keeps the bytes until all have arrived.
        progress: Whether to show a progress bar.
    """

    def __init__(self, part: Path, *, progress: bool = False) -> None:
        self.part = part
        self.progress = progress

    def __call__(self, url: str, output_file: Any, pooch: Any, check_only: bool = False) -> None:
        """Downloads ``url`` and moves it to ``output_file``, a path (pooch passes a string)."""
        import requests

        for attempt in range(_ATTEMPTS):
            try:
                self._fetch(url)
                break
            except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError):
                # Try again only if the connection broke after some bytes had arrived.
                if attempt + 1 == _ATTEMPTS or not self.part.is_file():
                    raise
        os.replace(self.part, output_file)

    def _fetch(self, url: str) -> None:
        import requests

        have = self.part.stat().st_size if self.part.is_file() else 0
        # No compression in transit: positions are those of the file itself.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with requests.get(url, stream=True, headers=headers, timeout=_SECONDS) as answer:
            span = answer.headers.get("Content-Range", "")
            if answer.status_code == requests.codes.range_not_satisfiable:
                if span == f"bytes */{have}":
                    return  # everything had arrived
                self.part.unlink()  # longer than the file: it belongs to another one
                return self._fetch(url)
            answer.raise_for_status()
            goes_on = answer.status_code == requests.codes.partial_content
            if goes_on and not span.startswith(f"bytes {have}-"):
                raise OSError(f"asked for the bytes from {have} on, the server sent {span!r}")
            start = have if goes_on else 0
            length = answer.headers.get("Content-Length")
            total = None if length is None else start + int(length)
            with (
                self.part.open("ab" if goes_on else "wb") as sink,
                _shown(self.part.stem, start, total, self.progress) as advance,
            ):
                for block in answer.iter_content(_BLOCK):
                    sink.write(block)
                    advance(len(block))


class _Advance(Protocol):
    def __call__(self, bytes: int, /) -> None:
        """Reports how many more bytes have arrived."""


@contextmanager
def _shown(name: str, start: int, total: int | None, progress: bool) -> Iterator[_Advance]:
    """A progress bar, or nothing."""
    if not progress:
        yield lambda _bytes: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = "{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns) as bar:
        task = bar.add_task(name, total=total, completed=start)
        yield lambda bytes: bar.advance(task, bytes)
