import pytest
import torch

from plumbline.data.encoding import check_one_of, codes, one_hot, split, to_unit_range
from plumbline.data.files import DataError


def test_codes_are_places() -> None:
    assert codes(["b", "a", "b"], ["a", "b", "c"], "letter").tolist() == [1, 0, 1]
    assert codes([], ["a"], "letter").shape == (0,)


def test_one_hot() -> None:
    assert one_hot(["b", "a"], ["a", "b", "c"], "letter").tolist() == [[0, 1, 0], [1, 0, 0]]


def test_an_unknown_value_is_named_with_its_row() -> None:
    with pytest.raises(DataError, match=r"'letter' has a value in row 3 that is none of its 12\."):
        codes(["a", "b", "x", "y"], list("abcdefghijkl"), "letter")


def test_ranges_become_the_unit_range() -> None:
    column = torch.tensor([0, 10, 15, 20, 30])
    assert to_unit_range(column, (10, 20)).tolist() == [-1, -1, 0, 1, 1]
    assert to_unit_range(torch.tensor([5.0, 5.0]), (5, 5)).tolist() == [0, 0]


def test_a_split_has_every_record_once_and_depends_on_the_seed_only() -> None:
    def parts(seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        return [part.tolist() for part in split(1001, 0.2, generator)]

    train, test = parts(0)
    assert (len(train), len(test)) == (801, 200)
    assert sorted(train + test) == list(range(1001))
    assert parts(0) == [train, test]
    assert parts(1) != [train, test]


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 20])
def test_a_test_fraction_is_a_fraction(fraction: float) -> None:
    with pytest.raises(ValueError, match=rf"test_fraction is {fraction!r}; it must be between"):
        split(10, fraction, torch.Generator())


def test_options_are_named() -> None:
    check_one_of("scaling", "a", ("a", "b"))
    with pytest.raises(ValueError, match="scaling is 'c'; it must be one of 'a', 'b'"):
        check_one_of("scaling", "c", ("a", "b"))
