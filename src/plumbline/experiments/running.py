"""One run: data, a model, a loss, a method, a budget, an optimizer and a seed, in a folder.

The folder holds the recipe as run, versions, the metrics along the way, the ledger, the checkpoint,
the encoding of a table, the privacy statement, a manifest of all these and the result. A run that
was interrupted goes on from its checkpoint; one that is finished is not repeated. The result is
written last, in one piece.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from plumbline.data import Splits
from plumbline.diagnostics import Probe
from plumbline.experiments.centring import centre
from plumbline.experiments.charging import Part, open_ledger, require_releasable, write_account
from plumbline.experiments.data_identity import keep_identity
from plumbline.experiments.deciding import NOT_COVERED, choose_threshold, record_weights
from plumbline.experiments.files import (
    ACCOUNT,
    CHECKPOINT,
    ENCODING,
    LEDGER,
    METRICS,
    RECIPE,
    VERSIONS,
    append_row,
    kept_rows,
    make_folder,
    read_rows,
    write_json,
)
from plumbline.experiments.loading import evaluate_run, judged_model, load_data
from plumbline.experiments.probing import DIAGNOSTICS, probe_of
from plumbline.experiments.recipe import Recipe
from plumbline.experiments.run_loggers import check_log, loggers_of
from plumbline.experiments.run_result import (
    RunResult,
    finish,
    read_result,
    result_facts,
    versions,
)
from plumbline.experiments.run_spec import RunSpec, budget_of
from plumbline.experiments.settling import charge_again
from plumbline.experiments.together import totals_beside
from plumbline.fairness import GroupReport, main_metric
from plumbline.fairness.metrics import LOSS
from plumbline.mechanism.ledger import Ledger
from plumbline.private_training import make_private
from plumbline.results import to_json
from plumbline.training import Private
from plumbline.training.distributed import Ranks
from plumbline.training.fitting import Callback, StepInfo
from plumbline.training.keeping import forget
from plumbline.training.loggers import Logger

RESERVE = 50  # steps charged at a time: a disk may take longer to be sure than a step takes
_MOST_LOST = 20  # a run that has lost more than one step in so many is not what was asked for


class StepsLost(RuntimeError):
    """A run has lost many of its steps, and nobody has accepted that."""


def run(
    spec: RunSpec,
    root: str | os.PathLike[str],
    on_progress: Callable[[int, int], None] | None = None,
    *,
    ledger: str | os.PathLike[str] | None = None,
    shared: bool = True,
    part: Part = "run",
    log: Collection[str] = (),
    accept_loss: bool = False,
) -> RunResult:
    """Makes the run in its folder below ``root``, or reads its result if it is finished.

    Where several processes make the run, all call this, and the first one has the folder. Ctrl-C
    ends it after the step, which is saved.

    Args:
        spec: What to run.
        root: The folder of the experiment.
        on_progress: Called with (done, total) after each step.
        ledger: Where it is charged; by default a ledger in its folder and, on a table, before
            that the table's ledger.
        shared: Whether the table's ledger may know of it.
        part: What it is made for. A single run is made to be released: where its table has a limit
            on that, and it could not be, it is refused before its first step.
        log: Where to log besides: "csv" and "tensorboard" in the folder, "mlflow" as it is set up.
        accept_loss: Go on, and end, also if more than a twentieth of the steps were lost.

    Raises:
        StepsLost: If more than that were lost, in power cuts say.
        BudgetExceeded: If it would exceed what its ledger allows.
        OtherData: If the folder's run was started on other data.
        KeyboardInterrupt: If it was interrupted.
    """
    folder, ranks = Path(root) / spec.folder, Ranks.here()
    check_log(log)
    with ranks.failing_together():
        finished = ranks.from_first("the result", lambda: _finished(spec, folder))
        if finished is not None:
            return finished
        with _one_thread():
            if not ranks.first:
                _share_made(spec, folder)

            def opened() -> Ledger:
                own = folder / LEDGER
                return open_ledger(own, spec.data, ledger, reserve=RESERVE, shared=shared)

            return ranks.from_first(
                "the end",
                lambda: _made(spec, folder, opened, part, on_progress, log, accept_loss),
            )


def _finished(spec: RunSpec, folder: Path) -> RunResult | None:
    found = read_result(folder)
    if found is not None:
        keep_identity(folder, spec)
        forget(folder / CHECKPOINT)  # of a run that was killed when it had just ended
    return found


def _made(
    spec: RunSpec,
    folder: Path,
    opened: Callable[[], Ledger],
    part: Part,
    on_progress: Callable[[int, int], None] | None,
    log: Collection[str],
    accept_loss: bool,
) -> RunResult:
    splits = load_data(spec)
    make_folder(folder)
    keep_identity(folder, spec)
    write_json(folder / RECIPE, {**spec.facts, "name": spec.recipe.name})
    write_json(folder / VERSIONS, versions())
    if splits.encoding is not None:
        write_json(folder / ENCODING, splits.encoding.to_json())
    with opened() as ledger:
        private = started(spec, splits, ledger, folder / CHECKPOINT)
        write_account(folder, spec, part, private.run, ledger)
        if part == "run" and spec.method.private:
            require_releasable(ledger, private.run, private.plan)
        if not accept_loss:
            _refuse_loss(private)
        with loggers_of(log, folder, experiment=spec.recipe.name, run=private.run) as loggers:
            kept = _Log(private, splits, folder, spec.recipe, on_progress, loggers)
            probe = probe_of(spec, private, splits, folder) if spec.recipe.probe else None
            _catch_up(private, folder, kept, probe)
            called: list[Callback] = [kept, *([] if probe is None else [probe]), *loggers]
            private.fit(called, progress=False)
        private.save()  # should the evaluation be interrupted, nothing is lost
        if private.steps_done < private.stop:  # fit stops in good order when interrupted
            raise KeyboardInterrupt(f"after step {private.steps_done:,} of {private.stop:,}")
        if not accept_loss:
            _refuse_loss(private)
        threshold = spec.recipe.threshold
        if threshold == "auto":
            assert splits.third is not None
            with judged_model(private) as judged:
                threshold = choose_threshold(judged, splits.third)
        report = kept.last_report(threshold) or evaluate_run(private, splits, threshold)
        result = RunResult(
            **result_facts(spec, splits),
            epsilon=private.epsilon(exact=True),
            delta=private.plan.delta,
            noise_multiplier=private.plan.noise_multiplier,
            steps=private.made,
            seconds=kept.seconds,
            report=report,
            statement=private.statement(),
            threshold=threshold,
        )
        private.close()
    if part == "run" and (folder / ACCOUNT).is_file():
        found = totals_beside(folder, spec.recipe.budget, single=True)
        result = replace(result, budget=found.to_json())
    with judged_model(private) as model:
        finish(
            folder,
            model,
            run=private.run,
            ledger=ledger.position,
            statement=result.statement + "\n",
            result=result.to_json(),
        )
    return result


def _catch_up(private: Private, folder: Path, log: _Log, probe: Probe | None) -> None:
    """Measures what was due when the run was killed right after a step."""
    step, steps = private.steps_done, private.stop
    info = StepInfo(step, steps, private.spent, private.plan.delta)
    measuring: list[tuple[str, int, _Log | Probe]] = [(METRICS, log.every, log)]
    if probe is not None:
        measuring.append((DIAGNOSTICS, probe.every, probe))
    for name, every, one in measuring:
        due = step > 0 and (step % every == 0 or step == steps)
        if due and all(row["step"] != step for row in read_rows(folder / name)):
            one.after_step(private, info)


def _share_made(spec: RunSpec, folder: Path) -> None:
    """Another rank's part in ``_made``: its share of every step; the first writes and judges."""
    private = started(spec, load_data(spec), None, folder / CHECKPOINT)
    private.fit(progress=False)
    private.save()
    if private.steps_done < private.stop:
        raise KeyboardInterrupt
    private.close()


