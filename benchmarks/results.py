"""The numbers of a run, as they go into `engine.json`, and the targets they are held against."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from benchmarks.contestants import BASELINE
from benchmarks.timing import Spread

OPACUS = ("opacus-hooks", "opacus-functorch", "opacus-ghost")
OURS = ("dp-sgd", "bam")

# The marks of issue 2, per network: ratios to the non-private step on two CPU cores.
TARGETS: dict[str, dict[str, float]] = {
    "DP-SGD, time": {"mlp": 1.25, "cnn": 1.2, "resnet": 1.4, "transformer": 1.3},
    "BAM, time": {"mlp": 2.5, "cnn": 2.3, "resnet": 2.9, "transformer": 2.9},
    "DP-SGD / Opacus' best": {"mlp": 0.8, "cnn": 0.92, "resnet": 0.8, "transformer": 0.8},
    "DP-SGD, peak extra memory": {"mlp": 1.6, "cnn": 1.6, "resnet": 1.8, "transformer": 1.6},
}


@dataclass
class Outcome:
    """One contestant on one network. What is None was not measured, and `failure` says why."""

    failure: str | None = None
    deviation: float | None = None
    seconds: float | None = None
    ratio: Spread | None = None
    ratios: list[float] = field(default_factory=list)
    memory_mib: float | None = None
    memory_ratio: float | None = None
    memory_failure: str | None = None


@dataclass
class Run:
    """Everything one call of the benchmark found."""

    machine: dict[str, str | int]
    pace: dict[str, float]
    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    neighbours: dict[str, float | None] = field(default_factory=dict)

    @classmethod
    def of_json(cls, stored: dict[str, Any]) -> Run:
        """What `as_json` gave."""

        def outcome(facts: dict[str, Any]) -> Outcome:
            ratio = facts["ratio"]
            return Outcome(**facts | {"ratio": None if ratio is None else Spread(**ratio)})

        outcomes = {
            model: {name: outcome(facts) for name, facts in found.items()}
            for model, found in stored["outcomes"].items()
        }
        return cls(stored["machine"], stored["pace"], outcomes, stored["neighbours"])

    @property
    def company(self) -> float:
        """The most cores that other processes took on average during one network's race."""
        return max((cores for cores in self.neighbours.values() if cores), default=0.0)

    def measured(self, target: str, model: str) -> float | None:
        """The number that stands against a target, if it was measured."""
        outcomes = self.outcomes.get(model, {})
        if target == "DP-SGD, time":
            return _median(outcomes.get("dp-sgd"))
        if target == "BAM, time":
            return _median(outcomes.get("bam"))
        if target == "DP-SGD, peak extra memory":
            ours = outcomes.get("dp-sgd")
            return ours.memory_ratio if ours else None
        return against_opacus(outcomes)

    def as_json(self) -> dict[str, object]:
        """The run with its targets, ready for `json.dump`."""
        targets = {
            target: {
                model: {"at_most": bound, "measured": self.measured(target, model)}
                for model, bound in bounds.items()
            }
            for target, bounds in TARGETS.items()
        }
        return {**dataclasses.asdict(self), "targets": targets}


def against_opacus(outcomes: dict[str, Outcome]) -> float | None:
    """Our DP-SGD over Opacus' fastest mode, both as ratios to their neighbouring baselines.

    Paired by round where both ran every round, so that the machine's drift cancels once more.
    """
    ours = outcomes.get("dp-sgd")
    modes = [outcomes[name] for name in OPACUS if name in outcomes and outcomes[name].ratio]
    if ours is None or ours.ratio is None or not modes:
        return None
    best = min(modes, key=lambda outcome: _median(outcome) or float("inf"))
    paired = [a / b for a, b in zip(ours.ratios, best.ratios, strict=False)]
    return Spread.of(paired).median


def fill_memory_ratios(outcomes: dict[str, Outcome]) -> None:
    """Divide by the non-private step's memory, once that is known."""
    baseline = outcomes.get(BASELINE)
    if baseline is None or not baseline.memory_mib:
        return
    for outcome in outcomes.values():
        if outcome.memory_mib is not None:
            outcome.memory_ratio = outcome.memory_mib / baseline.memory_mib


def _median(outcome: Outcome | None) -> float | None:
    return outcome.ratio.median if outcome and outcome.ratio else None
