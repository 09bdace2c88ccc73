"""Texts as numbers: words found once, then looked up in a vocabulary or hashed.

A ``Corpus`` holds the words of many texts as numbers into a list of all words that occur. That list
is bookkeeping and reaches no model: what a model sees goes through a ``Vocabulary``, which says
where it comes from, or through ``hashing``, which needs none.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plumbline.checks import check_count
from plumbline.data.base import Constant, Splits
from plumbline.data.files import DataError, reading
from plumbline.data.table_cells import tokens

PADDING, UNKNOWN = 0, 1
_SPECIAL = 2  # words are numbered from here

# Part of the key of cached corpora: change it whenever ``table_cells.tokens`` changes.
TOKENISER = "lower case, runs of letters and digits, apostrophes inside; html breaks dropped"


@dataclass(frozen=True, eq=False)
class Corpus:
    """The words of many texts.

    Attributes:
        words: Every word that occurs, once.
        numbers: The words of all texts, one after the other, as positions in ``words``: int32.
        starts: Where each text starts in ``numbers``, and the end: ``[n + 1]`` of int64.
    """

    words: Sequence[str]
    numbers: NDArray[np.int32]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def part(self, first: int, last: int) -> Corpus:
        """The texts from ``first`` up to, but not including, ``last``."""
        starts = self.starts[first : last + 1]
        return Corpus(self.words, self.numbers[starts[0] : starts[-1]], starts - starts[0])


def corpus(texts: Iterable[str]) -> Corpus:
    """Finds the words of texts."""
    places = _Places()
    numbers, starts = array("i"), array("q", [0])
    for text in texts:
        numbers.extend(map(places.__getitem__, tokens(text)))
        starts.append(len(numbers))
    return Corpus(list(places), np.array(numbers, np.int32), np.array(starts, np.int64))


class _Places(dict[str, int]):
    """The position of each word, in the order in which they were first looked up."""

    def __missing__(self, word: str) -> int:
        self[word] = place = len(self)
        return place


@dataclass(frozen=True)
class Vocabulary:
    """The words that a model knows, and where the list comes from.

    A word's number is its place plus 2: 0 is padding and 1 is every other word.

    Attributes:
        words: The words.
        constant: Where they come from.
    """

    words: tuple[str, ...]
    constant: Constant

    def __len__(self) -> int:
        """How many numbers there are: words, padding and the unknown word."""
        return len(self.words) + _SPECIAL

    @classmethod
    def from_training(cls, texts: Corpus, size: int) -> Vocabulary:
        """The ``size`` most frequent words of the training texts: epsilon does not cover these."""
        check_count("size", size)
        counts = np.bincount(texts.numbers, minlength=len(texts.words)).tolist()
        seen = [(-count, word) for count, word in zip(counts, texts.words, strict=True) if count]
        words = tuple(word for _, word in sorted(seen)[:size])
        return cls(words, Constant(f"the vocabulary of {len(words):,} frequent words", "training"))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], size: int | None = None) -> Vocabulary:
        """A public list: the first word of each line, as in GloVe's text files.

        Args:
            path: The file, in UTF-8.
            size: The most words to use, from the top; None for all.
        """
        source = Path(path)
        words: dict[str, None] = {}
        with reading(None, source), source.open(encoding="utf-8") as stream:
            for line in stream:
                if size is not None and len(words) == size:
                    break
                if word := line.split(maxsplit=1)[:1]:
                    words[word[0].lower()] = None
        if not words:
            raise DataError(f"{source} has no words; it must have one at the start of each line.")
        what = f"the vocabulary of {len(words):,} words from {source.name}"
        return cls(tuple(words), Constant(what, "public"))

    def encode(self, texts: Corpus, length: int) -> Tensor:
        """The first ``length`` words of each text by number, padded: ``[n, length]`` of int64."""
        check_count("length", length)
        known = {word: number for number, word in enumerate(self.words, _SPECIAL)}
        table = np.array([known.get(word, UNKNOWN) for word in texts.words], np.int64)
        places = texts.starts[:-1, None] + np.arange(length)
        there = places < texts.starts[1:, None]
        encoded = np.full(there.shape, PADDING, np.int64)
        encoded[there] = table[texts.numbers[places[there]]]
        return torch.from_numpy(encoded)


@dataclass(frozen=True, eq=False)
class TextSplits(Splits):
    """A data set of texts as word numbers.

    Attributes:
        vocabulary: Which number is which word.
    """

    vocabulary: Vocabulary | None = None
