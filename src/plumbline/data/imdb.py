"""IMDb reviews (Maas et al. 2011): 25,000 for training and 25,000 for testing, good or bad.

The archive is read without unpacking it. Its words are found once and kept in a cache file.
"""

from __future__ import annotations

import os
import re
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from plumbline.data.base import Constant, Split, Splits, dataset
from plumbline.data.caching import Arrays, cached
from plumbline.data.embeddings import glove_vectors, random_vectors
from plumbline.data.files import DataError, File, locate, reading
from plumbline.data.hashing import hashed, hashing_constant
from plumbline.data.text import TOKENISER, Corpus, TextSplits, Vocabulary, corpus

# No size: archives with only the labelled reviews work too. The reviews are counted instead.
FILE = File(
    "imdb/aclImdb_v1.tar.gz",
    md5="7c2ac02c03563afcf9b574c7e56c153a",
    url="https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
)
_REVIEW = re.compile(r"aclImdb/(train|test)/(neg|pos)/(\d+)_\d+\.txt")
_EACH = 12_500
_CLASSES = ("negative", "positive")


@dataset("imdb", files=[FILE])
def imdb(
    *,
    folder: str | os.PathLike[str] | None = None,
    vocabulary: str | os.PathLike[str] = "training",
    size: int = 20_000,
    length: int = 256,
    vectors: str | os.PathLike[str] | None = None,
    width: int = 100,
) -> TextSplits:
    """IMDb as word numbers, x ``[n, length]`` of int64, or word vectors; y is 1 for a good review.

    Args:
        folder: The data folder.
        vocabulary: "training" for the most frequent words of the training reviews, which epsilon
            does not cover; or the path of a public list with one word at the start of each line.
        size: How many of these words to use.
        length: How many words of a review are kept; shorter ones are padded with 0.
        vectors: A GloVe text file, or "random" for vectors from a fixed seed: then the model sees
            the words' vectors, ``[n, length, width]``, as "imdb-gru" does.
        width: How long random vectors are.
    """
    train, test = reviews(folder)
    words = (
        Vocabulary.from_training(train, size)
        if vocabulary == "training"
        else Vocabulary.from_file(vocabulary, size)
    )
    constants = [words.constant, Constant(f"the length of {length} words", "public")]
    look_up = None
    if vectors is not None:
        known = vectors == "random"
        table = random_vectors(words, width) if known else glove_vectors(words, vectors)
        look_up = partial(nn.functional.embedding, weight=table)
        constants.append(Constant(f"the words' vectors ({os.path.basename(vectors)})", "public"))
    return TextSplits(
        "imdb",
        Split(words.encode(train, length), _labels(), prepare=look_up),
        Split(words.encode(test, length), _labels(), prepare=look_up),
        classes=_CLASSES,
        constants=tuple(constants),
        vocabulary=words,
    )


@dataset("imdb-hashed", files=[FILE])
def imdb_hashed(
    *,
    folder: str | os.PathLike[str] | None = None,
    bins: int = 2**16,
    bigrams: bool = False,
) -> Splits:
    """IMDb as sparse hashed words: x is a pair of bins and values; y is 1 for a good review.

    Args:
        folder: The data folder.
        bins: The number of bins.
        bigrams: Whether pairs of neighbouring words count too.
    """
    train, test = reviews(folder)
    return Splits(
        "imdb-hashed",
        Split(hashed(train, bins, bigrams=bigrams), _labels()),
        Split(hashed(test, bins, bigrams=bigrams), _labels()),
        classes=_CLASSES,
        constants=(hashing_constant(bins, bigrams),),
    )


def reviews(folder: str | os.PathLike[str] | None = None) -> tuple[Corpus, Corpus]:
    """The words of the training and of the test reviews, bad ones first in both."""
    (path,) = locate("imdb", [FILE], folder)
    stored = cached(path, TOKENISER, lambda: _read(path))
    words = stored["words"].tobytes().decode().split("\n")
    everything = Corpus(words, stored["numbers"], stored["starts"])
    return everything.part(0, 2 * _EACH), everything.part(2 * _EACH, 4 * _EACH)


def _labels() -> Tensor:
    return torch.arange(2).repeat_interleave(_EACH)


def _read(path: Path) -> Arrays:
    found = corpus(read_texts(path))
    words = np.frombuffer("\n".join(found.words).encode(), np.uint8)
    return {"words": words, "numbers": found.numbers, "starts": found.starts}


def read_texts(path: Path) -> list[str]:
    """The reviews in the archive: training before test, bad before good, then by number.

    Raises:
        DataError: If there are not 12,500 of each, or the archive is damaged.
    """
    texts: dict[tuple[str, str], dict[int, str]] = {
        (part, kind): {} for part in ("train", "test") for kind in ("neg", "pos")
    }
    with reading(FILE, path), tarfile.open(path, "r:gz") as archive:
        for member in archive:
            if name := _REVIEW.fullmatch(member.name):
                stream = archive.extractfile(member)
                text = "" if stream is None else stream.read().decode("utf-8")
                texts[name[1], name[2]][int(name[3])] = text
    counts = {"/".join(key): len(found) for key, found in texts.items()}
    if set(counts.values()) != {_EACH}:
        raise DataError(
            f"{path} has other numbers of reviews, {counts}, than the {_EACH:,} of each kind that "
            "are expected: it is truncated, or not the published file. Delete it and get it again."
        )
    return [text for kind in texts.values() for _, text in sorted(kind.items())]
