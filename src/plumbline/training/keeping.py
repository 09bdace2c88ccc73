"""What a run leaves on the disk as it goes: a journal of its steps, and a checkpoint now and then.

``Keeper`` writes both for a run that has a checkpoint file; ``replay`` makes the journal's updates
again when the run goes on. A repeatable run has no journal: its steps are made again, to the bit,
and the ledger does not charge them twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from plumbline.training.checkpoint_content import fitting
from plumbline.training.checkpoint_file import remove_pair
from plumbline.training.distributed_shards import cut_model_state, whole
from plumbline.training.journal import Journal, remove_journals

if TYPE_CHECKING:
    from plumbline.training.private import Private

_SHARE = 20  # a checkpoint may take one part in so many of the time
_SECONDS = 20.0  # after which a new one is due
_BYTES = 1 << 26  # of a journal that make one due earlier
_SAVE = "save"


class Keeper:
    """Keeps a run on the disk.

    Args:
        path: The run's checkpoint; None for a run that is not kept.
        journal: Its journal, on the first rank; None if it is repeatable.
    """

    def __init__(self, path: Path | None, journal: Journal | None) -> None:
        self.path = path
        self._journal = journal
        self._saved = time.monotonic()
        self._took = 0.0
        self._left: int | None = None  # a checksum of the weights as the last step left them

    @property
    def evidence(self) -> str | None:
        """What charges name the journal by."""
        return None if self._journal is None else self._journal.evidence

    def begin(self, step: int) -> None:
        """Once a step is charged, before any answer to it is drawn."""
        if self._journal is not None:
            self._journal.begin(step)

    def release(self, private: Private, step: int, update: Mapping[str, Tensor]) -> None:
        """Once a step is answered, before the optimizer sees the update; on all ranks."""
        if self.path is None or private.setup.repeatable:
            return
        if self._journal is None and not private.sharded:
            return
        content: dict[str, Any] = {
            "made": private.made,
            "update": dict(update),
            "settings": _settings(private.optimizer),
            "method": private.method.state_dict(),
            "records": private.method.private_state_dict(),
        }
        # Code outside, such as a projection after each step, may have moved them. Of shards, all
        # ranks must gather the same.
        if private.sharded or (self._left is not None and _checksum(private) != self._left):
            content["weights"] = dict(private.parameters())
        if private.sharded:
            content = whole(content)
        if self._journal is not None:
            self._journal.release(step, content)

    def after_step(self, private: Private) -> None:
        """After a step: saves if it is time, on all ranks after the same step."""
        if self._journal is not None and not private.sharded:
            self._left = _checksum(private)
        if self.path is None:
            return
        if private.ranks.first and self._is_due():
            private.ranks.wish(_SAVE)
        if private.ranks.granted(_SAVE):
            private.save(self.path)

    @contextmanager
    def saving(self, path: Path, private: Private) -> Iterator[None]:
        """Around the writing of a checkpoint, which takes the journal's place."""
        started = time.monotonic()
        if path == self.path and self._journal is not None and self._journal.size:
            self._journal.require_own()
        yield
        if path == self.path:
            self.begin_anew(private.steps_done)
            if self._left is not None:
                self._left = _checksum(private)  # what else moved them is in the checkpoint too
            self._saved = time.monotonic()
            self._took = self._saved - started

    def begin_anew(self, steps_done: int) -> None:
        """Forgets what the journal holds, since the checkpoint has all of it."""
        if self._journal is not None:
            self._journal.clear(steps_done)

    def _is_due(self) -> bool:
        passed = time.monotonic() - self._saved
        full = self._journal is not None and self._journal.size > _BYTES
        return (full or passed > _SECONDS) and passed > _SHARE * self._took


def crash_cost(*, kept: bool, repeatable: bool, ahead: int) -> str:
    """What a crash can cost a run, in words and steps.

    Args:
        kept: Whether it has a checkpoint file.
        repeatable: Whether its steps can be made again.
        ahead: How many steps its ledger charges at a time.
    """
    if not kept:
        return "A crash costs all of its steps: it has no checkpoint file."
    if repeatable:
        return "A crash costs no step: those since the last checkpoint are made again."
    return (
        "A crash or a kill costs at most the step that it falls in; a power cut, the steps since "
        f"the last checkpoint and up to {ahead} more."
    )


def forget(path: Path) -> None:
    """Deletes what is kept of a run that has ended: its journal and its checkpoint."""
    remove_journals(path)
    remove_pair(path)


def following(releases: Sequence[tuple[int, Any]], made: int) -> list[tuple[int, Any]]:
    """Those releases of a journal that follow on a checkpoint in which ``made`` updates are made.

    None do where an older checkpoint was put back: they are lost, and stay charged.
    """
    found: list[tuple[int, Any]] = []
    for step, content in releases:
        if content["made"] == made + len(found):
            found.append((step, content))
    return found


def replay(private: Private, releases: Sequence[tuple[int, Any]], path: Path) -> None:
    """Makes the updates of a journal again, on the states of the checkpoint that they follow on."""
    with fitting(path):
        for _, content in releases:
            _replayed(private, content)


def _replayed(private: Private, content: Mapping[str, Any]) -> None:
    if (weights := content.get("weights")) is not None:
        with torch.no_grad():
            for name, parameter in private.parameters().items():
                parameter.copy_(_own(private, weights)[name])
        if not private.sharded:  # where they are always there
            private.own_weights.times += 1
    _set(private.optimizer, content["settings"])
    private.method.load_state_dict(content["method"])
    private.method.load_private_state_dict(content["records"])
    private.apply(_own(private, content["update"]))


def _own(private: Private, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    if private.sharded:
        return cut_model_state(values, private.model)
    return {name: values[name].to(p.device) for name, p in private.parameters().items()}


def _settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """What the optimizer's groups of parameters are set to, such as the learning rate."""
    return [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]


def _set(optimizer: torch.optim.Optimizer, settings: list[dict[str, Any]]) -> None:
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        for name, value in own.items():
            # JSON has no tuples.
            group[name] = tuple(value) if isinstance(group.get(name), tuple) else value


def _checksum(private: Private) -> int:
    """A number that a change of the weights changes, by whatever way they are changed."""
    parameters = private.parameters().values()  # of four or eight bytes each
    return int(sum(p.detach().reshape(-1).view(torch.int32).sum() for p in parameters))
