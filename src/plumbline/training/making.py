"""``make_private``: from the user's own objects to a run that can be stepped on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from plumbline.gradients.kernels import KERNELS
from plumbline.mechanism.accountant import Accountant, Relation
from plumbline.mechanism.calibration import Budget, Plan
from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.random_source import RandomSource, SecureSource, SeededSource
from plumbline.mechanism.release import StepRelease
from plumbline.training.losses import Loss
from plumbline.training.private import Private
from plumbline.training.public import PublicData, PublicStream
from plumbline.training.records import Collate
from plumbline.training.settings import (
    noise_position,
    refuse_shared_seed,
    require_charged,
    run_id,
)
from plumbline.training.setup import Method, Setup


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Any,
    *,
    loss: Loss,
    method: Method,
    budget: Budget,
    accountant: Accountant = "pld",
    relation: Relation = "add_remove",
    sensitive_features: Sequence[int] | Tensor | None = None,
    max_physical_batch: int | None = None,
    seed: int | None = None,
    deterministic: bool = False,
    ledger: Ledger | None = None,
    user_ids: Sequence[Any] | Tensor | None = None,
    collate: Collate | None = None,
    public: PublicData | None = None,
    averaging: float | None = None,
    before: Sequence[StepRelease] = (),
) -> Private:
    """Private training of the user's own model, in the user's own loop.

    Args:
        model: The model; it is not wrapped, renamed or replaced.
        optimizer: Any torch optimizer of its parameters (LBFGS and SparseAdam are refused).
        dataset: Tensors with one row per record, a map-style data set, a part of one of
            ``plumbline.data``'s, or a Hugging Face data set in torch format.
        loss: One loss per record: of (output, target), or of (model, batch) when marked with
            ``batch_loss``.
        method: From ``plumbline.methods``.
        budget: How much privacy may be spent, on how many steps.
        accountant: ``"pld"`` or ``"rdp"``.
        relation: Neighbouring data sets: ``"add_remove"`` or ``"replace_one"``.
        sensitive_features: The group of each record, ``[n]``, for methods and reports that need it.
        max_physical_batch: The most records in memory at once; larger batches come in chunks.
        seed: Makes sampling and noise reproducible. The statement then says that who knows the
            seed knows the noise. By default the randomness is cryptographically secure.
        deterministic: Pins the gradient kernels, so that equal runs are bit-identical.
        ledger: Where steps are charged, durably, before they are released.
        user_ids: The user of each record, ``[n]``: makes a user with all of their records the unit
            of privacy.
        collate: How a list of records of a map-style data set becomes a batch.
        public: Further records, without any protection, whose plain gradient is added in each step.
        averaging: The decay of an exponential moving average of the weights, such as 0.999; it
            costs no privacy. ``Private.averaged`` and ``averaged_model`` give the averaged weights.
        before: What was released about the same records earlier and is used here, such as
            ``private_moments(...).release``. The budget, epsilon and the statement count it.

    Raises:
        BudgetError: If the budget does not fit the data or cannot be met.
        BudgetExceeded: If the ledger's data-set budget has no room for the whole run.
        NoiseReuse: If another run on the ledger has used the seed.
    """
    setup = Setup.of(
        model,
        optimizer,
        dataset,
        loss=loss,
        method=method,
        budget=budget,
        accountant=accountant,
        relation=relation,
        sensitive_features=sensitive_features,
        max_physical_batch=max_physical_batch,
        seed=seed,
        deterministic=deterministic,
        ledger=ledger,
        user_ids=user_ids,
        collate=collate,
        public=public,
        averaging=averaging,
        before=before,
    )
    if deterministic:
        KERNELS.pin({})
    return start(setup, setup.plan(), run=run_id(seed, setup.facts))


def start(
    setup: Setup,
    plan: Plan,
    *,
    run: str,
    attempt: int = 0,
    steps_done: int = 0,
    charged: int = 0,
    warnings: Sequence[str] = (),
) -> Private:
    """The run, from ``steps_done`` on.

    Args:
        setup: What the user gave.
        plan: The budget made exact.
        run: The run's id.
        attempt: How often a seeded run was resumed with fresh noise and batches.
        steps_done: Where it stands.
        charged: How many steps were charged, where there is no ledger to ask.
        warnings: For the statement.

    Raises:
        BudgetExceeded: If the ledger has no room for the steps that are left.
        NoiseReuse: If another run on the ledger has the same seed.
    """
    seed, ledger = setup.seed, setup.ledger
    drawing: RandomSource
    noise: RandomSource
    if seed is None:
        drawing = noise = SecureSource()
    else:
        # Steps that are made again on the very batches they were first made on would cost more
        # than the ledger says: another attempt draws other batches too.
        drawing = SeededSource(seed, f"attempt {attempt}" if attempt else "")
        noise = SeededSource(seed, f"run {run} attempt {attempt}")
    stop = plan.steps
    if ledger is not None:
        if seed is not None:
            refuse_shared_seed(ledger, run, seed)
        require_charged(ledger, plan.before)
        here, beyond = noise_position(attempt, steps_done), noise_position(attempt + 1, 0)
        replays = sum(here <= position < beyond for position in ledger.noise_positions(run))
        left = max(0, plan.steps - ledger.charged(run))
        if left:
            ledger.require_room(plan.release.to_dict(), left)
        stop = min(stop, steps_done + replays + left)
    if lost := plan.steps - stop:
        warnings = (
            *warnings,
            f"{lost} of the {plan.steps} planned steps were charged and their results lost, when "
            "the run was interrupted. They count as spent, and the run ends so much earlier.",
        )
    if plan.release.composition == "basic":
        warnings = (
            *warnings,
            "The questions of a step are charged one by one (basic composition), as the paper of "
            "the method does. Together they cost less: the epsilon stated here is larger than need "
            "be for this noise.",
        )
    return Private(
        setup,
        plan,
        run=run,
        attempt=attempt,
        source=noise,
        sampler=setup.sampler(plan.sampling_rate, drawing),
        steps_done=steps_done,
        stop=stop,
        charged=charged,
        warnings=warnings,
        public=None if setup.public is None else PublicStream(setup.public, setup.loss, drawing),
    )
