"""Checkpoints: ``save`` a run, ``resume`` it in another process.

Guarantees. A checkpoint is replaced as a whole or not at all, holds no key and no seed, and loads
with ``torch.load(weights_only=True)``. A resumed run never counts less than was charged: steps that
the ledger has and the checkpoint has not stay charged, and the run stops at its budget. What the
new process does with them depends on the randomness:

| run | steps after the checkpoint are | and are charged |
| --- | --- | --- |
| secure | not made again; new ones come from a new key | as new steps |
| ``seed`` and ``deterministic`` | made again, bit for bit | not again: the ledger knows them |
| ``seed`` alone | not made again; new ones come from fresh positions | as new steps |

Of several processes the first writes and reads, and all call ``save`` and ``resume``. A run may go
on with another number of processes; their shares of the noise are then others, so that a
deterministic run too goes on at fresh positions.
"""

from __future__ import annotations

import dataclasses
import io
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from plumbline.mechanism.accountant import Accountant, Relation
from plumbline.mechanism.calibration import Budget, Plan
from plumbline.mechanism.ledger import Ledger, Position
from plumbline.mechanism.release import StepRelease
from plumbline.training.checkpoint_content import check_fields, fitting, sealed, unsealed
from plumbline.training.checkpoint_file import (
    CheckpointError,
    read_file,
    read_partner,
    write_pair,
)
from plumbline.training.distributed import Ranks
from plumbline.training.distributed_shards import cut_model_state, cut_optimizer_state, whole
from plumbline.training.losses import Loss
from plumbline.training.private import Private
from plumbline.training.public import PublicData
from plumbline.training.records import Collate
from plumbline.training.run_identity import Facts, differences, last_attempt, run_id
from plumbline.training.session import start
from plumbline.training.setup import Method, Setup

FORMAT = 1
_KIND = "plumbline checkpoint"
_PLANNED = (
    "noise_multiplier",
    "steps",
    "sampling_rate",
    "expected_batch_size",
    "records",
    "delta",
    "accountant",
    "relation",
)


class CheckpointMismatch(CheckpointError):
    """A checkpoint was resumed with other settings than those it was made with."""


def save(private: Private, path: str | os.PathLike[str], *, schedulers: Sequence[Any] = ()) -> None:
    """Writes a checkpoint of a run, in place of an earlier one at ``path``.

    Between steps, so that everything in it is of one moment. Where several processes make the run,
    all of them call this and the first one writes. It holds the model, the optimizer,
    the schedulers, the method's state and the run's position; of the noise and of the sampling no
    key, and no seed. State of single records, which few methods have, goes to ``<path>.PRIVATE``.

    Args:
        private: The run.
        path: The file.
        schedulers: Learning-rate schedulers of its optimizer; ``resume`` needs as many.

    Raises:
        CheckpointError: If it cannot be written, or holds what ``torch.load(weights_only=True)``
            would refuse. What was at ``path`` is then as it was.
    """
    with private.ranks.failing_together():
        if private.average is not None:
            private.average.require_own_weights("save")
        private.put_shards_back()
        random = private.ranks.gathered("saving", _random_state() if private.seeded else None)
        states = {
            "model": private.model.state_dict(),
            "optimizer": private.optimizer.state_dict(),
            "average": None if private.average is None else private.average.state_dict(),
        }
        if private.sharded:
            states = whole(states)
        private.ranks.from_first(
            "the checkpoint", lambda: _write(private, Path(path), schedulers, random, states)
        )


def _write(
    private: Private,
    path: Path,
    schedulers: Sequence[Any],
    random: Sequence[Any],
    states: Mapping[str, Any],
) -> None:
    state_of_records: dict[str, Any] = getattr(private.method, "private_state_dict", dict)()
    token = secrets.token_hex(8)
    position = None if private.ledger is None else private.ledger.position
    content = {
        "kind": _KIND,
        "format": FORMAT,
        "token": token,
        "has_private_state": bool(state_of_records),
        "settings": _settings(private.facts, private, schedulers),
        "plan": _planned(private.plan),
        "run": private.run,
        "attempt": private.attempt,
        "steps_done": private.steps_done,
        "charged": private.charged,
        "ledger": None if position is None else dataclasses.asdict(position),
        **states,
        "schedulers": [scheduler.state_dict() for scheduler in schedulers],
        "method": private.method.state_dict(),
        "sampler": private.sampler_state(),
        "random": random[0],
        "random_of_others": list(random[1:]),
        "ranks": private.ranks.count,
        "processes": list(private.processes),
    }
    write_pair(
        path,
        _to_bytes(sealed(content)),
        token,
        _to_bytes(sealed(state_of_records)) if state_of_records else None,
    )


