"""The data folder: where files are, whether they are the right ones, and how to get them.

The folder is the environment variable ``PLUMBLINE_DATA``, or the platform's cache folder. A data
set lists its files with their published checksums and addresses; a missing, truncated or unexpected
file raises an error that names the file and says what to do.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import shlex
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from lzma import LZMAError
from pathlib import Path


class DataError(RuntimeError):
    """A file of a data set is missing or not what it should be."""


class TableError(DataError, ValueError):
    """A person's own table cannot be used as it was described; says what to change."""


@dataclass(frozen=True)
class File:
    """A file of a data set.

    Attributes:
        path: Its path in the data folder, such as ``mnist/train-images-idx3-ubyte.gz``.
        md5: Its published checksum, if there is one.
        size: Its size in bytes, if known.
        url: Where it can be downloaded.
        unpack: The folder, inside the data folder, into which it is unpacked after a download; None
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
    """The platform's folder for things that can be computed or downloaded again."""
    from pooch import os_cache  # slow to import, and rarely needed

    return Path(os_cache("plumbline"))


def locate(
    name: str,
    files: Sequence[File],
    folder: str | os.PathLike[str] | None = None,
    *,
    verify: bool = False,
) -> list[Path]:
    """The paths of a data set's files, after checking that all of them are there.

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
    """Refuses a file whose size or checksum is not the published one."""
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
def reading(file: File | None, path: Path) -> Iterator[None]:
    """Turns the errors of reading a damaged file into one that names the file.

    Args:
        file: Which file of a data set it is; None for a user's own file, which the error does not
            suggest deleting.
        path: Where it is.
    """
    try:
        yield
    except DataError:
        raise
    except (
        EOFError,
        LZMAError,
        OSError,  # includes gzip's own errors
        RuntimeError,  # from zipfile: a password or compression method it does not support
        UnicodeDecodeError,
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        if isinstance(error, FileNotFoundError | PermissionError) or not path.is_file():
            raise
        if file is None:
            raise DataError(_unreadable(path, error)) from None  # it may quote what it read
        expected = "" if file.size is None else f" (expected {file.size:,})"
        published = "" if file.md5 is None else f" (published: {file.md5})"
        raise DataError(
            f"{path} cannot be read to its end: {error}. It is damaged or truncated: it has "
            f"{path.stat().st_size:,} bytes{expected} and the md5 checksum {md5_of(path)}"
            f"{published}. Delete it and get it again."
        ) from error


def _unreadable(path: Path, error: Exception) -> str:
    """Why a user's own file cannot be read, and what to do."""
    if not isinstance(error, UnicodeDecodeError):
        size = path.stat().st_size
        return (
            f"{path} cannot be read to its end: {error}. It has {size:,} bytes: it is damaged or "
            "truncated, or another kind of file than its name says."
        )
    if error.encoding not in ("utf-8", "utf-8-sig"):
        return f"{path} is not {error.encoding}; give the encoding that it has."
    line, encoding = not_utf8(path)
    if path.suffix.lower() == ".csv":
        return (
            f"{path} is not UTF-8 (line {line:,}); it looks like {encoding}. Say so (--encoding "
            f"{encoding}), or save it as UTF-8 (in Excel as 'CSV UTF-8')."
        )
    new = path.with_name(f"{path.stem}-utf8{path.suffix}")
    return (
        f"{path} is not UTF-8 (line {line:,}). Save it as UTF-8, or convert it, as in: iconv -f "
        f"{encoding} -t utf-8 {shlex.quote(str(path))} > {shlex.quote(str(new))}"
    )


def not_utf8(path: Path) -> tuple[int, str]:
    """The first line that is not UTF-8, and which encoding the file seems to have."""
    wide = False
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):  # no character spans two lines
            wide = wide or (number == 1 and line.startswith((codecs.BOM_LE, codecs.BOM_BE)))
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                # What latin-1 has between 128 and 159, nobody writes; cp1252 has quotes there.
                odd = any(128 <= byte < 160 for byte in line[error.start :])
                return number, "utf-16" if wide else "cp1252" if odd else "latin-1"
    raise DataError(f"{path} was changed while it was read. Try again.")


def md5_of(path: Path) -> str:
    """The file's md5 checksum, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, partial(hashlib.md5, usedforsecurity=False)).hexdigest()
