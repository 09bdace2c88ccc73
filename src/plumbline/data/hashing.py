"""Hashed text features (Weinberger et al. 2009): no vocabulary, so nothing learned from the texts.

A word (or a pair of neighbouring words) in a text adds +1 or -1 to one of the bins, both given by a
fixed hash of the word; each record then has norm 1. Records stay sparse: a batch is the bins and
values that are not zero, padded to one width, which ``models.hashed`` takes as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from plumbline.checks import check_count
from plumbline.data.base import Constant
from plumbline.data.table_cells import bins_of, hash_of
from plumbline.data.text import Corpus

_Hashes = NDArray[np.uint64]
_Numbers = NDArray[np.integer[Any]]


class SparseRows:
    """Sparse records; the bins of a record are all different.

    Attributes:
        bins: The bins of all records, one after the other, int32.
        values: Their values, float32.
        starts: Where each record starts, and the end: ``[n + 1]`` of int64.
        width: The number of bins that a fetched record is padded to; padding has the value 0.
    """

    row_by_row = True

    def __init__(self, bins: Tensor, values: Tensor, starts: Tensor, width: int) -> None:
        self.bins, self.values, self.starts, self.width = bins, values, starts, width

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Records ``index`` (``[R]``): bins ``[R, width]`` of int64, and values ``[R, width]``."""
        places = self.starts[index][:, None] + torch.arange(self.width)
        there = places < self.starts[index + 1][:, None]
        places = torch.where(there, places, 0)
        if not len(self.bins):
            return torch.zeros_like(places), places.to(self.values.dtype)
        bins = self.bins[places].long().masked_fill_(~there, 0)
        return bins, self.values[places].masked_fill_(~there, 0)

    def select(self, index: Tensor) -> SparseRows:
        """These records only."""
        lengths = (self.starts[1:] - self.starts[:-1])[index]
        starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        shift = (self.starts[index] - starts[:-1]).repeat_interleave(lengths)
        places = shift + torch.arange(len(shift))
        return SparseRows(self.bins[places], self.values[places], starts, self.width)

    @property
    def nbytes(self) -> int:
        """The memory that the records take."""
        return self.bins.nbytes + self.values.nbytes + self.starts.nbytes


def hashed(texts: Corpus, bins: int = 2**16, *, bigrams: bool = False) -> SparseRows:
    """Signed hashing of the words that occur in each text, at unit norm.

    Args:
        texts: The texts.
        bins: The number of bins.
        bigrams: Whether pairs of neighbouring words count as words too.
    """
    check_count("bins", bins)
    words = len(texts.words)
    hashes = np.array([hash_of(word) for word in texts.words], np.uint64)
    starts, found = _once(texts.numbers, texts.starts, words)
    total = _binned(starts, hashes[found], bins)
    if bigrams:
        starts, found = _once(*_pairs(texts), words**2)
        first, second = np.divmod(found, max(1, words))
        total = total + _binned(starts, _mixed(hashes[first], hashes[second]), bins)
    total.eliminate_zeros()  # where two words cancelled
    lengths = np.diff(total.indptr)
    norms = np.sqrt((total * total).sum(1))
    values = total.data / np.repeat(norms, lengths)
    return SparseRows(
        torch.from_numpy(total.indices.astype(np.int32)),
        torch.from_numpy(values.astype(np.float32)),
        torch.from_numpy(total.indptr.astype(np.int64)),
        width=max(1, int(lengths.max(initial=0))),
    )


def hashing_constant(bins: int, bigrams: bool) -> Constant:
    """The hashing, as the privacy statement names it."""
    what = "words and pairs of words" if bigrams else "words"
    return Constant(f"the hashing of {what} into {bins:,} bins", "public")


def _once(numbers: _Numbers, starts: _Numbers, kinds: int) -> tuple[_Numbers, _Numbers]:
    """Each text's numbers without duplicates: where each text starts, and the numbers."""
    ones = np.ones(len(numbers), np.int8)
    # Copy the starts: they are changed in place below.
    content = ones, numbers.astype(np.int64), starts.astype(np.int64)
    table = csr_array(content, shape=(len(starts) - 1, kinds))
    table.sum_duplicates()
    return table.indptr, table.indices


def _pairs(texts: Corpus) -> tuple[_Numbers, _Numbers]:
    """The pairs of neighbouring words of each text as numbers, and where each text starts."""
    numbers = texts.numbers.astype(np.int64)
    lengths = np.diff(texts.starts)
    owner = np.repeat(np.arange(len(texts)), lengths)
    pairs = numbers[:-1] * len(texts.words) + numbers[1:]
    starts = np.concatenate([[0], np.cumsum(np.maximum(lengths - 1, 0))])
    return pairs[owner[:-1] == owner[1:]], starts


def _binned(starts: _Numbers, hashes: _Hashes, bins: int) -> Any:
    """The sums of the signs in each text's bins, a sparse array ``[n, bins]``."""
    places, signs = bins_of(hashes, bins)
    table = csr_array((signs, places, starts.astype(np.int64)), shape=(len(starts) - 1, bins))
    table.sum_duplicates()
    return table


def _mixed(first: _Hashes, second: _Hashes) -> _Hashes:
    """A hash of two hashes in their order: the finaliser of splitmix64 (Steele et al. 2014)."""
    mixed = first * np.uint64(0x9E3779B97F4A7C15) + second
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
