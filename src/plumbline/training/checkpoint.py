"""Checkpoints: ``save`` writes a run, and ``session.start`` goes on with it in another process.

Guarantees. A checkpoint is replaced as a whole or not at all, holds no key and no seed, and loads
with ``torch.load(weights_only=True)``. It is refused if a setting, the data set's size or the
method differs. A resumed run never counts less than was charged: steps that the ledger has and the
checkpoint has not stay charged, and the run stops at its budget. What the new process does with
them depends on the randomness:

| run | steps after the checkpoint are | and are charged |
| --- | --- | --- |
| secure | lost; new ones come from a new key | as new steps |
| ``seed`` and ``deterministic`` | made again, bit for bit | not again: the ledger knows them |
| ``seed`` alone | lost; their numbers, and so their noise, are not used again | as new steps |

Steps whose updates are in the journal (``journal``) are not among them: these updates are made
again, as they were released. Of several processes the first writes and reads, and all take part. A
run may go on with another number of processes; their shares of the noise are then others, and a
deterministic run too does not make steps again. Nor does one whose noise is correlated between
steps: the exact sums that it was made from are not stored.
"""

from __future__ import annotations

import dataclasses
import io
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from plumbline.mechanism.calibration import Plan
from plumbline.mechanism.ledger import Position
from plumbline.training.checkpoint_content import (
    check_fields,
    damaged,
    fitting,
    sealed,
    unsealed,
)
from plumbline.training.checkpoint_file import (
    CheckpointError,
    read_file,
    read_partner,
    write_pair,
)
from plumbline.training.distributed import Ranks
from plumbline.training.distributed_shards import cut_model_state, cut_optimizer_state, whole
from plumbline.training.run_identity import Facts, differences, run_id
from plumbline.training.setup import Setup

if TYPE_CHECKING:
    from plumbline.training.private import Private

FORMAT = 1
PARTS = "parts"
"""What the key of the records' parts is stored under."""
ORDER = "order"
"""What the mark of the records' order is stored under (``record_order``)."""
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
    """A run was to go on from the checkpoint of another one, or with other settings."""


def save(private: Private, path: str | os.PathLike[str]) -> None:
    """Writes a checkpoint of a run, in place of an earlier one at ``path``.

    Call it between steps, so that everything in it is of one moment; where several processes make
    the run, on all of them: the first one writes. It holds the model, the optimizer, the
    schedulers, the method's state and the run's position; of the noise and of the sampling no key,
    and no seed. State of single records, which few methods have, goes to ``<path>.PRIVATE``, and so
    does the key of their parts, where noise is correlated.

    Raises:
        CheckpointError: If it cannot be written, or holds what ``torch.load(weights_only=True)``
            would refuse. What was at ``path`` is then unchanged.
        LedgerError: If the ledger cannot be told; the checkpoint is then written all the same.
        RecordsMixError: If the model has written to a buffer or a frozen parameter.
    """
    with private.ranks.failing_together():
        if private.average is not None:
            private.average.require_own_weights("save")
        private.check_state()
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
            "the checkpoint", lambda: _write(private, Path(path), random, states)
        )


def _write(private: Private, path: Path, random: Sequence[Any], states: Mapping[str, Any]) -> None:
    state_of_records = private.private_state_dict()
    token = secrets.token_hex(8)
    position = None if private.ledger is None else private.ledger.position
    content = {
        "kind": _KIND,
        "format": FORMAT,
        "token": token,
        "has_private_state": bool(state_of_records),
        "settings": _settings(private.setup),
        "plan": _planned(private.plan),
        "run": private.run,
        "attempt": private.attempt,
        "steps_done": private.steps_done,
        "made": private.made,
        "charged": private.charged,
        "ledger": None if position is None else dataclasses.asdict(position),
        **states,
        "schedulers": [scheduler.state_dict() for scheduler in private.setup.schedulers],
        "method": private.method.state_dict(),
        "sampler": private.sampler_state(),
        "random": random[0],
        "random_of_others": list(random[1:]),
        "ranks": private.ranks.count,
        "processes": list(private.processes),
        "moved": private.moved,
    }
    write_pair(
        path,
        _to_bytes(sealed(content)),
        token,
        _to_bytes(sealed(state_of_records)) if state_of_records else None,
    )
    if private.ledger is not None:
        private.ledger.note_checkpoint(private.run, step=private.steps_done, token=token)


def read(path: Path, ranks: Ranks) -> dict[str, Any] | None:
    """The content of a checkpoint, on all ranks; None if there is no such file.

    Raises:
        CheckpointError: If the file cannot be read, is damaged, or is of an unknown format.
    """
    data = ranks.from_first("the checkpoint", lambda: read_file(path))
    return None if data is None else _load(data, path)


def plan_of(setup: Setup, stored: Mapping[str, Any], path: Path, ranks: Ranks) -> Plan:
    """The plan of the run that was saved.

    Raises:
        CheckpointMismatch: If the setup is that of another run; names the difference.
        LedgerDamaged: If the ledger lacks what was charged before the checkpoint was made.
    """
    given = _settings(setup)
    if not ranks.first:  # only the first rank has the ledger
        given["a ledger given"] = stored["settings"]["a ledger given"]
    found = differences(given, stored["settings"])
    seed = setup.seed
    if not found and seed is not None and run_id(seed, setup.facts) != stored["run"]:
        found = [f"the seed is {seed} here and another one in the checkpoint"]
    _refuse(path, found)
    plan = setup.plan(stored["plan"]["noise_multiplier"])
    _refuse(path, differences(_planned(plan), stored["plan"]))
    if setup.ledger is not None:
        setup.ledger.verify_position(Position(**stored["ledger"]))
    return plan


