"""What noise correlated between steps gives, by arithmetic, and what its bands cost a step.

`python -m benchmarks.correlated_noise` prints the error of the weights relative to independent
noise at the same epsilon (delta 1e-5, PLD), by the best of 2, 4, 8 and 14 bands that fit. It writes
the table into docs/correlated-noise.md. `--cost` times a row and its decoding beside the noise that
is added to it, for some numbers of bands and parameters, and writes nothing.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import torch

from benchmarks.report import replace_between
from plumbline.mechanism.calibration import Budget
from plumbline.mechanism.correlated import Correlated
from plumbline.mechanism.noise import add_noise
from plumbline.mechanism.random_source import SecureSource
from plumbline.noise import banded, compare

SETTINGS = (  # records, batch, epochs, momentum
    (60_000, 4_096, 30, 0.9),
    (25_000, 4_000, 20, 0.9),
    (20_000, 1_024, 30, 0.9),
    (23_512, 512, 20, 0.0),
)
EPSILONS, BANDS = (1, 3, 8), (2, 4, 8, 14)
PAGE = Path(__file__).resolve().parents[1] / "docs" / "correlated-noise.md"
ROUNDS = 30


def main() -> int:
    """Prints and writes the table; with `--cost`, prints times."""
    if "--cost" in sys.argv[1:]:
        cost()
        return 0
    lines = [
        "| setting | " + " | ".join(f"epsilon {one}" for one in EPSILONS) + " |",
        "| --- |" + " --- |" * len(EPSILONS),
    ]
    for records, batch, epochs, momentum in SETTINGS:
        cells = []
        for epsilon in EPSILONS:
            budget = Budget(epsilon=epsilon, delta=1e-5, epochs=epochs, expected_batch_size=batch)
            # Independent noise is the measure, not one of the choices.
            _, *rest = compare(budget, records, bands=BANDS, momentum=momentum)
            least = min(rest, key=lambda one: one.error)
            cells.append(f"{least.error:.2f} ({least.bands} bands)")
        words = f"{records:,} records, batch {batch:,}, {epochs} epochs, momentum {momentum:g}"
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    replace_between(PAGE, "bands", "\n".join([*lines, ""]))
    return 0


def cost() -> None:
    """Milliseconds of one row: of the noise alone, and of mixing and decoding beside it."""
    for numel in (100_000, 1_000_000):
        for bands in (4, 16, 64):
            correlated, source = Correlated(banded(bands).coefficients(1000)), SecureSource()
            value = {"w": torch.zeros(numel, dtype=torch.float64)}
            mixing, adding = [], []
            for step in range(ROUNDS):
                start = time.perf_counter()
                row = correlated.row(value, 1.0, step)
                mixed = time.perf_counter()
                noisy = add_noise(row, 1.0, source.once("noise"))
                added = time.perf_counter()
                correlated.decoded(noisy, value, step)
                mixing.append(mixed - start + time.perf_counter() - added)
                adding.append(added - mixed)
            print(
                f"{numel:,} parameters, {bands} bands: {1e3 * statistics.median(mixing):.2f} ms "
                f"beside {1e3 * statistics.median(adding):.2f} ms of noise"
            )


if __name__ == "__main__":
    sys.exit(main())
