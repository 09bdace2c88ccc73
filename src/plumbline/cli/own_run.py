"""A run on a person's own table, in a folder of its own.

The folder holds the settings, digests of the data, the ledger, a checkpoint while the run is not
finished, metrics along the way, and in the end the weights, how rows become numbers, the privacy
statement and the result, which is written last. Started again with the same settings and data a run
goes on from its checkpoint; with others it is refused.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plumbline.cli.app import Stopped, WrongUse, aside, note, same_command
from plumbline.cli.interrupts import BetweenSteps, stopping_between_steps
from plumbline.cli.own_files import changed_files, keep_digests
from plumbline.cli.own_table import OwnTable
from plumbline.experiments.files import (
    CHECKPOINT,
    ENCODING,
    LEDGER,
    RESULT,
    SETTINGS,
    VERSIONS,
    make_folder,
    read_json,
    write_json,
)
from plumbline.experiments.metrics_log import MetricsLog
from plumbline.experiments.results import finish, versions
from plumbline.results import to_json
from plumbline.training.checkpoint_file import remove_pair

if TYPE_CHECKING:
    from plumbline.mechanism.calibration import Budget
    from plumbline.mechanism.ledger import Ledger
    from plumbline.methods import Method
    from plumbline.training import Private
    from plumbline.training.fitting import StepInfo

SAVE_SECONDS = 20.0
_POINTS = 10  # rows of metrics along a run


@dataclass(frozen=True, kw_only=True)
class OwnRun:
    """What is run.

    Attributes:
        table: The data.
        files: The files that it was read from, by the option that named them.
        method: The method, built.
        settings: Everything that decides the result, as plain values by name; stored.
        budget: How much privacy.
        accountant: "pld" or "rdp".
        model: The network's name and its options.
        optimizer: The optimizer's name.
        learning_rate: Its learning rate.
        seed: For a run that can be repeated; None for secure noise.
        folder: Where it is kept.
        ledger: Where it is charged; by default in its folder.
        tensorboard: Whether to log there too.
    """

    table: OwnTable
    files: Mapping[str, Path]
    method: Method
    settings: dict[str, Any]
    budget: Budget
    accountant: Any
    model: tuple[str, dict[str, Any]]
    optimizer: Any
    learning_rate: float
    seed: int | None
    folder: Path
    ledger: Path | None
    tensorboard: bool

    def make(self) -> dict[str, Any]:
        """Makes the run, goes on with it, or reads its result if it is finished."""
        self._keep_settings()
        result = self.folder / RESULT
        if result.is_file():
            remove_pair(self.folder / CHECKPOINT)  # of a run that was killed when it had just ended
            note(f"This run is finished: its result is read from {self.folder}.")
            return read_json(result)
        from plumbline.mechanism.ledger import Ledger

        with Ledger.open(self.ledger or self.folder / LEDGER) as ledger:
            private = self._started(ledger)
            try:
                seconds = self._fitted(private)
                found = self._result(private, seconds)
            finally:
                private.close()
        self._write(private, ledger, found)
        return found

    def _keep_settings(self) -> None:
        path = self.folder / SETTINGS
        if path.is_file():
            stored = read_json(path)
            other = [
                f"{name} is {self.settings.get(name)!r} now and was {stored.get(name)!r}"
                for name in sorted(self.settings.keys() | stored.keys())
                if self.settings.get(name) != stored.get(name)
            ]
            other += changed_files(self.folder, self.files)
            if other:
                raise WrongUse(
                    f"{self.folder} holds another run: {'; '.join(other)}. Give another folder "
                    "with --out, or the settings and the data of that run to go on with it."
                )
            return
        make_folder(self.folder)
        keep_digests(self.folder, self.files)  # first: a folder with settings always has them
        write_json(path, self.settings)

    def _started(self, ledger: Ledger) -> Private:
        import torch

        from plumbline import models
        from plumbline.experiments.recipe import OptimizerPart
        from plumbline.private_training import make_private

        if self.seed is not None:
            torch.manual_seed(self.seed)
        name, options = self.model
        model = models.build(name, **options)
        optimizer = OptimizerPart(name=self.optimizer, learning_rate=self.learning_rate)
        train = self.table.splits.train
        if train.not_covered:
            train.not_covered += (
                f"{ENCODING}, which holds what is computed from the training records here, and "
                "which the model needs for new rows",
            )
        settings: dict[str, Any] = {
            "loss": torch.nn.CrossEntropyLoss(reduction="none"),
            "method": self.method,
            "budget": self.budget,
            "accountant": self.accountant,
            "sensitive_features": self.table.groups(train),
            "seed": self.seed,
            "deterministic": self.seed is not None,
            "ledger": ledger,
        }
        checkpoint = self.folder / CHECKPOINT
        there = checkpoint.is_file()
        made = optimizer.build(model)
        private = make_private(model, made, train, checkpoint=checkpoint, **settings)
        if there:
            note(f"Going on with the run in {self.folder}, from step {private.steps_done:,}.")
        return private

    def _fitted(self, private: Private) -> float:
        """Makes the remaining steps; returns the seconds that all of them took."""
        board = None
        if self.tensorboard:
            from plumbline.training.tensorboard import TensorBoard

            board = TensorBoard(self.folder / "tensorboard", first=private.steps_done)
        log = _Log(self, private, board)
        try:
            with stopping_between_steps() as between_steps:
                callbacks: list[Any] = [log, *([board] if board is not None else [])]
                private.fit([*callbacks, lambda *_: between_steps()], progress=aside)
        except BetweenSteps:
            private.save(self.folder / CHECKPOINT)
            raise Stopped(
                f"stopped after step {private.steps_done:,} of {private.stop:,}, which is saved in "
                f"{self.folder}. To go on, give the same command again: {same_command()}"
            ) from None
        except KeyboardInterrupt:
            raise Stopped(
                f"broken off in step {private.steps_done:,} of {private.stop:,}. The run in "
                f"{self.folder} goes on from its last checkpoint with the same command; what was "
                f"spent after it stays spent: {same_command()}"
            ) from None
        finally:
            if board is not None:
                board.close()
        private.save(self.folder / CHECKPOINT)  # should judging be interrupted, nothing is lost
        return log.rows.seconds

    def _result(self, private: Private, seconds: float) -> dict[str, Any]:
        report = self.table.judge(private.model, self.table.splits.test)
        name, options = self.model
        return {
            "method": self.settings["method"],
            "epsilon": to_json(private.epsilon(exact=True)),
            "delta": private.plan.delta,
            "noise_multiplier": private.plan.noise_multiplier,
            "steps": private.steps_done,
            "seconds": seconds,
            "report": report.to_json(),
            "statement": private.statement(),
            "model": {"name": name, "options": options},
            "features": list(self.table.splits.features),
            "classes": list(self.table.splits.classes),
            "settings": self.settings,
            "folder": str(self.folder),
            "command": same_command(),
        }

    def _write(self, private: Private, ledger: Ledger, found: dict[str, Any]) -> None:
        write_json(self.folder / VERSIONS, versions())
        assert self.table.splits.encoding is not None
        write_json(self.folder / ENCODING, self.table.splits.encoding.to_json())
        finish(
            self.folder,
            private.model,
            run=private.run,
            ledger=ledger.position,
            statement=found["statement"],
            result=found,
        )


class _Log:
    """After every step: now and then a row of metrics of the held-out part, and a checkpoint."""

    def __init__(self, run: OwnRun, private: Private, board: Any) -> None:
        self._run, self._board = run, board
        self._every = max(1, private.stop // _POINTS)
        self.rows = MetricsLog(run.folder, private.steps_done)
        self._saved = time.monotonic()

    def after_step(self, private: Private, info: StepInfo) -> None:
        """Logs and saves where it is due."""
        if info.step % self._every == 0 or info.step == info.steps:
            self._measured(private, info)
        if time.monotonic() - self._saved > SAVE_SECONDS and info.step < info.steps:
            private.save(self._run.folder / CHECKPOINT)
            self._saved = time.monotonic()

    def _measured(self, private: Private, info: StepInfo) -> None:
        report = self._run.table.judge(private.model, self._run.table.splits.test)
        self.rows.add(info, report)
        if self._board is not None:
            values = {name: report.overall[name] for name in ("accuracy", "loss")}
            numbers = {f"held out/{k}": v for k, v in values.items() if isinstance(v, float)}
            self._board.add(info.step, numbers)