def _refuse_loss(private: Private) -> None:
    lost, steps = private.lost, private.plan.steps
    if lost * _MOST_LOST > steps:
        raise StepsLost(
            f"The run has lost {lost} of its {steps} steps: they were charged, and their results "
            "were lost with the machine or the disk. The model would be worse than what epsilon "
            "pays for. To take it all the same, go on with --accept-loss (in Python, "
            "accept_loss=True); or start anew in another folder, which is charged anew."
        )


@contextmanager
def _one_thread() -> Iterator[None]:
    """A sum's rounding depends on the threads that share it; with one, a run is always the same."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def started(
    spec: RunSpec, splits: Splits, ledger: Ledger | None = None, checkpoint: Path | None = None
) -> Private:
    """The run on its data before its next step: the first, or the one after a checkpoint.

    Args:
        spec: What is run.
        splits: Its data.
        ledger: Where it is charged, if anywhere.
        checkpoint: Where it goes on from, if there is such a file.
    """
    torch.manual_seed(spec.seed)
    model = spec.build_model(splits)
    method = spec.build_method(len(splits.groups))
    settings: dict[str, Any] = {
        "loss": spec.build_loss(),
        "method": method,
        "budget": budget_of(spec, method, splits.train.known_records),
        "accountant": spec.recipe.budget.accountant,
        "relation": spec.recipe.budget.relation,
        "sensitive_features": splits.train.sensitive_features,
        "record_weights": record_weights(spec.recipe, splits),
        "seed": spec.random_seed,
        "deterministic": spec.random_seed is not None,
        "ledger": ledger,
        "averaging": spec.averaging,
        "noise": None if spec.method.noise is None else spec.method.noise.build(),
        "isolation": spec.recipe.isolation,
        "max_physical_batch": spec.recipe.max_physical_batch,
        "before": spec.before,
    }
    if spec.data.found is not None and ledger is not None:
        charge_again(spec.data.found, ledger)
    made = spec.optimizer.build(model)
    there = Ranks.here().from_first("the folder", lambda: checkpoint and checkpoint.is_file())
    if not there:
        centre(spec, model, splits.train, ledger)
    private = make_private(model, made, splits.train, checkpoint=checkpoint, **settings)
    if splits.third is not None:
        private.not_covered += (NOT_COVERED,)
    return private


class _Log:
    """After every step: progress, and now and then a row of metrics.

    When a run goes on, rows beyond where it stands are dropped, since they come again, and the
    clock goes on from the last row that is left.
    """

    def __init__(
        self,
        private: Private,
        splits: Splits,
        folder: Path,
        recipe: Recipe,
        on_progress: Callable[[int, int], None] | None,
        loggers: Sequence[Logger],
    ) -> None:
        self._splits, self._folder, self.every = splits, folder, recipe.log_every
        # One that is chosen is not known before the end.
        self._threshold = None if recipe.threshold == "auto" else recipe.threshold
        self._on_progress, self._loggers = on_progress, loggers
        rows = kept_rows(folder / METRICS, private.steps_done)
        self._earlier = float(rows[-1]["seconds"]) if rows else 0.0
        self._start = time.monotonic()
        self._last: GroupReport | None = None

    @property
    def seconds(self) -> float:
        """How long the run has taken, all sessions together."""
        return self._earlier + time.monotonic() - self._start

    def last_report(self, threshold: float | None) -> GroupReport | None:
        """What was measured after the run's last step, if it was with this threshold."""
        return self._last if threshold == self._threshold else None

    def after_step(self, private: Private, info: StepInfo) -> None:
        """Reports progress, logs and saves where it is due."""
        if self._on_progress is not None:
            self._on_progress(info.step, info.steps)
        if info.step % self.every == 0 or info.step == info.steps:
            self._measured(private, info)

    def _measured(self, private: Private, info: StepInfo) -> None:
        report = evaluate_run(private, self._splits, self._threshold)
        if info.step == info.steps:
            self._last = report
        row = {
            "step": info.step,
            "epsilon": to_json(info.epsilon),
            "seconds": self.seconds,
            "overall": to_json(report.overall),
            "by_group": to_json(report.by_group),
        }
        append_row(self._folder / METRICS, row)
        numbers = {
            f"held out/{name}": value
            for name in (main_metric(report.overall), LOSS)
            if isinstance(value := report.overall.get(name), float)
        }
        for logger in self._loggers:
            logger.log(info.step, not_covered=numbers)