def older_than_known(setup: Setup, stored: Mapping[str, Any]) -> tuple[str, ...]:
    """A warning, if the ledger knows of a later checkpoint of the run than the one that is given.

    Everything that was released since stays charged, since the ledger says what was spent and the
    checkpoint does not. A run that makes the same steps again, bit for bit, needs no warning.
    """
    if setup.ledger is None or setup.repeatable:
        return ()
    later = setup.ledger.later_checkpoint(
        stored["run"], token=stored["token"], position=Position(**stored["ledger"])
    )
    if later is None:
        return ()
    return (
        f"The run went on from a checkpoint of step {stored['steps_done']:,}, though the ledger "
        f"knows of a later one, of step {later:,}: the folder was restored from a backup, or "
        "copied. Steps made in between stay charged, for their results may have been seen.",
    )


def next_attempt(setup: Setup, stored: Mapping[str, Any], ranks: int) -> int:
    """Which noise a seeded run uses from now on: the same to replay, otherwise fresh."""
    attempt: int = stored["attempt"]
    if setup.seed is None or setup.ledger is not None or remade(setup, stored, ranks):
        return attempt  # the ledger knows which steps' noise was used
    # Nobody knows whether this checkpoint was resumed before, and with which number.
    return attempt + 1 + secrets.randbelow(1 << 30)


def remade(setup: Setup, stored: Mapping[str, Any], ranks: int) -> bool:
    """Whether steps that were made behind the checkpoint can be made again, bit for bit."""
    return setup.repeatable and bool(stored["ranks"] == ranks)


def parts_key(stored: Mapping[str, Any], path: Path) -> bytes:
    """The key that the records' parts are drawn with, from the file marked PRIVATE.

    Raises:
        CheckpointError: If it is not there: with other parts, records would take part too often.
    """
    key = _of_records(stored, path).get(PARTS) if stored["has_private_state"] else None
    if not isinstance(key, str):
        raise damaged(path, "the file marked PRIVATE does not say in which part records are")
    return bytes.fromhex(key)


def require_order(stored: Mapping[str, Any], path: Path, mark: str) -> None:
    """Refuses records in another order than when the run began: their parts would be others.

    Raises:
        CheckpointMismatch: If the mark of their order is another one, or is not there.
    """
    known = _of_records(stored, path).get(ORDER) if stored["has_private_state"] else None
    if known != mark:
        _refuse(
            path,
            [
                "records are in another order, or are others. With correlated noise a record has "
                "its turn by its number in the data set, and would have it twice: sort files and "
                "rows, and split and shuffle them with a fixed seed"
            ],
        )


def _of_records(stored: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """What the file marked PRIVATE has."""
    return unsealed(_from_bytes(read_partner(path, stored["token"]), path), path)


def restore(private: Private, stored: Mapping[str, Any], path: Path) -> None:
    """Loads all states, those first that may not fit what the user gave.

    Raises:
        CheckpointError: If a state does not fit its object.
    """
    state_of_records: dict[str, Any] = {}
    if stored["has_private_state"]:
        state_of_records = private.ranks.from_first(
            "the state of single records", lambda: _of_records(stored, path)
        )
        for known in (PARTS, ORDER):  # with which the session has begun
            state_of_records.pop(known, None)
    with fitting(path):
        _restore(private, stored, state_of_records)


def _restore(private: Private, stored: Mapping[str, Any], state_of_records: dict[str, Any]) -> None:
    if private.sharded:
        stored = _cut(private, stored)
    private.model.load_state_dict(stored["model"])
    private.optimizer.load_state_dict(stored["optimizer"])
    for scheduler, state in zip(private.setup.schedulers, stored["schedulers"], strict=True):
        scheduler.load_state_dict(state)
    private.method.load_state_dict(stored["method"])
    if state_of_records:
        private.method.load_private_state_dict(state_of_records)
    if private.average is not None:
        private.average.load_state_dict(stored["average"])
    private.load_sampler_state(stored["sampler"])
    private.own_weights.times = stored["moved"]
    private.own_weights.leave()
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


def _settings(setup: Setup) -> Facts:
    """All that must be equal for a run to go on."""
    settings = setup.facts | {
        "a ledger given": setup.ledger is not None,
        "the optimizer": type(setup.optimizer).__name__,
        "averaging": setup.averaging,
        "the schedulers": ", ".join(type(one).__name__ for one in setup.schedulers) or "none",
    }
    if settings["the unit of privacy"] == "user":
        # The number of users is public. That of all their records would tell how many one has.
        del settings["the number of records"]
    if setup.stated_records is not None:  # so that the exact one stays hidden
        settings.pop("the number of records", None)
        del settings["the number of units"]
    if setup.deterministic:
        settings["max_physical_batch"] = setup.max_physical_batch
        settings["torch.get_num_threads()"] = torch.get_num_threads()
    return settings


def _planned(plan: Plan) -> Facts:
    return {name: getattr(plan, name) for name in _PLANNED}


def _refuse(path: Path, found: list[str]) -> None:
    if found:
        raise CheckpointMismatch(
            f"The checkpoint {path} is of another run: {'; '.join(found)}. Nothing was loaded. "
            "Give the data set and the settings of the run that was saved to go on with it, or "
            "start a new one with another checkpoint file. (If it failed before its first step, "
            "nothing was spent, and its files can be deleted.)"
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
    content.setdefault("moved", 0)  # which earlier versions did not count
    check_fields(content, path)
    return content
