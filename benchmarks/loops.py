"""Whole training loops, as users run them: `python -m benchmarks.loops`.

Each contestant draws its own batches from the same records, fetches them and steps:

- *plain*: batches of shuffled rows of tensors, forward, backward, SGD;
- *ours*: what `make_private` gives: Poisson batches, records kept apart by construction, secure
  noise, every step charged to a ledger on the disk (50 ahead, as `plumbline train` does);
- *Opacus*: `PrivacyEngine.make_private` with its own loader and accountant, in three modes. Its
  secure mode needs a package that does not install here: its noise is torch's ordinary one.

Interleaved in one process as in `timing.py`; ratios to the plain loop.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import machine

machine.pin()

import torch  # noqa: E402  (after the cores are chosen)
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import plumbline as pl  # noqa: E402
from benchmarks.contestants import Settings  # noqa: E402
from benchmarks.loop_models import LOOPS, Lstm  # noqa: E402
from benchmarks.models import Workload  # noqa: E402
from benchmarks.report import QUIET, replace_between  # noqa: E402
from benchmarks.timing import Pace, Race, Spread  # noqa: E402

HERE = Path(__file__).resolve().parent
RECORDS = 20  # of the data set, for each record of a batch
STEPS = 10**6
MODES = ("hooks", "functorch", "ghost")

MARKS: dict[str, tuple[float, float, float]] = {
    "table": (3.0, 5.5, 0.5),
    "wide": (1.5, 2.7, 0.75),
    "mlp": (1.6, 3.2, 0.6),
    "cnn": (1.25, 2.4, 0.8),
    "vgg": (1.35, 2.8, 0.85),
    "resnet": (1.3, 2.7, 0.75),
    "transformer": (1.25, 2.5, 0.75),
    "vit": (1.25, 2.5, 0.9),
    "lstm": (2.0, 4.5, 0.35),
    "lora": (1.25, 2.5, 0.9),
}
"""Of issue 19: DP-SGD and BAM against the plain loop, DP-SGD against Opacus' best, at most."""

console = Console(width=120)


class Plain:
    """An ordinary loop over shuffled rows of tensors."""

    def __init__(self, workload: Workload) -> None:
        self.model = workload.model()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(trained, lr=Settings().learning_rate)
        self.x, self.y = workload.batch(RECORDS * workload.batch_size)
        self.batches = self._batches(workload.batch_size)

    def step(self) -> None:
        """One batch."""
        x, y = next(self.batches)
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()

    def _batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            for index in torch.randperm(len(self.y)).split(size):
                yield self.x[index], self.y[index]


class Ours:
    """`make_private`, with a ledger and secure noise."""

    def __init__(self, workload: Workload, method: Any, folder: Path, **options: Any) -> None:
        self.model = workload.model()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.private = pl.make_private(
            self.model,
            torch.optim.SGD(trained, lr=Settings().learning_rate),
            workload.batch(RECORDS * workload.batch_size),
            loss=nn.CrossEntropyLoss(reduction="none"),
            method=method,
            budget=pl.Budget(
                noise_multiplier=1.0,
                delta=1e-6,
                steps=STEPS,
                expected_batch_size=workload.batch_size,
            ),
            ledger=pl.Ledger.open(folder / method.name, reserve=50),
            **options,
        )
        self.batches = iter(self.private)

    def step(self) -> None:
        """One private step."""
        self.private.step(next(self.batches))


class Opacus:
    """Opacus as its users set it up."""

    def __init__(self, workload: Workload, mode: str) -> None:
        from opacus import PrivacyEngine
        from opacus.layers import DPLSTM

        from benchmarks.contestants.opacus_modes import opacus_network

        if workload.name == "lstm":
            model = Lstm(DPLSTM).train()
        else:
            model = opacus_network(workload.model())
        trained = [p for p in model.parameters() if p.requires_grad]
        data = torch.utils.data.TensorDataset(*workload.batch(RECORDS * workload.batch_size))
        engine = PrivacyEngine()
        made: tuple[Any, ...] = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(trained, lr=Settings().learning_rate),
            data_loader=torch.utils.data.DataLoader(data, batch_size=workload.batch_size),
            criterion=nn.CrossEntropyLoss(),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            grad_sample_mode=mode,
        )
        self.model, self.optimizer = made[0], made[1]
        self.loss = made[2] if mode == "ghost" else nn.CrossEntropyLoss()
        self.batches = itertools.chain.from_iterable(itertools.repeat(made[-1]))

    def step(self) -> None:
        """The usual loop's body."""
        x, y = next(self.batches)
        self.optimizer.zero_grad()
        self.loss(self.model(x), y).backward()
        self.optimizer.step()


