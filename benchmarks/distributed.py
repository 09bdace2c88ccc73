"""`python -m benchmarks.distributed`: records per second of two ranks against one.

Each rank is a process of one thread; the network is the benchmark's CNN, the run secure and without
a ledger (which one rank writes, however many there are). Slots are interleaved as in `timing`: one
rank, two ranks, one rank, two *independent* runs of one rank, and so on, and a ratio is taken to
the neighbouring slots of one rank. What two runs reach that know nothing of each other is the
ceiling: two hyperthreads of one core, or a shared memory bus, allow no more.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.timing import Spread

TARGET = 1.6
STEPS = 1_000_000  # more than a benchmark makes


def rank_of_run(
    pipe: Connection, rank: int, ranks: int, meeting: str, model: str, size: int
) -> None:
    """One process: makes as many steps as it is on_progress, and says how long they took."""
    import torch
    import torch.distributed as dist

    import plumbline as pl
    from benchmarks.contestants import Settings
    from benchmarks.models import WORKLOADS

    torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=ranks)
    workload = WORKLOADS[model]
    network = workload.model()
    private = pl.make_private(
        network,
        torch.optim.SGD(network.parameters(), 0.01),
        workload.batch(8 * size),
        loss=torch.nn.CrossEntropyLoss(reduction="none"),
        method=pl.methods.dpsgd(clip=Settings().clip),
        budget=pl.Budget(
            noise_multiplier=1.0,
            delta=1e-6,
            steps=STEPS,
            expected_batch_size=size,
        ),
    )
    batches = iter(private)
    while steps := pipe.recv():
        start = time.perf_counter()
        for _ in range(steps):
            private.step(next(batches))
        pipe.send(time.perf_counter() - start)


class Team:
    """Some processes that work at the same time.

    Args:
        size: How many.
        together: Whether they are the ranks of one run, or runs of their own.
        folder: Where they meet.
        model: Which workload.
        batch: How many records a step has, in expectation.
    """

    def __init__(self, size: int, together: bool, folder: Path, model: str, batch: int) -> None:
        self._runs = 1 if together else size
        self._pipes: list[Connection] = []
        spawn = multiprocessing.get_context("spawn")
        meeting = str(folder / f"meeting-{size}-{together}")
        self._processes = []
        for rank in range(size):
            here, there = spawn.Pipe()
            ranks = size if together else 1
            arguments = (there, rank, ranks, meeting, model, batch)
            process = spawn.Process(target=rank_of_run, args=arguments, daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)

    def steps_per_second(self, steps: int) -> float:
        """Of all runs together, over ``steps`` steps of each."""
        for pipe in self._pipes:
            pipe.send(steps)
        return self._runs * steps / max(pipe.recv() for pipe in self._pipes)

    def end(self) -> None:
        """Ends the processes."""
        for pipe in self._pipes:
            pipe.send(0)
        for process in self._processes:
            process.join()


@contextmanager
def teams(model: str, batch: int) -> Iterator[dict[str, Team]]:
    """One rank, two ranks, and two runs of one rank."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        made = {
            "one rank": Team(1, True, Path(folder), model, batch),
            "two ranks": Team(2, True, Path(folder), model, batch),
            "two runs": Team(2, False, Path(folder), model, batch),
        }
        yield made
        for team in made.values():
            team.end()


def main(arguments: Sequence[str] | None = None) -> None:
    """Race, print, write down."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.distributed", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="rounds of the race")
    parser.add_argument("--steps", type=int, default=25, help="steps of one slot")
    parser.add_argument("--model", default="cnn", help="the workload")
    parser.add_argument(
        "--batch", type=int, help="records in a step; the workload's own if not said"
    )
    options = parser.parse_args(arguments)
    batch = options.batch or _size(options.model)
    with teams(options.model, batch) as racing:
        for team in racing.values():
            team.steps_per_second(5)  # kernels are measured in the first steps
        neighbours = machine.Neighbours()
        alone = [racing["one rank"].steps_per_second(options.steps)]
        ratios: dict[str, list[float]] = {"two ranks": [], "two runs": []}
        for _ in range(options.rounds):
            for name, found in ratios.items():
                speed = racing[name].steps_per_second(options.steps)
                alone.append(racing["one rank"].steps_per_second(options.steps))
                found.append(2 * speed / (alone[-2] + alone[-1]))
        busy = neighbours.cores()
    report(options.model, batch, alone, ratios, busy)


def _size(model: str) -> int:
    from benchmarks.models import WORKLOADS

    return WORKLOADS[model].batch_size


def report(
    model: str, batch: int, alone: list[float], ratios: dict[str, list[float]], busy: float | None
) -> None:
    """Prints the ratios with their spread, and keeps them."""
    speed = batch * statistics.median(alone)
    print(machine.sentence(machine.describe()))
    print(f"{model}, batches of {batch}, one rank of one thread: {speed:,.0f} records/s")
    found: dict[str, Any] = {"records per second of one rank": speed}
    for name, values in ratios.items():
        spread = Spread.of(values)
        found[name] = {"ratio": spread.median, "low": spread.low, "high": spread.high}
        note = f"; mark {TARGET}" if name == "two ranks" else ", which is the ceiling"
        print(f"{name}: {spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f}){note}")
    print(f"of the ceiling: {found['two ranks']['ratio'] / found['two runs']['ratio']:.0%}")
    if busy is not None:
        print(f"cores busy on average, these processes included: {busy:.2f}")
    out = Path(__file__).parent / "results"
    out.mkdir(exist_ok=True)
    path = out / "distributed.json"
    kept = json.loads(path.read_text()) if path.is_file() else {}
    kept[f"{model}, batches of {batch}"] = found
    path.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
