"""``PrivateTrainer``: the ``Trainer`` of transformers, with every update made by ``private.step``.

``train`` is replaced as a whole, so that the base class's loss, backward pass and optimizer step
never run beside it. Evaluation, callbacks, logging and the folders of checkpoints are those of the
base class. What was spent is kept in a file of the run's own in the output folder, with a journal,
and a resumed run goes on from there: nothing is charged twice, and nothing is forgotten.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from plumbline.integrations.planned_run import PlannedRun
from plumbline.integrations.transformers_loss import own_loss, settle_problem_type
from plumbline.methods import Method
from plumbline.private_training import make_private
from plumbline.training import Private, batch_loss

try:
    from transformers import Trainer
    from transformers.trainer_utils import (
        SaveStrategy,
        TrainOutput,
        get_last_checkpoint,
        has_length,
        speed_metrics,
    )
except ImportError as error:
    raise ImportError(
        "PrivateTrainer needs transformers and accelerate: pip install 'plumbline[transformers]'."
    ) from error

from plumbline.integrations.transformers_refusals import refuse

RUN_FILE = "_plumbline.pt"
"""The run's own checkpoint in the output folder. The hub's uploads leave out names with ``_``."""


_SETTINGS = {*signature(make_private).parameters} - {*signature(Trainer).parameters}


class PrivateTrainer(Trainer):
    """A ``Trainer`` that trains with differential privacy.

    The expected batch size is ``per_device_train_batch_size`` x ``gradient_accumulation_steps`` x
    the number of processes; at most ``per_device_train_batch_size`` records are in memory at once.
    Batches are Poisson samples, so an epoch is as many steps as it takes to draw all records on
    average. ``max_grad_norm`` is not used (its default of 1.0 is accepted, other values are
    refused): the method clips each record's gradient.

    Logs have epsilon, spent so far, and delta. The training loss would be an exact answer about
    private records, and is not computed.

    Args:
        *args: As for ``Trainer``: the model and the ``TrainingArguments``.
        method: From ``plumbline.methods``, or your own.
        delta: As in ``plumbline.Budget``.
        epsilon: The most that the run may cost; give this or ``noise_multiplier``.
        noise_multiplier: As in ``plumbline.Budget``.
        records: The number of records, if it is public knowledge.
        loss: As for ``make_private``; by default the loss that the model computes for a record
            alone.
        settings: Further arguments of ``make_private`` by name, such as ``ledger``, ``seed``,
            ``pad_to`` or ``accountant``.
        **kwargs: As for ``Trainer``.

    Attributes:
        private: The run, from the call of ``train`` on.

    Raises:
        ValueError: Naming every setting that does not go with private training, and why.
    """

    def __init__(
        self,
        *args: Any,
        method: Method,
        delta: float,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        records: int | None = None,
        loss: Any = None,
        settings: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        own = [name for name in kwargs if name in _SETTINGS]
        if own:
            raise TypeError(
                f"{', '.join(own)} is for make_private and not for Trainer: give PrivateTrainer "
                f"settings={{{own[0]!r}: ...}}."
            )
        self.private: Private | None = None
        self._trained_on: Any = None
        self._planned = PlannedRun(
            method=method,
            delta=delta,
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            records=records,
            settings=dict(settings or {}),
            decided=("checkpoint", "max_physical_batch"),
        )
        self._loss = batch_loss(own_loss) if loss is None else loss
        super().__init__(*args, **kwargs)
        refuse(self, PrivateTrainer)

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Makes the run, or goes on with it.

        Args:
            resume_from_checkpoint: True to go on with the run in the output folder, at the step
                after the last one that was made. The path of its last checkpoint does the same; an
                earlier one is refused, because what was spent since stays spent.
            trial: Refused: every trial of a search is a run of its own.
            ignore_keys_for_eval: As for ``Trainer``.

        Raises:
            ValueError: If a setting does not go with private training, if there is no run to go on
                with, one that would be forgotten, or one of another length or data set.
        """
        refuse(self, PrivateTrainer)
        if trial is not None:
            self.hyperparameter_search()
        folder = self._folder_to_resume(resume_from_checkpoint)
        steps, expected = self._length()
        if self.private is None:
            self.private = self._begin(steps, expected)
            self._trained_on = self.train_dataset
        private, handler = self.private, self.callback_handler
        planned = private.plan.steps, private.plan.expected_batch_size
        if (steps, expected) != planned or self.train_dataset is not self._trained_on:
            raise ValueError(
                f"This run was begun with {planned[0]:,} steps of {planned[1]:,} expected records, "
                f"and its arguments now say {steps:,} of {expected:,}, or its data set was "
                "replaced. What it costs was planned: put them back to go on with it. To train "
                "longer or on other records, give a new PrivateTrainer another output_dir, for a "
                "run with a budget of its own."
            )
        per_epoch = math.ceil(private.plan.records / private.plan.expected_batch_size)
        epochs = math.ceil(private.plan.steps / per_epoch)
        self._init_training_state(private.stop, per_epoch, epochs, folder, None)
        self._place(private, per_epoch)
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(handler, name, getattr(self, name))
        handler.train_dataloader = None
        self.is_in_train = True
        started, first = time.time(), private.steps_done
        self.control = handler.on_train_begin(self.args, self.state, self.control)
        self._run(private, per_epoch, ignore_keys_for_eval)
        made = private.steps_done - first
        metrics: dict[str, float] = speed_metrics(  # type: ignore[no-untyped-call]
            "train", started, num_samples=made * private.plan.expected_batch_size, num_steps=made
        )
        self.log(metrics)
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_best_model()
        self.control = handler.on_train_end(self.args, self.state, self.control)
        self.is_in_train = False
        return TrainOutput(private.steps_done, math.nan, metrics)

    def statement(self) -> str:
        """The guarantee of the run, with its assumptions, in words."""
        if self.private is None:
            raise ValueError("There is no run yet, and nothing is spent: call train() first.")
        return self.private.statement()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if self.private is not None:
            spent = {"epsilon": self.private.epsilon(), "delta": self.private.plan.delta}
            logs = {**logs, **spent}
        super().log(logs, start_time)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Refused: the only update is ``private.step``."""
        raise RuntimeError(
            "PrivateTrainer makes no step outside of train(): a step beside it would not be "
            "charged. Call train()."
        )

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: every trial would be a run on the same records, and cost as much."""
        raise ValueError(
            "A search trains on the same records in every trial, and each costs privacy. Use "
            "plumbline.tune, which says what a search costs."
        )

    def _length(self) -> tuple[int, int]:
        """The steps of the run, and the expected batch size."""
        dataset: Any = self.train_dataset
        if dataset is None:
            raise ValueError("PrivateTrainer has no train_dataset: give one.")
        if not has_length(dataset):
            raise ValueError(
                f"train_dataset is a {type(dataset).__name__} without a length. Poisson sampling "
                "asks for records by their number: give a data set with a length, such as a list."
            )
        expected: int = self.get_total_train_batch_size(self.args)
        steps = self.args.max_steps
        if steps <= 0:
            epoch = self._planned.epoch_steps(dataset, expected)
            steps = math.ceil(self.args.num_train_epochs * epoch)
        return steps, expected

    def _begin(self, steps: int, expected: int) -> Private:
        args, model = self.args, self.model
        dataset: Any = self.train_dataset
        if hasattr(dataset, "column_names"):
            dataset = self._remove_unused_columns(dataset, description="training")
        collate = self._get_collator_with_removed_columns(self.data_collator, "training")
        settle_problem_type(model, lambda: collate([dataset[0]]))
        self.create_optimizer_and_scheduler(num_training_steps=steps)
        assert model is not None
        assert self.optimizer is not None
        return self._planned.begin(
            model.train(),
            self.optimizer,
            self._loader(dataset, collate, expected),
            loss=self._loss,
            steps=steps,
            max_physical_batch=args.per_device_train_batch_size,
            checkpoint=None if args.save_strategy == SaveStrategy.NO else self._file,
            schedulers=[self.lr_scheduler],
        )

    def _loader(self, dataset: Any, collate: Any, expected: int) -> DataLoader[Any]:
        """The records, as ``make_private`` takes them from a loader: with its worker processes."""
        args = self.args
        return DataLoader(
            dataset,
            batch_size=expected,
            shuffle=True,
            drop_last=args.dataloader_drop_last,  # of which the statement says what it means
            collate_fn=collate,
            num_workers=args.dataloader_num_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            pin_memory=args.dataloader_pin_memory,
            multiprocessing_context=args.dataloader_multiprocessing_context,
        )

    @property
    def _file(self) -> Path:
        return Path(str(self.args.output_dir), RUN_FILE)

    def _folder_to_resume(self, given: str | bool | None) -> str | None:
        """The last folder of checkpoints, whose logs and metrics go on, if one was written."""
        output = self._file.parent
        known = self.private is not None or self._file.exists()
        if not given:
            if known:
                raise ValueError(
                    f"{output} has a run already, and what it spent stays spent. Go on with it by "
                    "train(resume_from_checkpoint=True), or give a new PrivateTrainer another "
                    "output_dir, for a run with a budget of its own. (If it failed before its "
                    f"first step, nothing was spent: {RUN_FILE} and its journal can be deleted.)"
                )
            return None
        if not known:
            raise ValueError(
                f"There is no run of PrivateTrainer in {output} to go on with: what was spent is "
                f"in its file {RUN_FILE}. Give the output_dir of the run; save_strategy='no' "
                "keeps none."
            )
        last: str | None = get_last_checkpoint(output)  # type: ignore[no-untyped-call]
        if given is not True and (last is None or Path(given).resolve() != Path(last).resolve()):
            raise ValueError(
                f"resume_from_checkpoint is {given}, and the last checkpoint in {output} is "
                f"{last}. A private run cannot go back: the steps since then are spent. Give "
                "resume_from_checkpoint=True."
            )
        return last

    def _run(self, private: Private, per_epoch: int, ignore_keys: list[str] | None) -> None:
        """The remaining steps, with the callbacks that belong to them."""
        args, handler = self.args, self.callback_handler
        plan = private.plan
        self.log(
            {
                "expected_batch_size": plan.expected_batch_size,
                "noise_multiplier": plan.noise_multiplier,
            }
        )
        if args.eval_on_start:
            self.evaluate(ignore_keys=ignore_keys)
        first = private.steps_done
        for batch in private if len(private) else ():
            if private.steps_done in (first, _whole(private.steps_done, per_epoch)):
                self.control = handler.on_epoch_begin(args, self.state, self.control)
            self.control = handler.on_step_begin(args, self.state, self.control)
            private.model.train()
            private.step(batch)
            self._place(private, per_epoch)
            self.control = handler.on_step_end(args, self.state, self.control)
            self._act(private, ignore_keys)
            if private.steps_done in (private.stop, _whole(private.steps_done, per_epoch)):
                self.control = handler.on_epoch_end(args, self.state, self.control)
                self._act(private, ignore_keys)
            if self.control.should_training_stop:
                return

    def _place(self, private: Private, per_epoch: int) -> None:
        self.state.global_step = private.steps_done
        self.state.epoch = private.steps_done / per_epoch

    def _act(self, private: Private, ignore_keys: list[str] | None) -> None:
        """Logs, evaluates and saves, as the callbacks have asked."""
        if self.control.should_log:
            self.log({"learning_rate": self._get_learning_rate()})
        if self.control.should_evaluate:
            metrics = self.evaluate(ignore_keys=ignore_keys)
            best = self._determine_best_metric(metrics=metrics, trial=None)
            if self.args.save_strategy == SaveStrategy.BEST:
                self.control.should_save = best
        if self.control.should_save:
            if private.setup.checkpoint is not None:
                private.save()
            self._save_checkpoint(private.model, trial=None)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Nothing: the run's own file has them."""

    def _save_rng_state(self, output_dir: str) -> None:
        """Nothing: a run does not depend on the global generators."""


def _whole(steps: int, per_epoch: int) -> int:
    """The steps of the whole epochs among some steps."""
    return steps - steps % per_epoch
