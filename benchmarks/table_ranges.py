"""How often the range of a numeric column is found privately, and how many of its numbers it holds.

`python -m benchmarks.table_ranges`: columns of 6,400 training rows, under the noise that thirteen
columns get at an epsilon, by single bins (the rule before) and by windows of bins.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
import torch
from scipy import special
from torch import Tensor

from plumbline.data.table_counts import NUMBERS
from plumbline.data.table_plan import plan_table
from plumbline.experiments.noisy_ranges import held_bins
from plumbline.experiments.private_schema import SchemaQuestion

ROWS, COLUMNS, TRIALS = 6_400, 13, 400


def columns(draw: np.random.Generator) -> dict[str, np.ndarray]:
    """Numbers as tables have them."""
    return {
        "age (18 to 95)": draw.integers(18, 96, ROWS).astype(float),
        "days of a stay (exponential, mean 5)": draw.exponential(5, ROWS) + 0.2,
        "a lab value (mean 5, deviation 1.5)": draw.normal(5, 1.5, ROWS),
        "visits (most of them 0)": np.floor(draw.exponential(1.25, ROWS)),
        "income (log-normal)": draw.lognormal(8, 1.2, ROWS),
        "nothing": np.full(ROWS, np.nan),
    }


def single_bins(noisy: Tensor, std: float) -> Tensor:
    """The bins that pass the noise by themselves."""
    return noisy > -float(special.ndtri(1e-3 / len(noisy))) * std


def noise_at(epsilon: float) -> float:
    """The noise of a feature's counts."""
    frame = pd.DataFrame({str(place): [0] for place in range(COLUMNS)})
    question = SchemaQuestion.about(plan_table(frame, target="0"), epsilon=epsilon, delta=1e-6)
    assert question is not None
    return question.std("1")


def main() -> None:
    """Prints a line for each column and rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", type=float, default=1.0)
    std, draw = noise_at(parser.parse_args().epsilon), np.random.default_rng(0)
    print(f"noise of a count: {std:.0f}; {TRIALS} trials\n{'column':38} rule     found  covered")
    for name, numbers in columns(draw).items():
        known = numbers[~np.isnan(numbers)]
        exact = torch.from_numpy(np.bincount(NUMBERS.of(known), minlength=len(NUMBERS))).double()
        for rule, held_by in (("bins", single_bins), ("windows", held_bins)):
            covered = []
            for _ in range(TRIALS):
                noisy = exact + std * torch.from_numpy(draw.standard_normal(len(exact)))
                places = held_by(noisy, std).nonzero().flatten().tolist()
                if places:
                    low, high = NUMBERS.ends(places[0])[0], NUMBERS.ends(places[-1])[1]
                    inside = (known >= low) & (known <= high)
                    covered.append(float(inside.mean()) if len(known) else 0.0)
            share = f"{100 * np.mean(covered):6.0f} %" if covered else "       -"
            print(f"{name:38} {rule:8}{100 * len(covered) / TRIALS:5.1f} % {share}")


if __name__ == "__main__":
    main()
