"""What noise correlated between steps gives, by arithmetic, and what its bands cost a step.

`python -m benchmarks.correlated_noise` prints the error of the weights relative to independent
noise at the same epsilon (delta 1e-5, PLD), by the best of 2, 4, 8 and 14 bands that fit. It writes
the table into docs/correlated-noise.md. `--cost` races steps with some numbers of bands against
steps with independent noise, and writes nothing.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import plumbline as pl
from benchmarks.loop_models import LOOPS
from benchmarks.loops import STEPS, Ours
from benchmarks.report import replace_between
from benchmarks.timing import Pace, Race, Spread
from plumbline.compiled import run_of
from plumbline.mechanism.calibration import Budget
from plumbline.noise import banded, compare

SETTINGS = (  # records, batch, epochs, momentum
    (60_000, 4_096, 30, 0.9),
    (25_000, 4_000, 20, 0.9),
    (20_000, 1_024, 30, 0.9),
    (23_512, 512, 20, 0.0),
)
EPSILONS, BANDS = (1, 3, 8), (2, 4, 8, 14)
PAGE = Path(__file__).resolve().parents[1] / "docs" / "correlated-noise.md"
COSTS = (4, 8, 16)


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
    """By how much bands lengthen a step of the MLP with 91,138 parameters, whole loops."""
    workload = LOOPS["mlp"]
    with tempfile.TemporaryDirectory() as folder, run_of(STEPS):
        runs = {
            bands: Ours(workload, pl.methods.dpsgd(clip=1.0), _made(folder, bands), **noise)
            for bands in (1, *COSTS)
            for noise in [{"noise": banded(bands)} if bands > 1 else {}]
        }
        for run in runs.values():  # memory is new in a run's first steps
            for _ in range(max(COSTS)):
                run.step()
        alone = runs.pop(1)
        race = Race(alone.step, {f"{b} bands": run.step for b, run in runs.items()}, Pace(rounds=9))
        for number in range(9):
            race.round(number)
    for name, times in race.times.items():
        spread = Spread.of(times.ratios)
        print(
            f"{name}: a step takes {spread.median - 1:.0%} longer "
            f"({spread.low - 1:.0%} to {spread.high - 1:.0%}) than with independent noise"
        )


def _made(folder: str, bands: int) -> Path:
    path = Path(folder) / str(bands)
    path.mkdir()
    return path


if __name__ == "__main__":
    sys.exit(main())
