"""What each method's step costs, as a ratio to our own plain DP-SGD step.

`python -m benchmarks.methods` races the methods' own step programs on the benchmark's CNN and
ResNet-20: gradients, clipping, questions answered with ordinary torch noise, optimizer. It leaves
out sampling, secure noise and the ledger, which are the same for all. Peak extra memory is measured
in a process for each; the table has its ratio to DP-SGD's, the JSON file its ratio to what dense
per-record gradients of the batch (records x parameters) would take.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks import machine

machine.pin()

import torch  # noqa: E402  (after the cores are chosen)
from rich.console import Console  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from benchmarks import memory  # noqa: E402
from benchmarks.contestants import Settings  # noqa: E402
from benchmarks.models import WORKLOADS, Workload  # noqa: E402
from benchmarks.timing import Pace, Race, Spread  # noqa: E402
from plumbline import methods  # noqa: E402
from plumbline.gradients.programs import Programs  # noqa: E402
from plumbline.record_random import OwnGenerators  # noqa: E402
from plumbline.training.batches import PrivateBatch  # noqa: E402
from plumbline.training.losses import per_record  # noqa: E402

BASELINE = "dpsgd"
MODELS = ("cnn", "resnet")
MIB = 2**20
PATIENCE = 60.0  # seconds for a method: the median of fewer than six rounds has no interval


@dataclass(frozen=True)
class Candidate:
    """A method to time, and the mark that its ratio should reach."""

    make: Callable[[], methods.Method]
    mark: float | None = None

    def build(self, workload: Workload, settings: Settings, size: int | None = None) -> MethodStep:
        """The method at work on a batch."""
        return MethodStep(self.make(), workload, settings, size)


CANDIDATES = {
    BASELINE: Candidate(methods.dpsgd),
    "normalised": Candidate(methods.normalised, 1.02),
    "automatic": Candidate(methods.automatic, 1.02),
    "global_scaling": Candidate(methods.global_scaling, 1.02),
    "global_adapt": Candidate(methods.global_adapt, 1.02),
    "adaptive": Candidate(methods.adaptive),
    "per_layer": Candidate(methods.per_layer),
    "dpsgd_f": Candidate(methods.dpsgd_f, 1.05),
    "averaged": Candidate(methods.averaged),
    "dp_sat": Candidate(methods.dp_sat, 1.05),
    "dp_sat_momentum": Candidate(methods.dp_sat_momentum),
    "dp_sam": Candidate(methods.dp_sam, 2.1),
    "bam": Candidate(methods.bam, 2.2),
    "inner_outer": Candidate(methods.inner_outer, 3.2),
    "self_augmented": Candidate(methods.self_augmented, 8.2),
    "pre_clip_noise": Candidate(methods.pre_clip_noise),
    "bam_exact": Candidate(methods.bam_exact),
}


class MethodStep:
    """A method's step program on one fixed batch, its questions answered with torch's noise."""

    def __init__(
        self, method: methods.Method, workload: Workload, settings: Settings, size: int | None
    ) -> None:
        self.model = workload.model()
        self.data = workload.batch(size)
        loss = nn.CrossEntropyLoss(reduction="none")
        self.loss = per_record(loss)
        self.plan: Any = SimpleNamespace(
            noise_multiplier=settings.noise_multiplier,
            expected_batch_size=len(self.data[1]),
            sampling_rate=0.01,
        )
        self.sensitive_features = torch.arange(len(self.data[1])) % 2
        self.record_weights = None
        self.max_physical_batch = None
        self.isolation = "vmap"
        self.generators = OwnGenerators()
        self.programs = Programs(self.model, loss)
        self.method = method
        self.number = 0
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=settings.learning_rate)

    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters by name."""
        return dict(self.model.named_parameters())

    def fetch(self, indices: Tensor, step: int) -> Any:
        """The batch itself where it is whole: fetching records is not what is timed."""
        if len(indices) == len(self.data[1]):
            return self.data
        return tuple(column[indices] for column in self.data)

    def draws_key(self, step: int) -> str:
        """A key for the records' own random numbers."""
        return str(step)

    def step(self) -> None:
        """Ask, answer, update."""
        everyone = torch.arange(len(self.data[1]))
        batch = PrivateBatch(self.number, everyone, everyone, self)
        self.number += 1
        program = self.method.step(batch)
        query = next(program)
        try:
            while True:
                query = program.send(_answered(query))
        except StopIteration as end:
            update: dict[str, Tensor] = end.value
        for name, parameter in self.parameters().items():
            parameter.grad = update[name]
        self.optimizer.step()


