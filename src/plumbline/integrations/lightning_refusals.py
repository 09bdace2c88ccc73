"""What a ``PrivateStrategy`` refuses before anything is charged, each with its reason.

A setting of the trainer, the module or the loader that would move the weights, choose the records
or look at a batch beside the private step is refused, and so is one that the private step would not
follow.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sized
from functools import partial
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    DeviceStatsMonitor,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelPruning,
    SpikeDetection,
    StochasticWeightAveraging,
    ThroughputMonitor,
)
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

from plumbline.integrations.refusals import PRECISION, SAMPLING, Allowed, refuse_all, refused
from plumbline.training.loaders import refuse_own_batches

_refuse = partial(refuse_all, "PrivateStrategy")
_SEVERAL = "for several processes use a plain loop under torchrun (docs/distributed.md)"
_ALLOWED: Allowed = {
    "gradient_clip_val": (
        (None, 0),
        "the method clips every record's gradient: set it there, as in dpsgd(clip=0.5)",
    ),
    "accumulate_grad_batches": (
        (1,),
        "give the loader the whole batch size, and max_physical_batch= to the strategy",
    ),
    "overfit_batches": ((0,), SAMPLING),
    "limit_train_batches": ((None, 1.0), f"{SAMPLING}; max_steps ends a run earlier"),
    "fast_dev_run": ((False,), "a trial on the records costs privacy: use made-up records"),
    "reload_dataloaders_every_n_epochs": ((0,), "a run has one data set"),
    "precision": (("32-true",), PRECISION),
    "num_nodes": ((1,), _SEVERAL),
}

_SAME_WEIGHTS = "the noise is calibrated for the same weights to the end: freeze them before fit"
_SIZE = "what it measures of a step shows how many records it has; measure on made-up records"
_CALLBACKS = {
    GradientAccumulationScheduler: _ALLOWED["accumulate_grad_batches"][1],
    BatchSizeFinder: "it trains on the records to try batch sizes, and each try costs privacy",
    LearningRateFinder: "it trains on the records to try rates, and each try costs privacy",
    StochasticWeightAveraging: "give averaging= to the strategy instead",
    BaseFinetuning: f"it frees weights in the middle of the run; {_SAME_WEIGHTS}",
    ModelPruning: f"it replaces weights in the middle of the run; {_SAME_WEIGHTS}",
    SpikeDetection: "it reads the training loss, an exact value of private records",
    DeviceStatsMonitor: _SIZE,
    ThroughputMonitor: _SIZE,
}
_UPDATE = "the only update is private.step, and it shows no gradient"
_TRANSFER = "records do not pass through it: do its work in the data set or in training_step"
_HOOKS = {
    "on_before_backward": _UPDATE,
    "on_after_backward": _UPDATE,
    "on_before_optimizer_step": _UPDATE,
    "on_before_zero_grad": _UPDATE,
}
_OWN_METHODS = {
    **_HOOKS,
    "backward": _UPDATE,
    "optimizer_step": _UPDATE,
    "optimizer_zero_grad": _UPDATE,
    "configure_gradient_clipping": _UPDATE,
    "lr_scheduler_step": "private.step steps the schedulers",
}
_TRANSFERS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


def refuse_trainer(trainer: Trainer) -> None:
    """Raises if a setting or a callback of the trainer does not go with private training."""
    _refuse(_of_trainer(trainer))


def refuse_module(module: LightningModule, optimizers: list[Any], schedulers: list[Any]) -> None:
    """Raises if the module updates its weights in a way of its own."""
    _refuse(_of_module(module, optimizers, schedulers))


def refuse_loader(loader: Any) -> None:
    """Raises if the training loader chooses records or forms batches in a way of its own."""
    if not isinstance(loader, DataLoader):
        _refuse([f"the training loader is a {type(loader).__name__}: give one torch DataLoader"])
    if not hasattr(loader.dataset, "__len__"):
        kind = type(loader.dataset).__name__
        _refuse([f"the data set, a {kind}, has no length: give one with numbered records"])
    refuse_own_batches(loader)


def refuse_epoch(trainer: Trainer, loader: Sized) -> None:
    """Raises if the trainer's epoch is not all of one loader's steps.

    Args:
        trainer: The trainer.
        loader: What the strategy has put in the training loader's place.
    """
    if trainer.train_dataloader is not loader:
        kind = type(trainer.train_dataloader).__name__
        _refuse([f"the training loader is in a {kind}: give one torch DataLoader by itself"])
    steps, found = len(loader), trainer.num_training_batches
    if found != steps:
        limit = trainer.limit_train_batches  # 1 is one batch, 1.0 all
        reason = _ALLOWED["limit_train_batches"][1]
        _refuse(
            [f"limit_train_batches is {limit!r}, {found} of an epoch's {steps} steps: {reason}"]
        )


def _of_trainer(trainer: Trainer) -> Iterator[str]:
    yield from refused(trainer, _ALLOWED)
    devices = len(trainer._accelerator_connector._parallel_devices)
    if devices > 1:
        yield f"there are {devices} devices, and one would be used: {_SEVERAL}; or give devices=1"
    if trainer.max_steps == -1 and trainer.max_epochs in (None, -1):
        yield "the run has no end: give max_epochs or max_steps, for which the noise is calibrated"
    profiler = trainer.profiler  # type: ignore[attr-defined]
    if not isinstance(profiler, PassThroughProfiler):
        yield f"there is a {type(profiler).__name__}: {_SIZE}"
    yield from _transfers(trainer.datamodule)  # type: ignore[attr-defined]
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        for kind, reason in _CALLBACKS.items():
            if isinstance(callback, kind):
                yield f"there is a {kind.__name__}: {reason}"
        for name, reason in _HOOKS.items():
            if is_overridden(name, callback):
                yield f"the callback {type(callback).__name__} has {name}: {reason}"


def _of_module(
    module: LightningModule, optimizers: list[Any], schedulers: list[Any]
) -> Iterator[str]:
    if not module.automatic_optimization:
        yield "automatic_optimization is False: training_step may only return the records' losses"
    if len(optimizers) != 1 or not hasattr(optimizers[0], "param_groups"):
        yield f"configure_optimizers gives {len(optimizers)} optimizers: a run has one"
    for config in schedulers:
        if isinstance(config.scheduler, ReduceLROnPlateau):
            yield "a ReduceLROnPlateau follows a measured value: use a schedule of the steps"
        elif config.interval != "step" or config.frequency != 1:
            yield (
                f"a scheduler has interval={config.interval!r} and frequency={config.frequency}: "
                "private.step steps it after every update. Give {'scheduler': ..., 'interval': "
                "'step'}, and count in steps"
            )
    for name, reason in _OWN_METHODS.items():
        if is_overridden(name, module):
            yield f"{type(module).__name__} has {name} of its own: {reason}"
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        yield f"training_step takes batches from dataloader_iter itself: {SAMPLING}"
    yield from _transfers(module)
    if getattr(module, "_compiler_ctx", None) is not None:
        yield "the module is compiled: nobody can see which records a compiled model mixes"


def _transfers(owner: Any) -> Iterator[str]:
    for name in _TRANSFERS:
        if owner is not None and is_overridden(name, owner):
            yield f"{type(owner).__name__} has {name} of its own: {_TRANSFER}"
