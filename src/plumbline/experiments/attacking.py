"""Attacks on what recipes train: the one-run audit of a row, and membership of a finished run.

Both look at private records without noise. What they find is a measurement of the implementation,
not part of what may be released; it is labelled so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from plumbline.auditing import MEASURES, Interval, Membership, RunAudit, audit_run, membership
from plumbline.data import Split
from plumbline.experiments.files import MODEL
from plumbline.experiments.loading import load_data
from plumbline.experiments.recipe import RecipeError
from plumbline.experiments.run_spec import RunSpec
from plumbline.experiments.running import started
from plumbline.fairness import estimate
from plumbline.formats import number, percent
from plumbline.training.losses import BatchLoss, per_record
from plumbline.training.own_neighbours import NeighbourAudit
from plumbline.without_trace import evaluating

LABEL = "computed from the training records without noise: not covered by epsilon"


@dataclass(frozen=True)
class RecipeAudit:
    """The one-run audit of a row of a recipe.

    Attributes:
        method: The row's title.
        claimed: The epsilon that the run says it has spent; infinite without a guarantee.
        found: What the audit found.
        membership: How well the canaries' scores tell those that are in from the others, by group.
    """

    method: str
    claimed: float
    found: RunAudit
    membership: Membership


def audit_recipe(
    spec: RunSpec,
    canaries: int,
    *,
    guesses: int | None = None,
    confidence: float = 0.95,
    on_progress: Callable[[int, int], None] | None = None,
) -> RecipeAudit:
    """Trains a row of a recipe once, with canaries among its training records.

    Canaries are training records with a wrong label, which a model knows only if it has seen them;
    they are scored by how much training has lowered their loss.

    Args:
        spec: Which row, with which seed; the seed also chooses the canaries and tosses the coins.
        canaries: How many.
        guesses: About how many of them a guess is made.
        confidence: That of the bound.
        on_progress: Called with (done, total) after each step.

    Raises:
        RecipeError: If there are not enough training records.
    """
    splits = load_data(spec)
    if not 1 <= canaries <= len(splits.train) // 2:
        raise RecipeError(
            f"{canaries} canaries are asked for, but the recipe's data have {len(splits.train)} "
            "training records; at least one of them, and at most half, can be canaries."
        )
    order = torch.randperm(len(splits.train), generator=torch.Generator().manual_seed(spec.seed))
    planted = splits.train.select(order[:canaries])
    if splits.target_range is not None:
        planted.y = -planted.y  # a number as far on the other side of the middle
    else:
        planted.y = (planted.y + 1) % len(splits.classes)
    tell = on_progress or (lambda *_: None)
    spent: list[float] = []
    scored: list[Membership] = []

    def train(included: NDArray[np.bool_]) -> NDArray[np.float64]:
        kept = torch.from_numpy(np.flatnonzero(included))
        joined = _joined(splits.train, order[canaries:], planted, kept)
        private = started(spec, replace(splits, train=joined))
        before = losses(private.model, planted, private.loss)
        private.fit([lambda _, info: tell(info.step, info.steps)], progress=False)
        private.close()
        if private.steps_done < private.plan.steps:
            raise KeyboardInterrupt
        spent.append(private.epsilon(exact=True))
        with private.averaged() if private.averaging is not None else nullcontext():
            after = losses(private.model, planted, private.loss)
        # A loss may have become infinite: such a canary was not learned.
        lowered: NDArray[np.float64] = (before - after).nan_to_num(nan=-math.inf).numpy()
        scored.append(_by_group(lowered, included, planted, splits.groups, spec.seed))
        return lowered

    found = audit_run(
        train,
        canaries,
        delta=spec.recipe.budget.delta,
        guesses=guesses,
        confidence=confidence,
        seed=spec.seed,
    )
    return RecipeAudit(spec.method.title, spent[0], found, scored[0])


def membership_of(
    spec: RunSpec, folder: Path, *, generator: np.random.Generator, replicates: int = 200
) -> Membership:
    """The threshold attack on a finished run's model: its training records against its test part.

    Args:
        spec: The run.
        folder: Where it is.
        generator: Where resamples come from.
        replicates: How many there are.

    Raises:
        RecipeError: If the run left no model.
    """
    path = folder / MODEL
    if not path.is_file():
        raise RecipeError(f"{folder} has no {MODEL}: the run is not finished, or was moved.")
    splits = load_data(spec)
    model = spec.build_model(splits)
    model.load_state_dict(torch.load(path, weights_only=True))
    parts = splits.train, splits.test
    loss = per_record(spec.build_loss())
    groups = [part.sensitive_features if splits.groups else None for part in parts]
    return membership(
        *(losses(model, part, loss).numpy() for part in parts),
        generator=generator,
        groups_in=groups[0],
        groups_out=groups[1],
        names=dict(enumerate(splits.groups)) if splits.groups else None,
        replicates=replicates,
    )


def neighbours_of(
    spec: RunSpec, folder: Path | None = None, *, steps: int = 3, records: int = 64, seed: int = 0
) -> NeighbourAudit:
    """How far one record moves what a run's steps ask, on neighbouring batches of its own records.

    Args:
        spec: The run; nothing is charged.
        folder: Where it is, if it is finished: its last weights are used, else its first.
        steps: How many steps are tried.
        records: How many records a batch has.
        seed: Which records are tried.
    """
    private = started(spec, load_data(spec))
    try:
        if folder is not None and (folder / MODEL).is_file():
            private.model.load_state_dict(torch.load(folder / MODEL, weights_only=True))
        return private.audit_neighbours(steps=steps, records=records, seed=seed)
    finally:
        private.close()


def averaged(runs: Sequence[Membership]) -> list[list[str]]:
    """Lines of a table: group, AUC, half the width of the first run's interval, other measures.

    The first line is of all records, the others of each group; numbers are means over runs. A group
    too small to judge is in brackets.
    """
    lines = []
    for group in (None, *runs[0].by_group):
        own = [one.overall if group is None else one.by_group[group] for one in runs]
        name = "all" if group is None else group
        if any(group in one.too_small for one in runs):
            name = f"({name})"
        interval, within = own[0].intervals.get("auc"), "-"
        if isinstance(interval, Interval):
            within = f"{(interval.high - interval.low) / 2:.3f}"
        auc, accuracy, *rates = (estimate([o.values[key] for o in own]).mean for key in MEASURES)
        shown = [number(auc), within, number(accuracy)]
        lines.append([name, *shown, *(percent(rate) for rate in rates)])
    return lines


def losses(model: nn.Module, part: Split, loss: BatchLoss) -> Tensor:
    """Each record's loss, ``[n]`` float64, in evaluation mode."""
    with evaluating(model), torch.no_grad():
        return torch.cat([loss(model, piece).double() for piece in part.pieces()])


def _by_group(
    scores: NDArray[np.float64],
    included: NDArray[np.bool_],
    planted: Split,
    groups: tuple[str, ...],
    seed: int,
) -> Membership:
    """The attack on the canaries: those that are in against those that are not."""
    features = planted.sensitive_features if groups else None
    sides = [torch.from_numpy(side) for side in (included, ~included)]
    own = [None if features is None else features[side] for side in sides]
    return membership(
        *(-scores[side.numpy()] for side in sides),
        generator=np.random.default_rng(seed),
        groups_in=own[0],
        groups_out=own[1],
        names=dict(enumerate(groups)) if features is not None else None,
    )


def _joined(train: Split, rest: Tensor, planted: Split, kept: Tensor) -> Split:
    """The records that are no canaries, and those canaries that are in, with their wrong labels."""
    assert planted.origin is not None
    places = planted.origin[1][kept]
    joined = train.select(torch.cat([rest, places]))
    joined.y[len(rest) :] = planted.y[kept]
    return joined