def _answered(query: Any) -> dict[str, Tensor]:
    value = query.value if not isinstance(query.value, Tensor) else {"value": query.value}
    noise = torch.randn(sum(part.numel() for part in value.values()))
    noise.mul_(query.sigma * query.sensitivity)
    parts = noise.split([part.numel() for part in value.values()])
    return {
        name: part.view_as(own).add_(own.float())
        for (name, own), part in zip(value.items(), parts, strict=True)
    }


def main() -> None:
    """Race, weigh, print, write down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--methods", nargs="+", default=list(CANDIDATES), choices=CANDIDATES)
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--no-time", action="store_true")
    options = parser.parse_args()
    console = Console(width=120)
    described = machine.describe()
    console.print(machine.sentence(described), highlight=False)
    chosen = [name for name in options.methods if name != BASELINE]
    out = Path(__file__).parent / "results" / "methods"
    # What is measured now replaces what was: a part of the methods can be measured by itself.
    found: dict[str, Any] = {"machine": described, "models": {model: {} for model in MODELS}}
    if out.with_suffix(".json").is_file():
        found |= {"models": json.loads(out.with_suffix(".json").read_text())["models"]}
    # Time first, of all models: weighing takes longer, and a run that is cut short keeps the times.
    for model in [] if options.no_time else options.models:
        with console.status(f"{model}: time"):
            for name, times in _timed(model, chosen, options.rounds).items():
                found["models"][model].setdefault(name, {}).update(times)
        _write(found, out)
        console.print(_table(found), highlight=False)
    for model in [] if options.no_memory else options.models:
        for name in (BASELINE, *chosen):
            with console.status(f"{model}: memory of {name}"):
                part = memory.measure(model, name, timeout=1800) / _dense(model)
            found["models"][model].setdefault(name, {})["memory"] = part
            _write(found, out)
    console.print(_table(found), highlight=False)


def _timed(model: str, chosen: list[str], rounds: int) -> dict[str, Any]:
    """Time ratios to DP-SGD."""
    workload, settings = WORKLOADS[model], Settings()
    steps = {name: CANDIDATES[name].build(workload, settings).step for name in chosen}
    baseline = CANDIDATES[BASELINE].build(workload, settings)
    race = Race(baseline.step, steps, Pace(rounds, patience=PATIENCE))
    for number in range(rounds):
        race.round(number)
    spreads = {name: Spread.of_median(times.ratios) for name, times in race.times.items()}
    return {
        name: {"ratio": spread.median, "low": spread.low, "high": spread.high}
        for name, spread in spreads.items()
    }


def _dense(model: str) -> float:
    """What dense per-record gradients of the batch would take, in MiB."""
    workload = WORKLOADS[model]
    parameters = sum(parameter.numel() for parameter in workload.model().parameters())
    return workload.batch_size * parameters * 4 / MIB


def _table(found: dict[str, Any]) -> str:
    models = found["models"]
    lines = ["| method | mark |" + "".join(f" {m} | memory |" for m in models)]
    lines.append("| --- | ---: |" + " ---: | ---: |" * len(models))
    for name in CANDIDATES:
        mark = CANDIDATES[name].mark
        line = f"| {name} | {'' if mark is None else mark} |"
        for results in models.values():
            result = {"ratio": 1.0} if name == BASELINE else {}
            result |= results.get(name, {})
            if "memory" in result:
                result["memory"] /= results[BASELINE]["memory"]
            line += f" {_shown(result, 'ratio')} | {_shown(result, 'memory')} |"
        lines.append(line)
    return "\n".join(lines)


def _shown(result: dict[str, float], what: str) -> str:
    return f"{result[what]:.2f}" if what in result else ""


def _write(found: dict[str, Any], out: Path) -> None:
    out.with_suffix(".json").write_text(json.dumps(found, indent=2) + "\n")
    out.with_suffix(".md").write_text(_table(found) + "\n")


if __name__ == "__main__":
    main()
