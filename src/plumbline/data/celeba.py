"""CelebA: img_align_celeba.zip and its attributes, 64 x 64, label Male, group Eyeglasses.

The images are decoded once, into a file of bytes (12 kB per image) that is mapped from then on.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal

import torch
from torch import Tensor

from plumbline.checks import check_count
from plumbline.data.base import Constant, Split, Splits, dataset
from plumbline.data.decoding import decode, unpacked
from plumbline.data.encoding import check_one_of, codes, split
from plumbline.data.files import DataError, File, data_folder, locate, reading
from plumbline.data.images import RANGE, Bytes, Folder, Mapped, Pixels

SIZE = 64
TEST_FRACTION = 0.2

# No address: researchers get the files after accepting the terms. And no checksum: the published
# archive and smaller ones with the same kind of files are both read.
IMAGES = File("celeba/img_align_celeba.zip")
ATTRIBUTES = File("celeba/list_attr_celeba.csv")
PARTITION = File("celeba/list_eval_partition.csv")
_SUFFIXES = {".jpg", ".jpeg", ".png"}


@dataset("celeba", (IMAGES, ATTRIBUTES, PARTITION))
def celeba(
    *,
    folder: Folder = None,
    label: str = "Male",
    group: str = "Eyeglasses",
    division: Literal["official", "random"] | None = None,
    seed: int = 0,
    allow_partial: bool = False,
    size: int = SIZE,
) -> Splits:
    """CelebA: 162,770 and 19,962 faces ``[3, size, size]``, pixels in [0, 1].

    For research only; available at https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html. The
    published images (178 x 218) are cropped to the central square and scaled; images of that size
    are used as they are. The official partition is used if it and all of its images are
    there (its validation part is in neither of ours); otherwise 80 % of the images are for training
    and 20 % for testing, drawn by the seed, and ``constants`` says so.

    Args:
        folder: The data folder, with img_align_celeba.zip, list_attr_celeba and
            list_eval_partition (each csv or txt) in ``celeba``.
        label: The attribute that is y, 1 where an image has it.
        group: The attribute that is the group.
        division: "official" or "random", to accept no other.
        seed: The seed of a random division.
        allow_partial: Whether to load what has both an image and attributes when the zip and the
            list do not have the same images.
        size: The images' height and width.
    """
    check_count("size", size)
    if division is not None:
        check_one_of("division", division, ("official", "random"))
    listed = _csv_or_txt(ATTRIBUTES, folder)
    source, attributes = locate("celeba", [IMAGES, listed], folder)
    names, (y, of) = _columns(attributes, {"label": label, "group": group})
    with reading(IMAGES, source):
        archive = zipfile.ZipFile(source)
    with archive:
        members = _members(archive)
        names, chosen = _in_both(names, members, source, attributes, allow_partial)
        shape = (len(members), 3, size, size)
        rows = _decoded(source, archive, members, size)
        pixels = unpacked(source, f"{size}x{size}", shape, rows, folder)
    row_of = {name: row for row, name in enumerate(members)}
    images = Mapped([pixels], torch.tensor([row_of[name] for name in names]))
    y, of = y[chosen], of[chosen]

    train, test, how = _divided(names, folder, division, seed)
    whole = Split(images, y, of, Pixels())
    return Splits(
        name="celeba",
        train=whole.select(train),
        test=whole.select(test),
        classes=(f"not {label}", label),
        groups=(f"not {group}", group),
        constants=(RANGE, Constant(how, "public")),
    )


def _csv_or_txt(file: File, folder: Folder) -> File:
    """The list as txt, if that is the one there."""
    txt = File(file.path.removesuffix("csv") + "txt")
    root = data_folder(folder)
    return txt if (root / txt.path).is_file() and not (root / file.path).is_file() else file


def _columns(path: Path, wanted: Mapping[str, str]) -> tuple[list[str], list[Tensor]]:
    """Image names without suffix, and for each attribute whether the image has it, ``[n]``.

    The csv starts with a line of names; the txt has the number of images on a line before it, and
    no name for the first column.
    """
    with reading(File(path.name), path):
        lines = path.read_text(encoding="utf-8").splitlines()
    comma = path.suffix == ".csv"
    first = 0 if comma else 1
    rows = [line.split(",") if comma else line.split() for line in lines[first:]]
    header = rows.pop(0) if rows else []
    if not comma:
        header = ["", *header]
    for option, name in wanted.items():
        if name not in header[1:]:
            raise ValueError(
                f"{option} is {name!r}; it must be one of {', '.join(map(repr, header[1:]))}, the "
                f"attributes in {path}."
            )
    for number, row in enumerate(rows, start=first + 2):
        if len(row) != len(header):
            raise DataError(
                f"{path} has {len(row)} cells in line {number} where {len(header)} are expected: "
                "it is truncated or damaged. Delete it and get it again."
            )
    columns = []
    for name in wanted.values():
        place = header.index(name)
        try:
            columns.append(codes([row[place] for row in rows], ("-1", "1"), name))
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
    return [Path(row[0]).stem for row in rows], columns


def _members(archive: zipfile.ZipFile) -> dict[str, str]:
    """The images in the zip, by name without folders and suffix, in order of that name."""
    paths = (PurePosixPath(name) for name in archive.namelist())
    images = (path for path in paths if path.suffix in _SUFFIXES and path.name[0] != ".")
    return dict(sorted((path.stem, str(path)) for path in images))


def _in_both(
    names: list[str],
    members: dict[str, str],
    source: Path,
    attributes: Path,
    allow_partial: bool,
) -> tuple[list[str], list[int]]:
    """The names that have an image and attributes, and their positions in the list."""
    chosen = [place for place, name in enumerate(names) if name in members]
    both = [names[place] for place in chosen]
    if not both:
        raise DataError(f"None of the images that {attributes} lists is in {source}.")
    if len(both) != len(names) or len(both) != len(members):
        without = sorted(set(names) - set(members)) or sorted(set(members) - set(names))
        if not allow_partial:
            raise DataError(
                f"{source} has {len(members):,} images and {attributes} lists {len(names):,}; "
                f"{len(both):,} are in both, and {without[0]} is not. Get the files that belong "
                "together, or load what is in both with allow_partial=True."
            )
    return both, chosen


def _decoded(
    source: Path, archive: zipfile.ZipFile, members: dict[str, str], size: int
) -> Iterator[Bytes]:
    for member in members.values():
        with reading(IMAGES, source):
            content = archive.read(member)
        yield decode(io.BytesIO(content), f"{member} in {source}", size)


def _divided(
    names: list[str], folder: Folder, division: str | None, seed: int
) -> tuple[Tensor, Tensor, str]:
    """The records of the training and of the test part, and how they were chosen."""
    path = data_folder(folder) / _csv_or_txt(PARTITION, folder).path
    if division != "random" and path.is_file():
        with reading(File(path.name), path):
            cells = path.read_text(encoding="utf-8").replace(",", " ").split()
        part_of = dict(zip((Path(one).stem for one in cells[::2]), cells[1::2], strict=False))
        part_of = {name: part for name, part in part_of.items() if part in ("0", "1", "2")}
        train, test = (
            torch.tensor([row for row, name in enumerate(names) if part_of.get(name) == part])
            for part in ("0", "2")
        )
        if set(part_of) <= set(names) and len(train) and len(test):
            return train, test, f"the division into parts ({path.name})"
    if division == "official":
        raise DataError(
            f"The official division needs {path} and all the images that it lists. Get them, or "
            'say division="random".'
        )
    train, test = split(len(names), TEST_FRACTION, torch.Generator().manual_seed(seed))
    share = f"{1 - TEST_FRACTION:.0%} / {TEST_FRACTION:.0%}"
    return train, test, f"the division into parts ({share} by seed {seed}, not the official one)"
