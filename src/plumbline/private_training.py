"""``make_private``: private training of the user's own model, in the user's own loop.

The door stands above ``training`` and ``auditing``, so that a method from outside the package can
be audited before it is charged for anything.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from plumbline.auditing.admission import admit
from plumbline.gradients import Isolation
from plumbline.mechanism.accountant import Accountant, Relation
from plumbline.mechanism.calibration import Budget
from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.release import StepRelease
from plumbline.methods import Method
from plumbline.noise import Banded
from plumbline.training import Private, PublicData, Setup, start
from plumbline.training.distributed import Ranks
from plumbline.training.loaders import without_loader
from plumbline.training.losses import Loss
from plumbline.training.records import Collate
from plumbline.training.stacking import PadTo


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
    record_weights: Sequence[float] | Tensor | None = None,
    max_physical_batch: int | None = None,
    isolation: Isolation = "vmap",
    seed: int | None = None,
    deterministic: bool = False,
    ledger: Ledger | None = None,
    user_ids: Sequence[Any] | Tensor | None = None,
    collate: Collate | None = None,
    pad_to: PadTo | None = None,
    public: PublicData | None = None,
    averaging: float | None = None,
    noise: Banded | None = None,
    before: Sequence[StepRelease] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    schedulers: Sequence[Any] = (),
) -> Private:
    """Private training of the user's own model, in the user's own loop.

    Where ``torch.distributed`` is initialised with several processes (by ``torchrun``, say), they
    make one run together: each calls this with the same arguments, but for the ledger.

    Args:
        model: The model; it is not wrapped, renamed or replaced.
        optimizer: Any torch optimizer of its parameters (LBFGS and SparseAdam are refused).
        dataset: Tensors with one row per record, a map-style data set, a split of one of
            ``plumbline.data``'s, or a Hugging Face data set in torch format. Or a torch
            ``DataLoader`` of one of these: its collate function and its worker processes are used,
            which fetch the records of the next steps ahead; its batch size is the expected one,
            unless the budget states another; its order is replaced by Poisson sampling.
        loss: One loss per record: of (output, target), or of (model, batch) when marked with
            ``batch_loss``.
        method: From ``plumbline.methods``, or your own.
        budget: How much privacy may be spent, on how many steps. With a data loader, it need not
            state a batch size.
        accountant: ``"pld"`` or ``"rdp"``.
        relation: Neighbouring data sets: ``"add_remove"`` or ``"replace_one"``.
        sensitive_features: The group of each record, ``[n]``, for methods and reports that need it.
        record_weights: By how much each record counts, ``[n]`` from 0 to 1, once it is clipped: a
            public rule's answer to that record alone, such as the weight of its class. In the loss,
            clipping would undo it. It makes no record count for more than its bound, so the noise
            stays the same.
        max_physical_batch: The most records in memory at once; larger batches come in chunks.
        isolation: How records are kept apart. Model and loss are run for one record at a time:
            ``"vmap"``, all records of a batch at once, or ``"loop"``, one after the other, for
            models that torch.vmap cannot run; that is slower by about the size of the batch.
        seed: Makes sampling and noise reproducible. The statement then says that who knows the
            seed knows the noise. By default the randomness is cryptographically secure.
        deterministic: Pins the gradient kernels, so that equal runs are bit-identical.
        ledger: Where steps are charged, durably, before they are released. Of several processes
            only the one of rank 0 has it.
        user_ids: The user of each record, ``[n]``: makes a user with all of their records the unit
            of privacy.
        collate: How a list of one record of a map-style data set becomes a batch of one,
            ``[1, ...]``. It is never shown two records, so that they cannot mix.
        pad_to: The length to which records of different lengths are padded along their first
            dimension: for all fields (128), or by a field's name or place, with what to pad with
            where that is not 0, as in ``{"input_ids": 128, "labels": (128, -100)}``. A longer
            record is refused.
        public: Further records, without any protection, whose plain gradient is added in each step.
        averaging: The decay of an exponential moving average of the weights, such as 0.999; it
            costs no privacy. ``Private.averaged`` gives the averaged weights.
        noise: Noise that is correlated between steps, ``plumbline.noise.banded(bands=16)``; by
            default each step's is independent of the others'. It lowers the error of the weights
            at a large epsilon and not at a small one: `plumbline budget` compares. Batches are
            then drawn from parts of the records in turn, and 2 (bands - 1) vectors of the size of
            all parameters are kept in memory, in float64.
        before: What was released about the same records earlier and is used here, such as
            ``private_moments(...).release``. The budget, epsilon and the statement count it.
        checkpoint: The file that ``Private.save`` writes. If it exists, the run goes on from it:
            give newly built objects and the settings of the run that was saved, of which only
            ``max_physical_batch`` may change, and that unless the run is deterministic. If it does
            not exist, the run begins and writes it at once, so that a run that is killed at any
            point goes on when the same call is made again. Give the ledger too: without one, steps
            made after the checkpoint and lost are not known, and the statement says so.
        schedulers: Learning-rate schedulers of the optimizer, to be kept in checkpoints.

    Raises:
        BudgetError: If the budget does not fit the data or cannot be met.
        BudgetExceeded: If the ledger's data-set budget has no room for the whole run.
        NoiseReuse: If another run on the ledger has used the seed.
        CheckpointMismatch: If the checkpoint is of a run with other settings, a method or data of
            another size; the difference is named, and nothing was loaded.
        CheckpointError: If the checkpoint cannot be read or written, or is damaged.
        LedgerDamaged: If the ledger lacks what was charged before the checkpoint was made.
        RankFailed: If another process could not start.
    """
    given = dict(locals())
    ranks = Ranks.here()
    with ranks.failing_together():
        setup = Setup(**without_loader(given))
        # A method from outside is audited before its first charge.
        unchecked = admit(setup.method)
        private = start(setup, ranks)
        private.warnings += (*setup.replaced, *unchecked)
        return private
