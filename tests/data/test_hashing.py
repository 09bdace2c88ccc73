import math
from collections import Counter
from hashlib import blake2b
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plumbline.data.base import Split
from plumbline.data.hashing import SparseRows, hashed, hashing_constant
from plumbline.data.text import corpus, tokens

MASK = 2**64 - 1


def hash_of(word: str) -> int:
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")


def hash_of_pair(first: str, second: str) -> int:
    """splitmix64's finaliser, in Python's whole numbers."""
    z = (hash_of(first) * 0x9E3779B97F4A7C15 + hash_of(second)) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def expected(text: str, bins: int, bigrams: bool) -> dict[int, float]:
    """The features of one text, word by word."""
    words = tokens(text)
    hashes = [hash_of(word) for word in set(words)]
    if bigrams:
        hashes += [hash_of_pair(*pair) for pair in set(pairwise(words))]
    sums: Counter[int] = Counter()
    for value in hashes:
        sums[(value & (MASK >> 1)) % bins] += -1 if value >> 63 else 1
    sums = Counter({place: total for place, total in sums.items() if total})
    norm = math.sqrt(sum(total**2 for total in sums.values()))
    return {place: total / norm for place, total in sums.items()}


def found(rows: SparseRows, number: int) -> dict[int, float]:
    (bins,), (values,) = rows[torch.tensor([number])]
    kept = values != 0
    places = bins[kept].tolist()
    assert len(set(places)) == len(places)
    return dict(zip(places, values[kept].tolist(), strict=True))


TEXTS = ["the cat sat on the mat", "", "cat", "a b a b a", "the mat on the cat " * 3]


@given(
    texts=st.lists(st.text("ab c'é.", max_size=30), max_size=6),
    bins=st.integers(1, 40) | st.just(2**16),
    bigrams=st.booleans(),
)
def test_features_are_those_of_each_text_by_itself(
    texts: list[str], bins: int, bigrams: bool
) -> None:
    rows = hashed(corpus(texts), bins, bigrams=bigrams)
    assert len(rows) == len(texts)
    for number, text in enumerate(texts):
        assert found(rows, number) == pytest.approx(expected(text, bins, bigrams), rel=1e-6)


def test_every_record_has_norm_one() -> None:
    rows = hashed(corpus(TEXTS), 8)
    _, values = rows[torch.arange(5)]
    norms = values.double().square().sum(1)
    torch.testing.assert_close(norms, torch.tensor([1.0, 0, 1, 1, 1]).double())


def test_the_hash_is_the_same_in_every_run() -> None:
    assert found(hashed(corpus(["the"]), 2**16), 0) == {55_902: 1}


def test_pairs_have_an_order_and_end_with_the_text() -> None:
    one, other = (
        hashed(corpus([text]), bigrams=True) for text in ("dog bites man", "man bites dog")
    )
    assert set(found(one, 0)) != set(found(other, 0))
    apart = hashed(corpus(["dog", "man"]), bigrams=True)
    assert len(apart.bins) == 2


def test_the_corpus_is_not_changed() -> None:
    texts = corpus(TEXTS)
    numbers, starts = texts.numbers.copy(), texts.starts.copy()
    hashed(texts, 4, bigrams=True)
    assert (texts.numbers == numbers).all()
    assert (texts.starts == starts).all()


def test_batches_are_padded_and_no_wider_than_the_longest_record() -> None:
    rows = hashed(corpus(TEXTS))
    bins, values = rows[torch.tensor([2, 0])]
    assert bins.shape == values.shape == (2, 5) == (2, rows.width)
    assert bins.dtype == torch.int64
    assert (bins[0, 1:] == 0).all()
    assert (values[0, 1:] == 0).all()
    assert rows[torch.arange(0)][0].shape == (0, 5)


def test_some_of_the_records() -> None:
    rows = hashed(corpus(TEXTS), bigrams=True)
    few = rows.select(torch.tensor([4, 1, 0, 0]))
    assert [found(few, k) for k in range(4)] == [found(rows, k) for k in (4, 1, 0, 0)]
    assert few.width == rows.width
    assert len(rows.select(torch.arange(0))) == 0


def test_as_the_x_of_a_part() -> None:
    part = Split(hashed(corpus(TEXTS)), torch.arange(5))
    (bins, values), y = part.fetch(torch.tensor([1, 3]))
    assert (bins.shape, values.shape, y.tolist()) == ((2, 5), (2, 5), [1, 3])
    loader = torch.utils.data.DataLoader(part, batch_size=2)
    (bins, values), y = next(iter(loader))
    assert (bins.shape, values.shape, y.tolist()) == ((2, 5), (2, 5), [0, 1])


def test_memory_is_that_of_the_words() -> None:
    texts = [f"word{k} word{k + 1} word{k + 2}" for k in range(1000)]
    assert hashed(corpus(texts), 2**16).nbytes < 40 * 1000  # dense, it would be 262 MB


@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_no_words_at_all(texts: list[str]) -> None:
    rows = hashed(corpus(texts), 16, bigrams=True)
    bins, values = rows[torch.arange(len(texts))]
    assert bins.tolist() == values.tolist() == [[0]] * len(texts)


def test_what_the_statement_says() -> None:
    constant = hashing_constant(2**16, True)
    assert str(constant) == (
        "the hashing of words and pairs of words into 65,536 bins: public constants"
    )
    with pytest.raises(ValueError, match="bins is 0"):
        hashed(corpus([]), 0)
