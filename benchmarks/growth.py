"""How a step's time and memory grow: `python -m benchmarks.growth`.

Whole loops of an MLP of two hidden layers, ours and Opacus' ghost clipping (its fastest mode for
it), interleaved: over batch sizes at 10^5 parameters, and over parameters at a batch of 512. Fitted
is the exponent of time against size, by least squares of the logarithms; for batches from 512 on,
where a step is more than its overhead. Memory is the peak extra memory of one step of the engine.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import warnings
from pathlib import Path
from typing import Any

from benchmarks import machine

machine.pin()

import torch  # noqa: E402  (after the cores are chosen)
from torch import nn  # noqa: E402

import plumbline as pl  # noqa: E402
from benchmarks.loops import Opacus, Ours, Plain  # noqa: E402
from benchmarks.models import Workload  # noqa: E402
from benchmarks.report import replace_between  # noqa: E402
from benchmarks.timing import Pace, Race  # noqa: E402

HERE = Path(__file__).resolve().parent
BATCHES = (64, 256, 512, 1024, 2048, 4096, 8192)
WIDTHS = {10**4: 68, 10**5: 276, 10**6: 957, 10**7: 3120}
INPUTS = 64
PACE = Pace(rounds=5, slot=0.2, warm_up=0.5, patience=15.0)


def workload(batch: int, parameters: int) -> Workload:
    """An MLP with about so many parameters."""
    width = WIDTHS[parameters]

    def network() -> nn.Module:
        return nn.Sequential(
            nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, 2),
        )  # fmt: skip

    def inputs(size: int, generator: torch.Generator) -> torch.Tensor:
        return torch.randn(size, INPUTS, generator=generator)

    return Workload("mlp", "MLP", network, batch, inputs, 2)


def measured(load: Workload, folder: Path) -> dict[str, float]:
    """Milliseconds of a step: plain, ours, Opacus."""
    warnings.filterwarnings("ignore")  # Opacus has many, and we are not testing it
    ours = Ours(load, pl.methods.dpsgd(clip=1.0), folder)
    others = {"ours": ours.step, "opacus": Opacus(load, "ghost").step}
    race = Race(Plain(load).step, others, PACE)
    for number in range(PACE.rounds):
        race.round(number)
    found = {"plain": statistics.median(race.baseline_seconds)}
    found |= {name: statistics.median(times.seconds) for name, times in race.times.items()}
    return {name: 1e3 * seconds for name, seconds in found.items()}


def exponent(sizes: list[int], times: list[float]) -> float:
    """The slope of log time against log size."""
    x, y = [math.log(size) for size in sizes], [math.log(time) for time in times]
    slope, _ = statistics.linear_regression(x, y)
    return slope


def table(name: str, rows: dict[str, dict[str, float]], least: int) -> str:
    """One direction of growth."""
    lines = [f"| {name} | plain, ms | ours, ms | Opacus ghost, ms |", "|" + " --- |" * 4]
    for size, found in rows.items():
        cells = (f"{found[who]:.2f}" for who in ("plain", "ours", "opacus"))
        lines.append(f"| {int(size):,} | " + " | ".join(cells) + " |")
    large = {int(size): found for size, found in rows.items() if int(size) >= least}
    slopes = (
        f"{exponent(list(large), [found[who] for found in large.values()]):.2f}"
        for who in ("plain", "ours", "opacus")
    )
    lines.append(f"| exponent, from {least:,} | " + " | ".join(slopes) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measures both directions and writes them down."""
    results: dict[str, Any] = {"machine": machine.describe(), "batch": {}, "parameters": {}}
    with tempfile.TemporaryDirectory() as scratch:
        for number, batch in enumerate(BATCHES):
            folder = Path(scratch) / f"b{number}"
            folder.mkdir()
            results["batch"][str(batch)] = measured(workload(batch, 10**5), folder)
            print("batch", batch, results["batch"][str(batch)], flush=True)
        for parameters in WIDTHS:
            folder = Path(scratch) / f"p{parameters}"
            folder.mkdir()
            results["parameters"][str(parameters)] = measured(workload(512, parameters), folder)
            print("parameters", parameters, results["parameters"][str(parameters)], flush=True)
    (HERE / "results" / "growth.json").write_text(json.dumps(results, indent=2) + "\n")
    text = "\n\n".join(
        (
            table("batch, at 10^5 parameters", results["batch"], 512),
            table("parameters, at a batch of 512", results["parameters"], 10**5),
            f"Machine: {machine.sentence(results['machine'])}.\n",
        )
    )
    replace_between(HERE.parent / "docs" / "performance.md", "growth", text)
    print(text)


if __name__ == "__main__":
    main()
