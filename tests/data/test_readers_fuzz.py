"""Damaged data files: every reader gives records, or an error that names the file."""

import gzip
import importlib
import io
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat

from plumbline.data import Splits, table
from plumbline.data.archives import unpack
from plumbline.data.celeba import celeba
from plumbline.data.cifar import cifar10
from plumbline.data.dutch import COLUMNS, dutch
from plumbline.data.embeddings import glove_vectors
from plumbline.data.files import DataError
from plumbline.data.idx import mnist
from plumbline.data.image_folder import image_folder
from plumbline.data.imagenet32 import imagenet32
from plumbline.data.imdb import imdb
from plumbline.data.svhn import svhn
from plumbline.data.text import Vocabulary
from tests.fuzzing import FEW, MANY, damaged, fuzz

Patch = pytest.MonkeyPatch
RANDOM = np.random.default_rng(0)


@dataclass
class Reader:
    """A valid file that is to be damaged, and what reads it."""

    path: Path
    read: Callable[[], Any]


def records(splits: Splits) -> Splits:
    """Fetches some: what is mapped is read only now."""
    for part in (splits.train, splits.test):
        part.fetch(torch.arange(min(3, len(part))))
    return splits


def saved(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def pixels(*shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, shape, np.uint8)


def png(size: int = 64) -> bytes:
    image = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    image.fromarray(pixels(size, size, 3)).save(stream, "png")
    return stream.getvalue()


def any_checksum(patch: Patch, module: str, *names: str) -> None:
    """Files of other sizes and checksums than the published ones are taken."""
    home = importlib.import_module(f"plumbline.data.{module}")
    for name in names:
        files = tuple(replace(file, md5=None, size=None) for file in getattr(home, name))
        patch.setattr(home, name, files)


def a_csv_file(root: Path, patch: Patch) -> Reader:
    rows = [f"{k},{k / 7:.3f},{'ab'[k % 2]},{'xyz'[k % 3]}" for k in range(20)]
    path = saved(root / "my.csv", "\n".join(["age,score,sex,income", *rows]).encode())
    return Reader(
        path, lambda: records(table(path, target="income", sensitive="sex", from_data=True))
    )


def a_parquet_file(root: Path, patch: Patch) -> Reader:
    pyarrow = pytest.importorskip("pyarrow")
    columns = {"age": list(range(20)), "sex": list("ab" * 10), "income": list("xyyx" * 5)}
    importlib.import_module("pyarrow.parquet").write_table(
        pyarrow.table(columns), root / "my.parquet"
    )
    path = root / "my.parquet"
    return Reader(
        path, lambda: records(table(path, target="income", sensitive="sex", from_data=True))
    )


def an_idx_file(root: Path, patch: Patch) -> Reader:
    any_checksum(patch, "idx", "MNIST")
    for part in ("train", "t10k"):
        images = struct.pack(">IIII", 0x803, 3, 28, 28) + pixels(3, 28, 28).tobytes()
        labels = struct.pack(">II", 0x801, 3) + bytes([1, 2, 3])
        saved(root / f"mnist/{part}-images-idx3-ubyte.gz", gzip.compress(images))
        saved(root / f"mnist/{part}-labels-idx1-ubyte.gz", gzip.compress(labels))
    path = root / "mnist/train-images-idx3-ubyte.gz"
    return Reader(path, lambda: records(mnist(folder=root, verify=False)))


def idx_labels(root: Path, patch: Patch) -> Reader:
    return replace(an_idx_file(root, patch), path=root / "mnist/train-labels-idx1-ubyte.gz")


def a_cifar_batch(root: Path, patch: Patch) -> Reader:
    home = importlib.import_module("plumbline.data.cifar")
    parts = [[replace(one, md5=None, size=None) for one in of] for of in home.CIFAR10]
    patch.setattr(home, "CIFAR10", tuple(map(tuple, parts)))
    for file in (*parts[0], *parts[1]):
        saved(root / file.path, b"".join(bytes([k]) + pixels(3072).tobytes() for k in (1, 9)))
    return Reader(root / parts[0][0].path, lambda: records(cifar10(folder=root, verify=False)))


def a_matlab_file(root: Path, patch: Patch) -> Reader:
    any_checksum(patch, "svhn", "SVHN")
    for part in ("train", "test"):
        content = {"X": pixels(32, 32, 3, 2), "y": np.array([[1], [10]], np.uint8)}
        saved(root / f"svhn/{part}_32x32.mat", b"")
        savemat(root / f"svhn/{part}_32x32.mat", content, do_compression=True)
    path = root / "svhn/train_32x32.mat"
    return Reader(path, lambda: records(svhn(folder=root, verify=False)))


def an_npz_file(root: Path, patch: Patch, save: Any = np.savez) -> Reader:
    any_checksum(patch, "imagenet32", "TRAIN", "TEST")
    home = importlib.import_module("plumbline.data.imagenet32")
    patch.setattr(home, "TRAIN", home.TRAIN[:1])
    for file in (*home.TRAIN, *home.TEST):
        saved(root / file.path, b"")
        save(root / file.path, data=pixels(2, 3072), labels=np.array([1, 1000]))
    path = root / home.TRAIN[0].path
    return Reader(path, lambda: records(imagenet32(folder=root, verify=False)))


def a_compressed_npz_file(root: Path, patch: Patch) -> Reader:
    return an_npz_file(root, patch, np.savez_compressed)


def a_zip_of_images(root: Path, patch: Patch) -> Reader:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(1, 6):
            archive.writestr(f"img/{number:06}.png", png())
    path = saved(root / "celeba/img_align_celeba.zip", stream.getvalue())
    rows = [f"{number:06}.jpg,{(-1) ** number},1" for number in range(1, 6)]
    lines = ["image_id,Male,Eyeglasses", *rows]
    saved(root / "celeba/list_attr_celeba.csv", "\n".join(lines).encode())
    return Reader(path, lambda: records(celeba(folder=root, allow_partial=True)))


def a_list_of_attributes(root: Path, patch: Patch) -> Reader:
    return replace(a_zip_of_images(root, patch), path=root / "celeba/list_attr_celeba.csv")


def a_list_of_parts(root: Path, patch: Patch) -> Reader:
    rows = [f"{number:06}.jpg,{number % 3}" for number in range(1, 6)]
    path = saved(root / "celeba/list_eval_partition.csv", "\n".join(rows).encode())
    return replace(a_zip_of_images(root, patch), path=path)


def an_arff_file(root: Path, patch: Patch) -> Reader:
    patch.setattr(importlib.import_module("plumbline.data.dutch"), "ROWS", 10)
    head = "".join(f"@attribute {name} numeric\n" for name in COLUMNS)
    rows = [",".join(values[k % 2] for values in COLUMNS.values()) for k in range(10)]
    text = f"@relation dutch\n{head}@data\n" + "\n".join(rows) + "\n"
    path = saved(root / "dutch/dutch_census_2001.arff", text.encode())
    return Reader(path, lambda: records(dutch(folder=root)))


def an_archive_of_reviews(root: Path, patch: Patch) -> Reader:
    patch.setattr(importlib.import_module("plumbline.data.imdb"), "_EACH", 1)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for part in ("train", "test"):
            for kind in ("neg", "pos"):
                member = tarfile.TarInfo(f"aclImdb/{part}/{kind}/0_3.txt")
                member.size = 11
                tar.addfile(member, io.BytesIO(b"a good film"))
    path = saved(root / "imdb/aclImdb_v1.tar.gz", stream.getvalue())
    return Reader(path, lambda: records(imdb(folder=root, length=4)))


def an_image(root: Path, patch: Patch) -> Reader:
    for name in ("cat/1", "cat/2", "dog/1", "dog/2", "dog/3"):
        saved(root / f"images/{name}.png", png(8))
    path = root / "images/cat/1.png"
    return Reader(path, lambda: records(image_folder(root / "images", size=8)))


def a_word_list(root: Path, patch: Patch) -> Reader:
    path = saved(root / "words.txt", b"a 1\ngood 2\nfilm 3\n")
    return Reader(path, lambda: Vocabulary.from_file(path))


def word_vectors(root: Path, patch: Patch) -> Reader:
    words = Vocabulary.from_file(saved(root / "words.txt", b"a\ngood\nfilm\n"))
    path = saved(root / "glove.txt", b"a 0.1 0.2 0.3\ngood 1e-3 -4 5\nfilm 1 2 3\n")
    return Reader(path, lambda: glove_vectors(words, path))


def a_tar_archive(root: Path, patch: Patch) -> Reader:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        member = tarfile.TarInfo("one/two.txt")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"abc"))
    path = saved(root / "some.tar.gz", stream.getvalue())
    return Reader(path, lambda: unpack(path, root / "unpacked"))


READERS = (
    a_csv_file, a_parquet_file, an_idx_file, idx_labels, a_cifar_batch,
    a_matlab_file, an_npz_file, a_compressed_npz_file, a_zip_of_images, a_list_of_attributes,
    a_list_of_parts, an_arff_file, an_archive_of_reviews, an_image, a_word_list, word_vectors,
    a_tar_archive,
)  # fmt: skip


@pytest.mark.parametrize("make", READERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("amount", [FEW // 5, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's and scipy's, of damage
def test_a_damaged_file(
    make: Callable[[Path, Patch], Reader], amount: int, tmp_path: Path, monkeypatch: Patch
) -> None:
    one = make(tmp_path, monkeypatch)
    valid = one.path.read_bytes()
    assert one.read() is not None

    def check(data: bytes) -> None:
        one.path.write_bytes(data)
        try:
            assert one.read() is not None
        except (DataError, ValueError) as error:  # a column that is not there is a wrong argument
            assert one.path.name in str(error)  # noqa: PT017

    fuzz(damaged([valid]), check, amount)