def resume(
    path: str | os.PathLike[str],
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
    schedulers: Sequence[Any] = (),
) -> Private:
    """Goes on with a run from a checkpoint; give what ``make_private`` was given.

    The model, the optimizer and the schedulers, newly built, take up their stored states. With a
    seed, torch's own generator (of dropout, say) does too.

    Args:
        path: The checkpoint.
        model: As for ``make_private``, and so on for all arguments that are not named here.
        optimizer: The same.
        dataset: The same.
        loss: The same.
        method: The same.
        budget: The same.
        accountant: The same.
        relation: The same.
        sensitive_features: The same.
        max_physical_batch: The same; it may change unless the run is deterministic.
        seed: The same.
        deterministic: The same.
        ledger: The run's ledger, opened again. Without one, steps made after the checkpoint and
            lost in a crash are not known, and the statement says so.
        user_ids: The same.
        collate: The same.
        public: The same.
        averaging: The same.
        before: The same.
        schedulers: As many as were given to ``save``, in that order.

    Raises:
        CheckpointMismatch: If the data set's size (in users, where they are the unit of privacy),
            the method, the budget or another setting is not that of the checkpoint; the difference
            is named, and nothing was loaded.
        CheckpointError: If the checkpoint cannot be read, or is of an unknown format.
        LedgerDamaged: If the ledger lacks what was charged before the checkpoint was made.
    """
    ranks = Ranks.here()
    with ranks.failing_together():
        data = ranks.from_first("the checkpoint", lambda: read_file(Path(path)))
        stored = _load(data, Path(path))
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
        given = _settings(setup.facts, setup, schedulers)
        if not ranks.first:  # only the first rank has the ledger
            given["a ledger given"] = stored["settings"]["a ledger given"]
        found = differences(given, stored["settings"])
        if not found and seed is not None and run_id(seed, setup.facts) != stored["run"]:
            found = [f"the seed is {seed} here and another one in the checkpoint"]
        _refuse(path, found)
        plan = setup.plan(stored["plan"]["noise_multiplier"])
        _refuse(path, differences(_planned(plan), stored["plan"]))
        if ledger is not None:
            ledger.verify_position(Position(**stored["ledger"]))
        private = start(
            setup,
            plan,
            ranks,
            run=stored["run"],
            attempt=_attempt(setup, stored, ranks.count),
            steps_done=stored["steps_done"],
            charged=stored["charged"],
            warnings=() if ledger is not None else (_NO_LEDGER,),
            processes=stored["processes"],
        )
        with fitting(Path(path)):
            _take_up(private, stored, Path(path), schedulers)
        return private


_NO_LEDGER = (
    "The run was resumed from a checkpoint and has no ledger. Steps made after the checkpoint and "
    "lost, in a crash say, are not known and not counted: if anyone can have seen their results, "
    "more was spent than is stated here."
)


def _take_up(
    private: Private, stored: Mapping[str, Any], path: Path, schedulers: Sequence[Any]
) -> None:
    """Loads all states; what may fail by the user's doing comes first."""
    state_of_records = None
    if stored["has_private_state"]:
        state_of_records = unsealed(_from_bytes(read_partner(path, stored["token"]), path), path)
    if private.sharded:
        stored = _cut(private, stored)
    private.model.load_state_dict(stored["model"])
    private.optimizer.load_state_dict(stored["optimizer"])
    for scheduler, state in zip(schedulers, stored["schedulers"], strict=True):
        scheduler.load_state_dict(state)
    private.method.load_state_dict(stored["method"])
    if state_of_records is not None:
        private.method.load_private_state_dict(state_of_records)  # type: ignore[attr-defined]
    if private.average is not None:
        private.average.load_state_dict(stored["average"])
    private.load_sampler_state(stored["sampler"])
    of_ranks = [stored["random"], *stored["random_of_others"]]
    random = of_ranks[private.ranks.rank] if private.ranks.rank < len(of_ranks) else None
    if random is not None:
        _set_random_state(random)


