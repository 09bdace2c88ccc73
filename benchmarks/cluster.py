"""`python -m benchmarks.cluster`: what a step of one run costs on N machines, by arithmetic.

Nothing is timed here. Bytes follow from what processes exchange: whole numbers of 8 bytes, in a
ring, where each machine sends and receives 2 (N - 1) / N times the sum, which no algorithm of an
all-reduce can better. The times of noise and of gradients come from this repository's measurements
of one machine (`benchmarks.noise`, `benchmarks.where`); the networks' speeds are assumed. Writes
the tables of docs/distributed.md.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.report import replace_between
from plumbline.mechanism.shared_noise import shares_rounding_sensitivity

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "distributed.md"
PARAMETERS = (10**6, 10**8, 10**9)
MACHINES = (2, 8, 64)
NETWORKS = (10, 100)  # gigabits per second, in each direction at once
HOP = 50e-6  # seconds of a message between two machines, however short
MEETINGS = 2  # of a step: before it is charged, and before its sum
WORD, WEIGHT = 8, 4  # bytes: of a whole number on the grid, of a weight in float32
HELD = 2 * WORD + 2 * WEIGHT  # a share and its copy in the sum; weights and the exact gradient
OPERATIONS = 6  # for each weight and position (a token, a pixel): forward, and twice backward
ASSUMED = 50e12  # operations per second of a fast accelerator


def sent(parameters: int, machines: int, *, sharded: bool = False) -> float:
    """Bytes that each machine sends in a step, and as many that it receives.

    With shards, sums are only scattered, which is half of it, and weights are gathered.
    """
    others = (machines - 1) / machines
    return others * parameters * (WORD + WEIGHT if sharded else 2 * WORD)


def network_seconds(parameters: int, machines: int, gigabits: float) -> float:
    """How long the exchanges of a step take: by bytes, and by messages one after the other."""
    hops = (2 + MEETINGS) * (machines - 1)
    return sent(parameters, machines) * 8 / (gigabits * 1e9) + hops * HOP


def noise_seconds(parameters: int) -> float:
    """How long a machine draws its share of the noise: one value for each parameter."""
    rows = (ROOT / "docs" / "performance.md").read_text().partition("<!-- noise:begin -->")[2]
    last = rows.partition("<!-- noise:end -->")[0].strip().splitlines()[-1]
    values, _, _, taken = (cell.strip() for cell in last.strip("|").split("|"))
    return parameters * float(taken.split()[0]) / 1e3 / int(values.replace(",", ""))


def measured_speed() -> float:
    """Operations per second of the machine that was measured."""
    found = json.loads((ROOT / "benchmarks" / "results" / "where.json").read_text())
    return float(found["speed"])


def even(gigabits: float, speed: float, machines: int) -> float:
    """Positions in a machine's share whose gradients take as long as the bytes; for any model."""
    return sent(1, machines) * 8 / (gigabits * 1e9) * speed / OPERATIONS


def costs() -> str:
    """What a step costs beside its gradients."""
    heads = ["parameters", "machines", "each sends", "sharded"]
    heads += [*(f"at {one} Gbit/s" for one in NETWORKS), "noise", "rounding", "memory"]
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join(['---:'] * len(heads))} |"]
    for parameters in PARAMETERS:
        for machines in MACHINES:
            both = (sent(parameters, machines, sharded=cut) for cut in (False, True))
            cells = [f"{parameters:,}", f"{machines}", *map(_bytes, both)]
            cells += [_time(network_seconds(parameters, machines, one)) for one in NETWORKS]
            extra = shares_rounding_sensitivity(1.0, parameters, machines)
            cells += [_time(noise_seconds(parameters)), f"{extra:.0e}", _bytes(HELD * parameters)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def limits() -> str:
    """From how many positions on the gradients take longer than the exchange."""
    machines = MACHINES[-1]
    speeds = {"the machine that was measured": measured_speed(), "assumed": ASSUMED}
    networks = " | ".join(f"at {one} Gbit/s" for one in NETWORKS)
    lines = [
        f"| operations per second of a machine | {networks} |",
        "| --- | " + " | ".join(["---:"] * len(NETWORKS)) + " |",
    ]
    for whose, speed in speeds.items():
        cells = [f"{even(one, speed, machines):,.0f}" for one in NETWORKS]
        lines.append(f"| {speed / 1e9:,.0f} billion ({whose}) | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _bytes(count: float) -> str:
    unit, name = (1e9, "GB") if count >= 1e9 else (1e6, "MB")
    return f"{count / unit:.1f} {name}"


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"


def main() -> None:
    """Prints both tables and writes them into the page."""
    for name, text in (("cluster", costs()), ("network", limits())):
        print(text)
        replace_between(PAGE, name, text)


if __name__ == "__main__":
    main()
