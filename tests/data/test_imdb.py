import io
import tarfile
from pathlib import Path

import pytest
import torch

from plumbline.data import imdb as module
from plumbline.data import load
from plumbline.data.embeddings import random_vectors
from plumbline.data.files import DataError
from plumbline.data.hashing import SparseRows
from plumbline.data.imdb import imdb, imdb_hashed, read_texts, reviews
from plumbline.data.text import tokens
from plumbline.models import build
from tests.data.conftest import Require

NAME = "imdb/aclImdb_v1.tar.gz"
KINDS = [(part, kind) for part in ("train", "test") for kind in ("neg", "pos")]


def archive(folder: Path, texts: dict[str, str]) -> Path:
    path = folder / NAME
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, text in texts.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive of the same form, with three reviews of each kind, in no order."""
    monkeypatch.setattr(module, "_EACH", 3)
    texts = {
        f"aclImdb/{part}/{kind}/{number}_{number % 10}.txt": f"{part} {kind} review number {number}"
        for number in (10, 2, 7)
        for part, kind in KINDS
    }
    others = {
        "aclImdb/README": "not a review",
        "aclImdb/train/unsup/0_0.txt": "a review without a label",
        "aclImdb/train/urls_pos.txt": "addresses",
        "../aclImdb/train/pos/1_9.txt": "somewhere else",
    }
    archive(tmp_path, texts | others)
    return tmp_path


def test_reviews_are_in_the_order_of_their_numbers(small: Path) -> None:
    train, test = reviews(small)
    for found, part in ((train, "train"), (test, "test")):
        assert len(found) == 6
        words = [found.words[number] for number in found.numbers]
        expected = [
            word
            for kind in ("neg", "pos")
            for number in (2, 7, 10)
            for word in tokens(f"{part} {kind} review number {number}")
        ]
        assert words == expected


def test_numbers_of_words(small: Path) -> None:
    splits = imdb(folder=small, length=4, size=5)
    assert splits.train.x.shape == (6, 4)
    assert splits.train.y.tolist() == [0, 0, 0, 1, 1, 1]
    words = splits.vocabulary
    assert words is not None
    assert words.words == ("number", "review", "train", "neg", "pos")
    assert splits.test.x[0].tolist() == [1, 5, 3, 2]  # type: ignore[index]
    (line,) = splits.not_covered
    assert line.startswith("the vocabulary of 5 frequent words: computed from the training")


def test_words_can_be_vectors(small: Path) -> None:
    plain = imdb(folder=small, length=4, size=5)
    splits = imdb(folder=small, length=4, size=5, vectors="random", width=7)
    x, _ = splits.train.fetch(torch.tensor([2, 0]))
    assert x.shape == (2, 4, 7)
    table = random_vectors(plain.vocabulary, 7)  # type: ignore[arg-type]
    assert torch.equal(x, table[plain.train.x[torch.tensor([2, 0])]])  # type: ignore[index]
    assert build("imdb-gru", features=7)(x).shape == (2, 2)
    (small / "glove.txt").write_text("review 1 2\n")
    splits = imdb(folder=small, length=4, size=5, vectors=small / "glove.txt")
    assert splits.train[0][0].sum(0).tolist() == [1, 2]
    assert "the words' vectors (glove.txt): public constants" in map(str, splits.constants)


def test_a_public_list_of_words_leaves_nothing_uncovered(small: Path) -> None:
    (small / "words.txt").write_text("pos\nneg\nreview\n")
    splits = imdb(folder=small, vocabulary=small / "words.txt", size=2, length=3)
    assert splits.not_covered == ()
    assert splits.train.x[:, 1].tolist() == [3, 3, 3, 2, 2, 2]  # type: ignore[index]


def test_hashed_words(small: Path) -> None:
    splits = imdb_hashed(folder=small, bins=64, bigrams=True)
    assert isinstance(splits.train.x, SparseRows)
    assert splits.train.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert splits.not_covered == ()


def test_the_archive_is_read_once(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imdb(folder=small)
    monkeypatch.setattr(module, "_read", lambda path: pytest.fail("read again"))
    load("imdb", folder=small, length=3)
    load("imdb-hashed", folder=small)
    assert [path.name for path in (small / "imdb").iterdir()] == ["aclImdb_v1.tar.gz"]


def test_missing_reviews_are_counted(tmp_path: Path) -> None:
    archive(tmp_path, {"aclImdb/train/pos/0_9.txt": "good"})
    with pytest.raises(DataError, match=r"'train/pos': 1, .* than the 12,500 of each kind"):
        imdb(folder=tmp_path)


def test_a_truncated_archive_is_named(small: Path) -> None:
    path = small / NAME
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"aclImdb_v1\.tar\.gz cannot be read to its end.*7c2ac02"):
        imdb(folder=small)


def test_a_missing_archive_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"imdb/aclImdb_v1\.tar\.gz   \(from https://ai\.stanford"):
        load("imdb-hashed", folder=tmp_path)


def test_the_published_archive_has_all_reviews(require: Require) -> None:
    texts = read_texts(require(NAME) / NAME)
    assert len(texts) == 25_000 + 25_000
    assert min(map(len, texts)) > 0
    assert texts[0].startswith("Story of a man who has unnatural feelings for a pig.")
    bad, good = (sum("excellent" in text for text in texts[k : k + 12_500]) for k in (0, 12_500))
    assert good > 3 * bad


@pytest.mark.slow
def test_the_published_reviews(require: Require) -> None:
    folder = require(NAME)
    splits = imdb(folder=folder, length=64)
    assert splits.train.x.shape == splits.test.x.shape == (25_000, 64)  # type: ignore[union-attr]
    for part in (splits.train, splits.test):
        assert torch.bincount(part.y).tolist() == [12_500, 12_500]
    words = splits.vocabulary
    assert words is not None
    assert len(words.words) == 20_000
    assert words.words[:3] == ("the", "and", "a")
    first = [words.words[number - 2] for number in splits.train.x[0, :6].tolist()]  # type: ignore[index]
    assert first == ["story", "of", "a", "man", "who", "has"]
    sparse = imdb_hashed(folder=folder)
    assert len(sparse.train) == len(sparse.test) == 25_000
    assert isinstance(sparse.train.x, SparseRows)
    assert sparse.train.x.nbytes < 30_000_000
