"""Word vectors for a vocabulary that need no training: GloVe's, or fixed random ones.

Both are public: the first were computed from other texts, the second from a seed. A data set looks
words up in them (``load("imdb", vectors="random")``), so that the model sees vectors.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from plumbline.checks import check_count
from plumbline.data.files import DataError, reading
from plumbline.data.text import PADDING, Vocabulary


def random_vectors(vocabulary: Vocabulary, width: int, seed: int = 0) -> Tensor:
    """Fixed random vectors, ``[len(vocabulary), width]``, of about unit norm; padding is zero."""
    check_count("width", width)
    generator = torch.Generator("cpu").manual_seed(seed)
    vectors = torch.randn(len(vocabulary), width, generator=generator) / math.sqrt(width)
    vectors[PADDING] = 0
    return vectors


def glove_vectors(vocabulary: Vocabulary, path: str | os.PathLike[str]) -> Tensor:
    """The vocabulary's vectors from a GloVe text file, ``[len(vocabulary), width]``.

    Words that are not in the file, padding and the unknown word are zero.

    Args:
        vocabulary: The words to look for.
        path: A text file with a word and its numbers in each line, such as ``glove.6B.100d.txt``.

    Raises:
        DataError: If a line has a different number of numbers than the first, or none of the words
            is there.
    """
    source = Path(path)
    places = {word: number for number, word in enumerate(vocabulary.words, 2)}
    found: dict[int, list[str]] = {}
    width = 0
    with reading(None, source), source.open(encoding="utf-8") as stream:
        for row, line in enumerate(stream, 1):
            word, *numbers = line.rstrip().split(" ")
            width = width or len(numbers)
            if len(numbers) != width or not numbers:
                raise DataError(
                    f"Line {row} of {source} has {len(numbers)} numbers after the word where the "
                    f"first line has {width}: it is damaged, or no GloVe text file."
                )
            if word in places:
                found.setdefault(places[word], numbers)
    if not found:
        raise DataError(f"{source} has none of the {len(vocabulary.words):,} words.")
    vectors = torch.zeros(len(vocabulary), width)
    try:
        rows = np.array(list(found.values()), np.float64)
    except ValueError as error:
        raise DataError(f"{source} is no GloVe text file: {error}.") from error
    if not (np.abs(rows) <= np.finfo(np.float32).max).all():  # nor is NaN
        raise DataError(f"{source} has numbers that are not finite: it is damaged.")
    vectors[torch.tensor(list(found))] = torch.from_numpy(rows.astype(np.float32))
    return vectors
