"""The data folder: where files are, whether they are the right ones, and how to get them.

The folder is the environment variable ``PLUMBLINE_DATA``, or the platform's cache folder. A data
set names its files with their published checksums and addresses; what is missing, truncated or
other than expected gets an error that names the file and says what to do.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path

_BLOCK = 1 << 20


class DataError(RuntimeError):
    """A file of a data set is missing or not what it should be."""


@dataclass(frozen=True)
class File:
    """A file of a data set.

    Attributes:
        path: Below the data folder, such as ``mnist/train-images-idx3-ubyte.gz``.
        md5: Its published checksum, if there is one.
        size: Its size in bytes, if known.
        url: Where it can be downloaded.
        unpack: The folder, below the data folder, into which it is unpacked after a download; None
            for files that are read as they are.
    """

    path: str
    md5: str | None = None
    size: int | None = None
    url: str | None = None
    unpack: str | None = None


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """The folder given, else ``PLUMBLINE_DATA``, else the platform's cache folder."""
    if folder is not None:
        return Path(folder)
    if chosen := os.environ.get("PLUMBLINE_DATA"):
        return Path(chosen)
    return cache_folder()


def cache_folder() -> Path:
    """The platform's folder for what can be computed or downloaded again."""
    from pooch import os_cache  # slow to import, and rarely needed

    return Path(os_cache("plumbline"))


def locate(
    name: str,
    files: Sequence[File],
    folder: str | os.PathLike[str] | None = None,
    *,
    verify: bool = False,
) -> list[Path]:
    """The paths of a data set's files, which are all there.

    Args:
        name: The data set's name, for errors.
        files: Its files.
        folder: The data folder.
        verify: Whether to compare checksums, not only sizes.

    Raises:
        DataError: Naming every missing file and where it belongs, or the wrong file.
    """
    root = data_folder(folder)
    missing = [file for file in files if not (root / file.path).is_file()]
    if missing:
        raise DataError(
            f"The data set '{name}' is not complete; these files are missing:\n"
            f"{placed(missing, root)}\n"
            f"Run `plumbline data get {name}`, or put them there by hand. Another folder is chosen "
            "with the environment variable PLUMBLINE_DATA."
        )
    paths = [root / file.path for file in files]
    for file, path in zip(files, paths, strict=True):
        check(file, path, checksum=verify)
    return paths


def placed(files: Sequence[File], root: Path) -> str:
    """Where each file belongs and where it comes from, one per line."""
    return "\n".join(
        f"  {root / file.path}"
        + (f"   (from {file.url})" if file.url else "")
        + (f"   to be unpacked into {root / file.unpack}" if file.unpack is not None else "")
        for file in files
    )


def check(file: File, path: Path, *, checksum: bool) -> None:
    """Refuses a file of another size or checksum than published."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        raise DataError(
            f"{path} has {size:,} bytes where {file.size:,} are expected: it is truncated, or not "
            "the published file. Delete it and get it again."
        )
    if checksum and file.md5 is not None and (found := md5_of(path)) != file.md5:
        raise DataError(
            f"{path} has the md5 checksum {found} where {file.md5} is published: it is damaged, or "
            "another file. Delete it and get it again."
        )


@contextmanager
def reading(file: File, path: Path) -> Iterator[None]:
    """Turns what a damaged file does to its reader into an error that names the file."""
    try:
        yield
    except DataError:
        raise
    except (
        EOFError,
        LZMAError,
        OSError,  # gzip's own errors are among them
        RuntimeError,  # of zipfile: a password is wanted, or a method that it does not have
        UnicodeDecodeError,
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        if isinstance(error, FileNotFoundError | PermissionError) or not path.is_file():
            raise
        expected = "" if file.size is None else f" (expected {file.size:,})"
        published = "" if file.md5 is None else f" (published: {file.md5})"
        raise DataError(
            f"{path} cannot be read to its end: {error}. It is damaged or truncated: it has "
            f"{path.stat().st_size:,} bytes{expected} and the md5 checksum {md5_of(path)}"
            f"{published}. Delete it and get it again."
        ) from error


def md5_of(path: Path) -> str:
    """The file's md5 checksum, in hexadecimal."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
