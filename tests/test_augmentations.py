import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.augmentations import Augmentation, Chain, Flip, Shift
from plumbline.record_random import Draws

CHAIN = Chain(Flip(), Shift(3), Shift(1))
ALL = [
    pytest.param(Shift(3), id="shift"),
    pytest.param(Flip(), id="flip"),
    pytest.param(CHAIN, id="chain"),
    pytest.param(Chain(), id="empty chain"),
]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.uint8]


def pictures(rows: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Any pixels, but whole numbers below 256, which every dtype here holds: [rows, 3, 7, 8]."""
    return torch.randint(0, 256, (rows, 3, 7, 8), device=device).to(dtype)


def streams(numbers: Tensor, key: str = "views") -> Draws:
    return Draws(numbers, key)


def slow_shift(image: Tensor, draws: Draws, pixels: int) -> Tensor:
    top, left = draws.integers(2 * pixels + 1, 2)[0].tolist()
    padded = F.pad(image.double(), (pixels,) * 4, mode="reflect").to(image.dtype)
    return padded[:, :, top : top + image.shape[2], left : left + image.shape[3]]


def slow_flip(image: Tensor, draws: Draws, probability: float) -> Tensor:
    return image.flip(3) if draws.uniform().item() < probability else image


def counts(views: Tensor, allowed: list[Tensor]) -> Tensor:
    """How many of the views equal each of the allowed ones, which differ; fails if one is none."""
    equal = (views[:, None] == torch.stack(allowed)).flatten(2).all(2)
    assert (equal.sum(1) == 1).all()
    return equal.sum(0)


def assert_equally_likely(found: Tensor) -> None:
    """No count farther from its mean than 4.5 of its standard deviations, and chi-square within 5
    of its own; with the fixed keys used here that is so once and for all.
    """
    rows, kinds = int(found.sum()), len(found)
    mean = rows / kinds
    deviation = (found.double() - mean) / (mean * (1 - 1 / kinds)) ** 0.5
    assert deviation.abs().max() < 4.5
    chi_square = float(((found - mean) ** 2 / mean).sum())
    assert abs(chi_square - (kinds - 1)) < 5 * (2 * (kinds - 1)) ** 0.5


def numbered(rows: int, height: int, width: int, device: torch.device) -> Tensor:
    """The same picture in each row, no two of whose pixels are equal: [rows, 1, height, width]."""
    pixels = torch.arange(height * width, device=device, dtype=torch.float32)
    return pixels.view(1, 1, height, width).expand(rows, -1, -1, -1)


class TestAgainstOneRowAtATime:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("pixels", [0, 1, 4, 6])
    def test_shift(self, pixels: int, dtype: torch.dtype, device: torch.device) -> None:
        images, numbers = pictures(40, device, dtype), torch.arange(40, device=device)
        views = Shift(pixels)(images, streams(numbers))
        slow = [slow_shift(images[[i]], streams(numbers[[i]]), pixels) for i in range(40)]
        assert views.dtype == dtype
        assert torch.equal(views, torch.cat(slow))

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("probability", [0.2, 0.5])
    def test_flip(self, probability: float, dtype: torch.dtype, device: torch.device) -> None:
        images, numbers = pictures(40, device, dtype), torch.arange(40, device=device)
        views = Flip(probability)(images, streams(numbers))
        slow = [slow_flip(images[[i]], streams(numbers[[i]]), probability) for i in range(40)]
        assert views.dtype == dtype
        assert torch.equal(views, torch.cat(slow))

    def test_chain_is_in_order_and_from_one_stream(self, device: torch.device) -> None:
        images, numbers = pictures(40, device), torch.arange(40, device=device)
        slow = []
        for i in range(40):
            draws = streams(numbers[[i]])
            view = slow_flip(images[[i]], draws, 0.5)
            view = slow_shift(view, draws, 3)
            slow.append(slow_shift(view, draws, 1))
        assert torch.equal(CHAIN(images, streams(numbers)), torch.cat(slow))


class TestWhatIsDrawn:
    def test_every_shift_is_equally_likely_and_there_is_no_other(
        self, device: torch.device
    ) -> None:
        rows = torch.arange(10_000, device=device)
        views = Shift(2)(numbered(10_000, 4, 5, device), streams(rows))
        padded = F.pad(numbered(1, 4, 5, device), (2, 2, 2, 2), mode="reflect")[0]
        allowed = [
            padded[:, top : top + 4, left : left + 5]
            for top, left in itertools.product(range(5), repeat=2)
        ]
        assert_equally_likely(counts(views, allowed))

    @pytest.mark.parametrize("probability", [0.5, 0.1])
    def test_flips_have_their_probability(self, probability: float, device: torch.device) -> None:
        rows = torch.arange(10_000, device=device)
        image = numbered(1, 2, 3, device)[0]
        views = Flip(probability)(numbered(10_000, 2, 3, device), streams(rows))
        flipped = int(counts(views, [image, image.flip(2)])[1])
        deviation = (10_000 * probability * (1 - probability)) ** 0.5
        assert abs(flipped - 10_000 * probability) < 4.5 * deviation

    def test_the_parts_of_a_chain_draw_independently(self, device: torch.device) -> None:
        rows = torch.arange(10_000, device=device)
        views = Chain(Flip(), Shift(1))(numbered(10_000, 4, 5, device), streams(rows))
        image = numbered(1, 4, 5, device)
        allowed = [
            F.pad(start, (1, 1, 1, 1), mode="reflect")[0, :, top : top + 4, left : left + 5]
            for start in (image, image.flip(3))
            for top, left in itertools.product(range(3), repeat=2)
        ]
        assert_equally_likely(counts(views, allowed))

    def test_never_and_always_flipped(self, device: torch.device) -> None:
        images, numbers = pictures(200, device), torch.arange(200, device=device)
        assert torch.equal(Flip(0)(images, streams(numbers)), images)
        assert torch.equal(Flip(1)(images, streams(numbers)), images.flip(3))

    def test_the_least_draw_does_not_flip_what_is_never_flipped(self, device: torch.device) -> None:
        class Zeros(Draws):
            def uniform(self, *shape: int) -> Tensor:
                return torch.zeros(len(self), *shape, device=device)

        images = pictures(4, device)
        zeros = Zeros(torch.arange(4, device=device), "key")
        assert torch.equal(Flip(0)(images, zeros), images)

    def test_what_leaves_nothing_to_chance_keeps_the_images(self, device: torch.device) -> None:
        images, numbers = pictures(9, device), torch.arange(9, device=device)
        for augmentation in (Shift(0), Chain()):
            assert torch.equal(augmentation(images, streams(numbers)), images)

    def test_the_key_and_the_position_in_the_stream_choose_the_view(
        self, device: torch.device
    ) -> None:
        images, numbers = pictures(9, device), torch.arange(9, device=device)
        draws = streams(numbers, "step 1")
        first, second = Shift(3)(images, draws), Shift(3)(images, draws)
        other = Shift(3)(images, streams(numbers, "step 2"))
        assert torch.equal(first, Shift(3)(images, streams(numbers, "step 1")))
        assert not torch.equal(first, second)
        assert not torch.equal(first, other)


class TestARowAlone:
    @pytest.mark.parametrize("augmentation", ALL)
    def test_a_view_depends_on_its_own_number_only(
        self, augmentation: Augmentation, device: torch.device
    ) -> None:
        images, numbers = pictures(8, device), torch.arange(100, 108, device=device)
        whole = augmentation(images, streams(numbers))
        for part in ([2, 5], [5, 2], [7], [3, 3], [0, 1, 2, 3, 4, 5, 6]):
            alone = augmentation(images[part], streams(numbers[part]))
            assert torch.equal(alone, whole[part])

    def test_views_of_a_record_differ_and_depend_on_it_alone(self, device: torch.device) -> None:
        images, numbers = pictures(6, device), torch.arange(6, device=device)

        def views(rows: list[int]) -> Tensor:
            draws = streams(numbers[rows]).repeat(16)
            return Shift(3)(images[rows].repeat_interleave(16, 0), draws).unflatten(0, (-1, 16))

        whole = views([0, 1, 2, 3, 4, 5])
        assert torch.equal(views([4, 1]), whole[[4, 1]])
        # 16 of 49 shifts: about 13.8 different ones are expected.
        assert all(len(record.unique(dim=0)) >= 10 for record in whole)

    @pytest.mark.parametrize("augmentation", ALL)
    def test_nothing_else_is_touched(
        self, augmentation: Augmentation, device: torch.device
    ) -> None:
        images, numbers = pictures(8, device), torch.arange(8, device=device)
        before, generator = images.clone(), torch.get_rng_state()
        views = augmentation(images, streams(numbers))
        views.zero_()  # would show in the images if they shared memory
        assert torch.equal(images, before)
        assert torch.equal(torch.get_rng_state(), generator)

    @pytest.mark.parametrize("augmentation", ALL)
    def test_how_the_images_lie_in_memory_does_not_matter(
        self, augmentation: Augmentation, device: torch.device
    ) -> None:
        images, numbers = pictures(8, device), torch.arange(8, device=device)
        expected = augmentation(images, streams(numbers))
        for same in (
            images.to(memory_format=torch.channels_last),
            images.transpose(2, 3).contiguous().transpose(2, 3),
            images.repeat(2, 1, 1, 1)[:8],
        ):
            assert torch.equal(augmentation(same, streams(numbers)), expected)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
    @pytest.mark.parametrize("augmentation", ALL)
    def test_no_rows(
        self, augmentation: Augmentation, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = augmentation(pictures(1, device), streams(torch.arange(1, device=device))).shape
        views = augmentation(pictures(0, device, dtype), streams(torch.arange(0, device=device)))
        assert views.shape == (0, *shape[1:])
        assert views.dtype == dtype

    def test_draws_on_another_device_are_the_same(self, device: torch.device) -> None:
        images, numbers = pictures(8, device), torch.arange(8)
        views = CHAIN(images, streams(numbers.to(device)))
        assert views.device.type == device.type
        assert torch.equal(CHAIN(images, streams(numbers)), views)


class TestErrors:
    @pytest.mark.parametrize("pixels", [-1, 1.5, 4.0, True, "4", None])
    def test_pixels(self, pixels: object) -> None:
        with pytest.raises(
            ValueError, match=r"pixels is .*; it must be a whole number, at least 0"
        ):
            Shift(pixels)  # type: ignore[arg-type]

    @pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan"), True, "0.5", None])
    def test_probability(self, probability: object) -> None:
        with pytest.raises(ValueError, match=r"probability is .* must be a number in \[0, 1\]"):
            Flip(probability)  # type: ignore[arg-type]

    @pytest.mark.parametrize("part", [[Flip(), Shift()], Shift, None])
    def test_parts_of_a_chain(self, part: object) -> None:
        with pytest.raises(ValueError, match=r"Chain was given .*as in Chain\(Flip\(\), Shift"):
            Chain(Flip(), part)  # type: ignore[arg-type]

    def test_a_shift_beyond_the_reflection(self, device: torch.device) -> None:
        draws = streams(torch.arange(2, device=device))
        with pytest.raises(ValueError, match="pixels is 7, but the images are 7 x 8"):
            Shift(7)(pictures(2, device), draws)

    @pytest.mark.parametrize("augmentation", ALL)
    def test_images_without_a_row_dimension(
        self, augmentation: Augmentation, device: torch.device
    ) -> None:
        draws = streams(torch.arange(3, device=device))
        with pytest.raises(ValueError, match=r"shape \(3, 7, 8\).*image\[None\]"):
            augmentation(pictures(1, device)[0], draws)

    @pytest.mark.parametrize("augmentation", ALL)
    def test_other_rows_drawn_than_given(
        self, augmentation: Augmentation, device: torch.device
    ) -> None:
        draws = streams(torch.arange(3, device=device))
        with pytest.raises(ValueError, match=r"2 images and draws for 3 rows.*draws\.repeat\(K\)"):
            augmentation(pictures(2, device), draws)

    def test_settings_cannot_be_changed_unchecked(self) -> None:
        for augmentation, name in (
            (Shift(), "pixels"),
            (Flip(), "probability"),
            (Chain(), "parts"),
        ):
            with pytest.raises(AttributeError):
                setattr(augmentation, name, -1)
        assert Chain(Flip(), Shift(2)) == Chain(Flip(0.5), Shift(2)) != Chain(Shift(2), Flip())