def race(workload: Workload, pace: Pace, folder: Path) -> dict[str, Any]:
    """One network: each contestant's ratios, or why it could not run."""
    warnings.filterwarnings("ignore")  # Opacus has many, and we are not testing it
    makers = {
        "dp-sgd": lambda: Ours(workload, pl.methods.dpsgd(clip=1.0), folder),
        "bam": lambda: Ours(workload, pl.methods.bam(clip=1.0, radius=0.02), folder),
        **{f"opacus-{mode}": lambda mode=mode: Opacus(workload, mode) for mode in MODES},
    }
    steps, found = {}, {}
    for name, make in makers.items():
        try:
            contestant = make()
            contestant.step()
            steps[name] = contestant.step
        except Exception as error:  # a contestant that cannot run is a result
            found[name] = {"failure": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    running = Race(Plain(workload).step, steps, pace)
    neighbours = machine.Neighbours()
    for number in range(pace.rounds):
        running.round(number)
    for name, times in running.times.items():
        spread = Spread.of(times.ratios)
        found[name] = {
            "ratio": spread.median, "low": spread.low, "high": spread.high,
            "ms": 1e3 * statistics.median(times.seconds), "ratios": times.ratios,
        }  # fmt: skip
    return {
        "plain_ms": 1e3 * statistics.median(running.baseline_seconds),
        "others_cores": neighbours.cores(),
        "contestants": found,
    }


def best_of_opacus(contestants: dict[str, Any]) -> float | None:
    """Ours over Opacus' fastest mode."""
    known = [c["ratio"] for name, c in contestants.items() if "opacus" in name and "ratio" in c]
    ours = contestants["dp-sgd"].get("ratio")
    return ours / min(known) if known and ours else None


def markdown(results: dict[str, Any]) -> str:
    """The table of loops, one row a network, marks beside what was measured."""
    lines = [
        "| network | plain, ms | DP-SGD | mark | BAM | mark | Opacus hooks | functorch | ghost | "
        "DP-SGD / Opacus' best | mark |",
        "|" + " --- |" * 11,
    ]
    for name, found in results["networks"].items():
        own, marks = found["contestants"], MARKS[name]
        ratio = best_of_opacus(own)
        cells = [
            f"{LOOPS[name].title}, B {LOOPS[name].batch_size}",
            f"{found['plain_ms']:.1f}",
            _cell(own["dp-sgd"], marks[0]),
            f"{marks[0]:g}",
            _cell(own["bam"], marks[1]),
            f"{marks[1]:g}",
            *(_cell(own[f"opacus-{mode}"]) for mode in MODES),
            "" if ratio is None else _bold(f"{ratio:.2f}", ratio <= marks[2]),
            f"{marks[2]:g}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    failures = [
        f"- {name} on {LOOPS[network].title}: {one['failure']}"
        for network, found in results["networks"].items()
        for name, one in found["contestants"].items()
        if "failure" in one
    ]
    parts = [
        "Whole loops (sampling, fetching, step, noise, ledger) as a ratio to a plain loop of the "
        "same run, median over rounds; bold where a mark is reached.",
        "\n".join(lines),
        *(["Did not run:\n\n" + "\n".join(failures)] if failures else []),
        f"Machine: {machine.sentence(results['machine'])}.",
    ]
    rough = max((found["others_cores"] or 0) for found in results["networks"].values())
    if rough > QUIET:
        parts.append(
            f"**Not a quiet machine**: other processes took up to {rough:.1f} cores meanwhile."
        )
    return "\n\n".join(parts) + "\n"


def _cell(one: dict[str, Any], mark: float | None = None) -> str:
    if "ratio" not in one:
        return "failed"
    return _bold(f"{one['ratio']:.2f}", mark is not None and one["ratio"] <= mark)


def _bold(text: str, reached: bool) -> str:
    return f"**{text}**" if reached else text


def main() -> None:
    """Races the loops and writes the table; one network at a time with `--models`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(LOOPS))
    parser.add_argument("--rounds", type=int, default=Pace.rounds)
    arguments = parser.parse_args()
    chosen = arguments.models.split(",")
    kept = HERE / "results" / "loops.json"
    results: dict[str, Any] = {"machine": machine.describe(), "networks": {}}
    if kept.exists() and (before := json.loads(kept.read_text()))["machine"] == results["machine"]:
        results["networks"] = before["networks"]  # networks that are not chosen stay
    with tempfile.TemporaryDirectory() as scratch:
        for name in chosen:
            folder = Path(scratch) / name
            folder.mkdir()
            found = race(LOOPS[name], Pace(arguments.rounds), folder)
            results["networks"][name] = found
            shown = {k: _cell(one) for k, one in found["contestants"].items()}
            console.print(name, f"{found['plain_ms']:.2f} ms", shown, highlight=False)
    kept.write_text(json.dumps(results, indent=2) + "\n")
    replace_between(HERE.parent / "README.md", "loops", markdown(results))
    console.print(markdown(results), highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
