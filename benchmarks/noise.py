"""What secure noise costs: drawn and added, beside `torch.randn` for as many values.

`python -m benchmarks.noise` times in turn, in one process on two cores:

- *randn*: `torch.randn`, float32: fast noise that is neither secure nor on a grid, and not added;
- *draw*: as many values of the discrete Gaussian from a new secure stream, kept nowhere;
- *both*: the same, drawn while it is added to a float32 gradient, as a step does;
- *float64*: the same for a float64 gradient, as sums over records are;
- *numpy*: the same as *both* without compiled loops, as where numba cannot be imported.

Reported are the median over rounds, the least, and the ratio to `torch.randn` of each. Target: both
at most 2.0 of randn by the median, for every number of values.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from benchmarks import machine

machine.pin()

import torch  # noqa: E402  (after the cores are chosen)

from benchmarks.report import replace_between  # noqa: E402
from plumbline.mechanism import discrete_gaussian, noise, noise_loops  # noqa: E402
from plumbline.mechanism.random_source import SecureSource  # noqa: E402

COUNTS = 100_000, 1_000_000, 1_860_000, 10_000_000
VALUES, LEAST, WARM_UP = 100_000_000, 15, 3  # values in all the rounds of a count; rounds
TARGET = 2.0
PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
SOURCE = SecureSource()


def draw(n: int) -> None:
    """The noise alone."""
    threads = torch.get_num_threads()
    discrete_gaussian.each_block(SOURCE.once("noise"), n, lambda *_: None, threads)


def add(gradient: torch.Tensor) -> None:
    """The noise on a gradient."""
    noise.add_noise({"gradient": gradient}, 0.1, SOURCE.once("noise"))


def add_in_numpy(gradient: torch.Tensor) -> None:
    """The same without numba."""
    with mock.patch.object(discrete_gaussian, "_compiled_loops", return_value=noise_loops):
        add(gradient)


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Prints a line for each number of values, and which are beyond the target."""
    neighbours = machine.Neighbours()
    beyond = []
    lines = [
        "| values | randn, ms | drawn and added to float32, ms (ratio) | to float64 sums |",
        "| --- | --- | --- | --- |",
    ]
    print("milliseconds: median (least), then the ratio of each to randn")
    for n in COUNTS:
        gradient = 0.01 * torch.randn(n)
        wide = gradient.double()
        ways: dict[str, Callable[[], object]] = {
            "randn": lambda n=n: torch.randn(n),
            "draw": lambda n=n: draw(n),
            "both": lambda gradient=gradient: add(gradient),
            "float64": lambda wide=wide: add(wide),
            "numpy": lambda gradient=gradient: add_in_numpy(gradient),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(WARM_UP + max(LEAST, min(VALUES // n, 300))):
            for name, way in ways.items():
                took = seconds(way)
                if number >= WARM_UP:
                    times[name].append(took)
        print(f"{n:>10,} values")
        plain = times["randn"]
        for name, own in times.items():
            median, least = statistics.median(own), min(own)
            ratio, least_ratio = median / statistics.median(plain), least / min(plain)
            print(
                f"    {name:8} {1e3 * median:8.2f} ({1e3 * least:7.2f})"
                f"   {ratio:5.2f} ({least_ratio:5.2f})"
            )
            if name == "both" and ratio > TARGET:
                beyond.append(f"{n:,}")
        medians = {name: statistics.median(own) for name, own in times.items()}
        cells = [
            f"{1e3 * medians[name]:.2f} ({medians[name] / medians['randn']:.2f})"
            for name in ("both", "float64")
        ]
        lines.append(f"| {n:,} | {1e3 * medians['randn']:.2f} | " + " | ".join(cells) + " |")
    others = neighbours.cores()
    if others is not None:
        print(f"other processes kept {others:.2f} cores busy")
    replace_between(PAGE, "noise", "\n".join(lines) + "\n")
    if beyond:
        print("beyond the target:", ", ".join(beyond))


if __name__ == "__main__":
    main()
