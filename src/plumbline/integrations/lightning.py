"""``PrivateStrategy``: ``lightning.Trainer.fit`` with every update made by ``private.step``.

The module stays a plain ``LightningModule``; its ``training_step`` returns one loss for each record
instead of their mean. The strategy takes the place of the training loader, whose batches become
Poisson samples, and of the training step. Optimization is manual while ``fit`` runs, so that
Lightning's own backward pass and optimizer step never run beside it. Hooks and callbacks are shown
the number of a step, never its records.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from plumbline.integrations.planned_run import PlannedRun
from plumbline.methods import Method
from plumbline.training import Private, batch_loss

try:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.strategies import SingleDeviceStrategy
    from lightning.pytorch.trainer.states import TrainerFn
except ImportError as error:
    raise ImportError(
        "PrivateStrategy needs Lightning: pip install 'plumbline[lightning]'."
    ) from error

from plumbline.integrations.lightning_refusals import (
    refuse_epoch,
    refuse_loader,
    refuse_module,
    refuse_trainer,
)


class PrivateStrategy(SingleDeviceStrategy):
    """Trains with differential privacy: ``Trainer(strategy=PrivateStrategy(...))``.

    The loader's batch size becomes the expected batch size, and an epoch as many steps as it takes
    to draw all records on average. ``max_epochs`` or ``max_steps`` is the length of the run.
    Epsilon, spent so far, is logged as ``epsilon`` and shown in the progress bar.

    With ``checkpoint="run.pt"`` among the settings, the run is kept in that file with a journal,
    and calling ``fit`` again in a new process goes on with it, at the step after the last one that
    was made. Lightning's own checkpoints keep the state of its loops and callbacks; with
    ``ckpt_path`` these go on as well, from the same run.

    Args:
        method: From ``plumbline.methods``, or your own.
        delta: As in ``plumbline.Budget``.
        epsilon: The most that the run may cost; give this or ``noise_multiplier``.
        noise_multiplier: As in ``plumbline.Budget``.
        records: The number of records, if it is public knowledge.
        device: The one device of the model.
        **settings: Further arguments of ``make_private``, such as ``checkpoint``, ``ledger`` or
            ``seed``.

    Attributes:
        private: The run, once training has begun.
    """

    strategy_name = "private"

    def __init__(
        self,
        *,
        method: Method,
        delta: float,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        records: int | None = None,
        device: str = "cpu",
        **settings: Any,
    ) -> None:
        super().__init__(device=device)
        self.private: Private | None = None
        self._planned = PlannedRun(
            method=method,
            delta=delta,
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            records=records,
            settings=settings,
        )
        self._trainer: Trainer | None = None
        self._loader: Any = None
        self._steps = _Steps(0)
        self._took_over = False

    def setup(self, trainer: Trainer) -> None:
        self._trainer, self._loader = trainer, None
        super().setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            refuse_trainer(trainer)
            refuse_module(self._module, self.optimizers, self.lr_scheduler_configs)
            self._refuse_forgetting(trainer)
            self._module.automatic_optimization = False
            self._took_over = True

    def process_dataloader(self, dataloader: Any) -> Any:
        # A schedule that asks for its number of steps loads the data before there is an optimizer,
        # so the run begins later.
        assert self._trainer is not None
        if not self._trainer.training:
            return dataloader
        if self._loader is not None:
            raise ValueError("There are several training loaders, and a run has one data set.")
        refuse_loader(dataloader)
        self._loader = dataloader
        self._steps = _Steps(self._planned.epoch_steps(dataloader.dataset, dataloader.batch_size))
        return self._steps

    def on_train_start(self) -> None:
        assert self._trainer is not None
        refuse_epoch(self._trainer, self._steps)
        self._optimizer = self.optimizers[0]
        with self._place(self._trainer):
            self.private = self._begin(self._trainer)
        ahead = _counts(self._trainer)[0].total.completed
        if ahead > self.private.steps_done:
            raise ValueError(
                f"{self._trainer.ckpt_path} is of step {ahead}, and the run's own file of step "
                f"{self.private.steps_done}: it is older, or of another run. Give the file that "
                "belongs to this checkpoint."
            )
        self._batches = iter(self.private if len(self.private) else ())

    def training_step(self, *args: Any, **kwargs: Any) -> None:
        assert self.private is not None
        assert self._trainer is not None
        counts = _counts(self._trainer)
        for count in counts:
            count.increment_ready()
        # Steps that were made before the run was interrupted are passed over.
        if counts[0].total.completed >= self.private.steps_done:
            batch = next(self._batches)
            self._refuse_another_optimizer()
            with self._place(self._trainer):
                self.private.step(batch)
        for count in counts:
            count.increment_completed()
        if counts[0].total.completed >= self.private.stop:
            self._trainer.should_stop = True
        if not self._trainer.barebones:  # which warns of each line that is logged
            self._module.log("epsilon", self.private.epsilon(), prog_bar=True, batch_size=1)

    def teardown(self) -> None:
        if self._took_over:
            self._module.automatic_optimization = True
            self._took_over = False
        super().teardown()

    @property
    def _module(self) -> LightningModule:
        assert self.lightning_module is not None
        return self.lightning_module

    def _refuse_forgetting(self, trainer: Trainer) -> None:
        if self.private is not None:
            raise ValueError(
                "This PrivateStrategy has made its run, and its steps are spent. Build a new "
                "trainer with a new strategy: with the same checkpoint= to go on with the run, or "
                "without it for a run with a budget of its own."
            )
        file = self._planned.settings.get("checkpoint")
        if trainer.ckpt_path is not None and (file is None or not Path(file).exists()):
            raise ValueError(
                f"ckpt_path is {trainer.ckpt_path}, which does not say what was spent: that is in "
                f"the run's own file, and checkpoint is {file}. Give PrivateStrategy("
                "checkpoint=...) the file of the run; without it, load the weights with "
                "load_from_checkpoint and begin a run with a budget of its own."
            )

    def _refuse_another_optimizer(self) -> None:
        if self.optimizers != [self._optimizer]:
            raise ValueError(
                "The trainer's optimizers were replaced after the run had begun, and the run "
                "goes on with the one that it began with. Return it from configure_optimizers, or "
                "change the settings in its param_groups."
            )

    def _begin(self, trainer: Trainer) -> Private:
        ends = (trainer.max_steps, (trainer.max_epochs or -1) * len(self._steps))
        steps = min(end for end in ends if end >= 0)
        return self._planned.begin(
            self._module,
            self._optimizer,
            self._loader,
            loss=batch_loss(_losses),
            steps=steps,
            schedulers=[config.scheduler for config in self.lr_scheduler_configs],
        )

    @contextmanager
    def _place(self, trainer: Trainer) -> Iterator[None]:
        """Shows the module where the training stands, in place of the whole trainer.

        The trainer changes while records are looked at (a progress bar has a thread of its own),
        and what a step sees may not.
        """
        self._module.trainer = _TrainerPlace(trainer)  # type: ignore[assignment]
        try:
            yield
        finally:
            self._module.trainer = trainer


class _TrainerPlace:
    """What ``training_step`` can ask of its trainer: where the training stands."""

    def __init__(self, trainer: Trainer) -> None:
        self.current_epoch = trainer.current_epoch
        self.global_step = trainer.global_step
        self.batch_idx = trainer.fit_loop.batch_idx

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ValueError(
            f"training_step asks for trainer.{name}, as self.log does. What it would log is an "
            "exact value of private records: log in validation_step, on other records. (The "
            "strategy logs epsilon.) Of the trainer, it can see current_epoch and global_step."
        )


def _counts(trainer: Trainer) -> tuple[Any, Any]:
    """Where the trainer counts its updates: by the second one when optimization is automatic."""
    loop = trainer.fit_loop.epoch_loop
    manual = loop.manual_optimization.optim_step_progress
    return manual, loop.automatic_optimization.optim_progress.optimizer.step


def _losses(module: Any, batch: Any) -> Tensor:
    """The losses of a batch, ``[B]``; Plumbline calls it with one record at a time."""
    takes = len(inspect.signature(module.training_step).parameters)
    given = (batch, module.trainer.batch_idx)[:takes]
    output = module.training_step(*given)
    losses: Tensor = output["loss"] if isinstance(output, Mapping) else output
    return losses


class _Steps:
    """Stands in for the training loader: gives the numbers of an epoch's steps."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._count))

    def state_dict(self) -> dict[str, Any]:
        return {}  # the run knows its place; Lightning warns of loaders without this

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
