"""``make_private``: from the user's own objects to a run that can be stepped on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from plumbline.mechanism.accountant import Accountant, Relation
from plumbline.mechanism.calibration import Budget
from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.release import StepRelease
from plumbline.training.distributed import Ranks
from plumbline.training.losses import Loss
from plumbline.training.private import Private
from plumbline.training.public import PublicData
from plumbline.training.records import Collate
from plumbline.training.run_identity import run_id
from plumbline.training.session import start
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

    Where ``torch.distributed`` is initialised with several processes (by ``torchrun``, say), they
    make one run together: each calls this with the same arguments, but for the ledger.

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
        ledger: Where steps are charged, durably, before they are released. Of several processes
            only the one of rank 0 has it.
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
        RankFailed: If another process could not start.
    """
    ranks = Ranks.here()
    with ranks.failing_together():
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
        return start(setup, setup.plan(), ranks, run=run_id(seed, setup.facts))
