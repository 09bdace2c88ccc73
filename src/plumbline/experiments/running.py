"""One run of a recipe: a method, a seed, a folder.

The folder holds the recipe as run, versions, the metrics along the way, the ledger, the checkpoint,
the privacy statement, a manifest of all these and the result. A run that was interrupted goes on
from its checkpoint; one that is finished is not repeated. The result is written last, in one piece.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from plumbline.data import Splits
from plumbline.experiments.centring import centre
from plumbline.experiments.files import (
    CHECKPOINT,
    LEDGER,
    RECIPE,
    VERSIONS,
    make_folder,
    write_json,
)
from plumbline.experiments.loading import judged, load_data
from plumbline.experiments.metrics_log import MetricsLog
from plumbline.experiments.probing import probe_of
from plumbline.experiments.results import RunResult, finish, read_result, versions
from plumbline.experiments.run_spec import RunSpec, budget_of
from plumbline.mechanism.ledger import Ledger
from plumbline.training import Private, make_private, resume
from plumbline.training.checkpoint_file import remove_pair
from plumbline.training.distributed import Ranks
from plumbline.training.fitting import StepInfo

LOSS = nn.CrossEntropyLoss(reduction="none")
_SAVE_SECONDS, _SAVE = 20.0, "save"
_RESERVE = 50  # steps charged at a time: a disk may take longer to be sure than a step takes


def run(
    spec: RunSpec,
    root: str | os.PathLike[str],
    on_progress: Callable[[int, int], None] | None = None,
) -> RunResult:
    """Makes the run in its folder below ``root``, or reads its result if it is finished.

    Where several processes make the run, all call this, and the first one has the folder.

    Args:
        spec: What to run.
        root: The folder of the experiment.
        on_progress: Called with (done, total) after each step.
    """
    folder, ranks = Path(root) / spec.folder, Ranks.here()
    with ranks.failing_together():
        finished = ranks.from_first("the result", lambda: read_result(folder))
        if finished is not None:
            if ranks.first:  # of a run that was killed when it had just ended
                remove_pair(folder / CHECKPOINT)
            return finished
        with _one_thread():
            if not ranks.first:
                _share_made(spec, folder)
            return ranks.from_first("the end", lambda: _made(spec, folder, on_progress))


def _made(spec: RunSpec, folder: Path, on_progress: Callable[[int, int], None] | None) -> RunResult:
    make_folder(folder)
    write_json(folder / RECIPE, {**spec.facts, "name": spec.recipe.name})
    write_json(folder / VERSIONS, versions())
    splits = load_data(spec)
    with Ledger.open(folder / LEDGER, reserve=_RESERVE) as ledger:
        private = started(spec, splits, ledger, folder / CHECKPOINT)
        # A run that is killed before its first checkpoint would not be known again, if it is secure
        # or goes on with another number of processes.
        private.save(folder / CHECKPOINT)
        log = _Log(private, splits, folder, spec.recipe.log_every, on_progress)
        probe = probe_of(spec, private, splits, folder) if spec.recipe.probe else None
        private.fit([log, probe] if probe else [log], progress=False)
        if private.steps_done < private.stop:  # fit stops in good order when interrupted
            private.save(folder / CHECKPOINT)
            raise KeyboardInterrupt
        report = judged(private, splits)
        result = RunResult(
            method=spec.method.title,
            seed=spec.seed,
            epsilon=private.epsilon(exact=True),
            steps=private.steps_done,
            seconds=log.rows.seconds,
            report=report,
            statement=private.statement(),
            folder=spec.folder,
        )
        private.close()
    with private.averaged() if spec.averaging is not None else nullcontext(private.model) as model:
        finish(
            folder,
            model,
            run=private.run,
            ledger=ledger.position,
            statement=result.statement + "\n",
            result=result.to_json(),
        )
    return result


def _share_made(spec: RunSpec, folder: Path) -> None:
    """Another rank's part in ``_made``: its share of every step; the first writes and judges."""
    private = started(spec, load_data(spec), None, folder / CHECKPOINT)
    private.save(folder / CHECKPOINT)
    private.fit([lambda *_: _save_if_wished(private, folder)], progress=False)
    if private.steps_done < private.stop:
        private.save(folder / CHECKPOINT)
        raise KeyboardInterrupt
    private.close()


def _save_if_wished(private: Private, folder: Path) -> bool:
    """All ranks save after the same step: when the first one finds that it is time."""
    wished = private.ranks.granted(_SAVE)
    if wished:
        private.save(folder / CHECKPOINT)
    return wished


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
    model = spec.model.build()
    method = spec.method.build()
    settings: dict[str, Any] = {
        "loss": LOSS,
        "method": method,
        "budget": budget_of(spec, method, len(splits.train)),
        "accountant": spec.recipe.budget.accountant,
        "relation": spec.recipe.budget.relation,
        "sensitive_features": splits.train.sensitive_features,
        "seed": spec.random_seed,
        "deterministic": True,
        "ledger": ledger,
        "averaging": spec.averaging,
        "before": spec.before,
    }
    made = spec.optimizer.build(model)
    there = Ranks.here().from_first("the folder", lambda: checkpoint and checkpoint.is_file())
    if checkpoint is not None and there:
        return resume(checkpoint, model, made, splits.train, **settings)
    centre(spec, model, splits.train, ledger)
    return make_private(model, made, splits.train, **settings)


class _Log:
    """After every step: progress, now and then a row of metrics and a checkpoint."""

    def __init__(
        self,
        private: Private,
        splits: Splits,
        folder: Path,
        every: int,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self._splits, self._folder, self._every, self._on_progress = (
            splits,
            folder,
            every,
            on_progress,
        )
        self.rows = MetricsLog(folder, private.steps_done)
        self._saved = time.monotonic()

    def after_step(self, private: Private, info: StepInfo) -> None:
        """Logs, saves, tells."""
        if self._on_progress is not None:
            self._on_progress(info.step, info.steps)
        if info.step % self._every == 0 or info.step == info.steps:
            self.rows.add(info, judged(private, self._splits))
        if time.monotonic() - self._saved > _SAVE_SECONDS and info.step < info.steps:
            private.ranks.wish(_SAVE)
        if _save_if_wished(private, self._folder):
            self._saved = time.monotonic()
