"""Flat clipping: the factors, and the contract that adding or removing a record is bounded by C."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from plumbline.clipping import Flat
from plumbline.gradients import capture

SLACK = 1 + 1e-5  # float32 rounds each clipped gradient, and sums them
TRICKS = ("scaled", "nan", "inf", "zero", "duplicate", "tiny", "opposite", "one-nan", "as-it-is")


def adversary(trick: str, records: Tensor, generator: torch.Generator) -> Tensor:
    """A record made to move the sum as far as it can, ``[d]``."""
    kind = records[0] if len(records) else torch.randn(records.shape[1:], generator=generator)
    changed = {
        "scaled": kind * 1e6,
        "nan": torch.full_like(kind, float("nan")),
        "inf": torch.full_like(kind, float("inf")),
        "zero": torch.zeros_like(kind),
        "duplicate": kind.clone(),
        "tiny": kind * 1e-30,
        "opposite": -1e3 * kind,
        "as-it-is": torch.randn(kind.shape, generator=generator),
    }
    if trick == "one-nan":
        value = kind.clone()
        value.view(-1)[0] = float("nan")
        return value
    return changed[trick]


def neighbours(
    count: int, width: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor, str]]:
    """Pairs of record sets that differ by one record, and how."""
    for number in range(count):
        trick = TRICKS[number % len(TRICKS)]
        size = int(torch.randint(0, 6, (), generator=generator))
        scale = 10.0 ** float(torch.empty(()).uniform_(-3, 3, generator=generator))
        records = scale * torch.randn(size, width, generator=generator)
        other = adversary(trick, records, generator)[None]
        # Added to what is there; or removed, which is the same pair seen from the other side, from
        # a set in which another adversary stays.
        if number % 2:
            records = torch.cat([records, adversary(TRICKS[number % 7], records, generator)[None]])
        yield records, torch.cat([other, records]), f"{trick}, {size} records of size {scale:.2g}"


def clipped(clipping: Flat, gradients: Tensor) -> Tensor:
    """The sum of the clipped rows, as the engine makes it: a factor of zero takes no part."""
    factors = clipping.safe_factors(gradients.norm(dim=1), gradients.sum(1))
    used = factors != 0
    return (factors[used, None] * gradients[used]).sum(0)


@pytest.mark.parametrize("clip", [1e-4, 0.5, 1.0, 300.0])
def test_one_record_moves_the_sum_by_at_most_the_sensitivity(clip: float) -> None:
    clipping = Flat(clip)
    generator = torch.Generator().manual_seed(0)
    farthest = 0.0
    for without, with_one, what in neighbours(1500, 5, generator):
        gap = float((clipped(clipping, with_one) - clipped(clipping, without)).double().norm())
        assert gap <= clipping.sensitivity * SLACK, what
        farthest = max(farthest, gap)
    assert farthest > 0.999 * clipping.sensitivity  # the bound is reached: it is not a loose one


def test_a_replaced_record_moves_it_by_at_most_twice_that() -> None:
    clipping = Flat(1.0)
    generator = torch.Generator().manual_seed(1)
    farthest = 0.0
    for _, one, what in neighbours(1500, 5, generator):
        if len(one) < 2:
            continue
        other = torch.cat([-1e4 * one[1:2], one[1:]])
        gap = float((clipped(clipping, other) - clipped(clipping, one)).double().norm())
        assert gap <= 2 * clipping.sensitivity * SLACK, what
        farthest = max(farthest, gap)
    assert farthest > 1.99


def test_the_same_through_a_model() -> None:
    """Inputs made by the adversary, gradients by the engine."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))
    clipping = Flat(0.7)

    def total(records: Tensor) -> Tensor:
        if not len(records):
            return torch.zeros(sum(p.numel() for p in model.parameters()))
        found = capture(model, lambda: model(records)[:, 0].square(), records=len(records))
        summed = found.sum(clipping.safe_factors(found.norms(), found.losses))
        return torch.cat([part.flatten() for part in summed.values()])

    generator = torch.Generator().manual_seed(2)
    farthest = 0.0
    for without, with_one, what in neighbours(300, 4, generator):
        change = total(with_one) - total(without)
        assert torch.isfinite(change).all(), what
        gap = float(change.double().norm())
        assert gap <= clipping.sensitivity * SLACK, what
        farthest = max(farthest, gap)
    assert farthest > 0.99 * clipping.sensitivity


def test_the_factors() -> None:
    norms = torch.tensor([0.0, 0.25, 0.5, 1.0, 4.0, 1e30])
    expected = torch.tensor([1.0, 1.0, 1.0, 0.5, 0.125, 5e-31])
    torch.testing.assert_close(Flat(0.5).factors(norms), expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_norm_or_a_bad_loss_gives_a_factor_of_zero(bad: float) -> None:
    norms, losses = torch.tensor([bad, 1.0, 2.0]), torch.tensor([1.0, bad, 1.0])
    assert Flat(1.0).safe_factors(norms, losses).tolist() == [0.0, 0.0, 0.5]


def test_no_records() -> None:
    assert Flat(1.0).safe_factors(torch.zeros(0), torch.zeros(0)).shape == (0,)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, math.inf])
def test_the_bound_must_be_positive_and_finite(clip: float) -> None:
    with pytest.raises(ValueError, match=f"clip is {clip}; it must be a positive finite number"):
        Flat(clip)


def test_it_carries_no_state() -> None:
    assert Flat(1.0).state_dict() == {}
    Flat(1.0).load_state_dict({})
    with pytest.raises(ValueError, match=r"Flat carries no state, but \['bound'\] was stored"):
        Flat(1.0).load_state_dict({"bound": 3})
