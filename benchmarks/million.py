"""A table of a million rows and a hundred columns: `python -m benchmarks.million`.

Records a second of training, ours (as `plumbline train` runs it: Poisson batches, ledger, secure
noise) beside Opacus with its own loader, the same MLP and batch, interleaved. The rows are made up;
reading the file is not timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import warnings
from pathlib import Path

from benchmarks import loops, machine
from benchmarks.loops import MODES, Opacus, Ours, Plain
from benchmarks.models import Workload
from benchmarks.timing import Pace, Race

import torch  # isort: skip  (after the cores are chosen)
from torch import nn  # isort: skip

import plumbline as pl

HERE = Path(__file__).resolve().parent
COLUMNS, MARK = 100, 2.0


def network() -> nn.Module:
    """100-64-32-2 with ReLU."""
    return nn.Sequential(
        nn.Linear(COLUMNS, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2)
    )


def inputs(size: int, generator: torch.Generator) -> torch.Tensor:
    """Rows of a table, `[size, 100]`."""
    return torch.randn(size, COLUMNS, generator=generator)


def main() -> None:
    """Prints records a second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--batch", type=int, default=1024)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    loops.RECORDS = arguments.rows // arguments.batch
    load = Workload("table", "table", network, arguments.batch, inputs, 2)
    with tempfile.TemporaryDirectory() as scratch:
        ours = Ours(load, pl.methods.dpsgd(clip=1.0), Path(scratch))
        others = {"ours": ours.step, **{mode: Opacus(load, mode).step for mode in MODES}}
        race = Race(Plain(load).step, others, Pace(rounds=5))
        for number in range(5):
            race.round(number)
    found = {
        name: arguments.batch / statistics.median(times.seconds)
        for name, times in race.times.items()
    }
    best = max(found[mode] for mode in MODES)
    results = {
        "machine": machine.describe(),
        "rows_per_second": found,
        "ratio": found["ours"] / best,
    }
    (HERE / "results" / "million.json").write_text(json.dumps(results, indent=2) + "\n")
    for name, speed in found.items():
        print(f"{name:<10} {speed:>10,.0f} records a second")
    print(f"ours against Opacus' best: {found['ours'] / best:.2f} (mark: at least {MARK:g})")


if __name__ == "__main__":
    main()
