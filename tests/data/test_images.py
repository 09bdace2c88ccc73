import numpy as np
import pytest
import torch

from plumbline.data.images import Mapped, Pixels


@pytest.fixture
def whole() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (12, 3, 2, 4), np.uint8)


@pytest.fixture
def mapped(whole: np.ndarray) -> Mapped:
    return Mapped([whole[:5], whole[5:6], whole[6:]])


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(torch.tensor([11, 0, 5, 5, 4, 6]), id="numbers-of-several-blocks"),
        pytest.param(torch.tensor([], dtype=torch.int64), id="none"),
        pytest.param(torch.arange(12) % 3 == 0, id="mask"),
        pytest.param(slice(3, 8), id="slice"),
        pytest.param(slice(None), id="everything"),
        pytest.param(5, id="one"),
        pytest.param(-1, id="the-last"),
    ],
)
def test_it_is_indexed_like_a_tensor(mapped: Mapped, whole: np.ndarray, index: object) -> None:
    expected = torch.from_numpy(whole)[index]
    assert torch.equal(mapped[index], expected)
    assert mapped.shape == whole.shape
    assert len(mapped) == 12


def test_a_record_that_is_not_there_is_refused(mapped: Mapped) -> None:
    with pytest.raises(IndexError):
        mapped[torch.tensor([12])]


def test_a_selection_of_a_selection(mapped: Mapped, whole: np.ndarray) -> None:
    some = mapped.select(torch.tensor([9, 2, 5, 7])).select(torch.tensor([3, 1]))
    assert torch.equal(some[:], torch.from_numpy(whole[[7, 2]]))


def test_what_is_fetched_is_a_copy(mapped: Mapped, whole: np.ndarray) -> None:
    before = whole.copy()
    mapped[:].zero_()
    assert np.array_equal(whole, before)


def test_pixels_are_in_the_unit_interval_or_normalised() -> None:
    rows = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 3, 1, 1)
    assert Pixels()(rows).flatten().tolist() == pytest.approx([0, 0.2, 1])
    assert rows.flatten().tolist() == [0, 51, 255]
    normalised = Pixels((0.1, 0.2, 0.5), (0.1, 0.2, 0.25))(rows)
    assert normalised.flatten().tolist() == pytest.approx([-1, 0, 2], abs=1e-6)
