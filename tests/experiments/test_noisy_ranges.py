"""Ranges by noisy counts: spread-out numbers are found, and noise alone makes none."""

import pytest
import torch

from plumbline.data.table_counts import NUMBERS
from plumbline.experiments.noisy_ranges import deviations, held_bins

BINS, STD = len(NUMBERS), 10.0


def noise(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return STD * torch.randn(BINS, generator=generator, dtype=torch.float64)


def test_noise_alone_holds_nothing() -> None:
    held = sum(bool(held_bins(noise(seed), STD).any()) for seed in range(2000))
    assert held <= 8  # one in a thousand at most: two are expected


def test_numbers_in_one_bin_are_found_there() -> None:
    exact = torch.zeros(BINS, dtype=torch.float64)
    exact[50] = 20 * STD
    assert held_bins(exact, STD).nonzero().flatten().tolist() == [50]


@pytest.mark.parametrize("spread", [4, 8])
def test_numbers_spread_over_bins_are_found_together(spread: int) -> None:
    """No bin passes by itself: each has 70 % of what it would need."""
    exact = torch.zeros(BINS, dtype=torch.float64)
    exact[100 : 100 + spread] = 0.7 * deviations(BINS) * STD
    covered = []
    for seed in range(50):
        held = held_bins(exact + noise(seed), STD)
        covered.append(float(held[100 : 100 + spread].double().mean()))
        assert int(held.sum()) <= spread + 4
    assert sum(covered) / len(covered) > 0.8


def test_a_bin_beside_others_needs_to_stand_out_little() -> None:
    exact = torch.zeros(BINS, dtype=torch.float64)
    exact[60:63] = torch.tensor([2.0, 30.0, 1.0]) * STD
    exact[80] = 2.0 * STD  # as much, and beside nothing
    assert held_bins(exact, STD).nonzero().flatten().tolist() == [60, 61]