def _cut(private: Private, stored: Mapping[str, Any]) -> dict[str, Any]:
    """The whole states of a checkpoint as each rank has them."""
    average = stored["average"]
    if average is not None:
        average = {**average, "weights": cut_model_state(average["weights"], private.model)}
    return {
        **stored,
        "model": cut_model_state(stored["model"], private.model),
        "optimizer": cut_optimizer_state(stored["optimizer"], private.optimizer),
        "average": average,
    }


def _attempt(setup: Setup, stored: Mapping[str, Any], ranks: int) -> int:
    """Which noise a seeded run uses from now on: the same to replay, otherwise fresh."""
    attempt: int = stored["attempt"]
    if setup.seed is None or (setup.deterministic and stored["ranks"] == ranks):
        return attempt
    if setup.ledger is not None:
        return 1 + max(attempt, last_attempt(setup.ledger.noise_positions(stored["run"])))
    # Nobody knows whether this checkpoint was resumed before, and with which number.
    return attempt + 1 + secrets.randbelow(1 << 30)


def _settings(facts: Facts, run: Private | Setup, schedulers: Sequence[Any]) -> Facts:
    """All that must be equal on resuming."""
    settings = facts | {
        "a ledger given": run.ledger is not None,
        "the optimizer": type(run.optimizer).__name__,
        "averaging": run.averaging,
        "the schedulers": ", ".join(type(one).__name__ for one in schedulers) or "none",
    }
    if facts["the unit of privacy"] == "user":
        # The number of users is public. That of all their records would tell how many one has.
        del settings["the number of records"]
    if run.deterministic:
        settings["max_physical_batch"] = run.max_physical_batch
        settings["torch.get_num_threads()"] = torch.get_num_threads()
    return settings


def _planned(plan: Plan) -> Facts:
    return {name: getattr(plan, name) for name in _PLANNED}


def _refuse(path: str | os.PathLike[str], found: list[str]) -> None:
    if found:
        raise CheckpointMismatch(
            f"The checkpoint {os.fspath(path)} cannot be resumed like this: {'; '.join(found)}. "
            "Nothing was loaded. Resume with the data set and the settings of the run that was "
            "saved, or start a new run with make_private."
        )


def _random_state() -> dict[str, Any]:
    # Empty without a GPU.
    return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all()}


def _set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


def _to_bytes(content: Mapping[str, Any]) -> bytes:
    # In memory first: a full disk then meets a plain write, which can be undone.
    buffer = io.BytesIO()
    torch.save(content, buffer)
    buffer.seek(0)
    foreign = torch.serialization.get_unsafe_globals_in_checkpoint(buffer)
    if foreign:
        raise CheckpointError(
            f"The state to be saved holds objects of {', '.join(sorted(foreign))}, which "
            "torch.load(weights_only=True) refuses. Nothing was written. The states of model, "
            "optimizer, schedulers and method may hold tensors, numbers, strings, lists and "
            "dicts: make, for example, float(x) of a NumPy number."
        )
    return buffer.getvalue()


def _from_bytes(data: bytes, path: Path) -> Any:
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # damage can look like anything
        raise CheckpointError(
            f"{path} is not a checkpoint, or is damaged: torch.load(weights_only=True) refuses it "
            f"({type(error).__name__}). Give a file that Private.save has written."
        ) from error


def _load(data: bytes, path: Path) -> dict[str, Any]:
    content = _from_bytes(data, path)
    if not isinstance(content, dict) or str(content.get("kind")) != _KIND:
        raise CheckpointError(
            f"{path} is not a Plumbline checkpoint. Give a file that Private.save has written; a "
            "model's state dict alone does not say what was spent."
        )
    if type(content.get("format")) is not int or content["format"] != FORMAT:
        raise CheckpointError(
            f"{path} has the checkpoint format {content.get('format')!r}, and this version of "
            f"Plumbline reads {FORMAT}. Resume with the version that wrote it."
        )
    content = unsealed(content, path)
    check_fields(content, path)
    # Checkpoints of one process were written without these.
    return {"ranks": 1, "processes": [1], "random_of_others": [], **content}
