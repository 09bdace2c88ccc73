"""``start``: a run from its beginning or from its checkpoint, on every process that makes it.

The first rank asks the ledger, decides where the run stands, and tells the others; what the ranks
cannot do together is refused here, before the first step.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumbline.gradients.kernels import KERNELS
from plumbline.mechanism.calibration import Plan
from plumbline.mechanism.random_source import RandomSource, SecureSource, SeededSource
from plumbline.training import checkpoint, journal
from plumbline.training.charging import Charges
from plumbline.training.distributed import Ranks, RanksDisagree
from plumbline.training.distributed_shards import Shards, is_shard
from plumbline.training.keeping import Keeper, following, replay
from plumbline.training.private import Private
from plumbline.training.public import PublicStream
from plumbline.training.record_order import order_mark
from plumbline.training.run_identity import (
    Facts,
    differences,
    noise_position,
    refuse_shared_seed,
    require_begun,
    require_charged,
    run_id,
)
from plumbline.training.setup import Setup


def start(setup: Setup, ranks: Ranks | None = None) -> Private:
    """The run, ready for its next step.

    If its checkpoint exists, the run goes on from there: the model, the optimizer and the
    schedulers get the states stored in it (so does torch's own generator, in a run with a seed),
    and then the updates in the journal are made again. If not, the run begins, and its first
    checkpoint is written at once.

    Args:
        setup: What the user gave.
        ranks: The processes that make the run; by default those of the process group, or this one.

    Raises:
        BudgetError: If the budget does not fit the data or cannot be met.
        BudgetExceeded: If the ledger has no room for the steps that are left.
        NoiseReuse: If another run on the ledger has the same seed.
        CheckpointMismatch: If the checkpoint is of a run with other settings; nothing was loaded.
        CheckpointError: If it cannot be read or written, or is damaged.
        LedgerDamaged: If the ledger lacks what was charged before the checkpoint was made.
        LedgerError: If it lacks what was charged since, as the journal shows.
        RanksDisagree: If the ranks were given different settings.
        RankFailed: If another rank could not start.
    """
    ranks = Ranks.here() if ranks is None else ranks
    with ranks.failing_together():
        path = None if setup.checkpoint is None else Path(setup.checkpoint)
        there = path is not None and path.exists()
        # Locked before anything is read: from here on nobody else makes a step of the run, which
        # its files would show too late.
        keeper = _keeper(setup, ranks) if there else None
        stored = None if path is None else checkpoint.read(path, ranks)
        if path is not None and stored is not None:
            return _resumed(setup, ranks, path, stored, keeper)
        # A seeded run that only the ledger knows is made again from its first step.
        past = _Past(run_id(setup.seed, setup.facts), remade=True)
        private = _start(setup, setup.plan(), ranks, past, keeper)
        if path is not None:
            # A run that was killed before its first checkpoint would not be recognised.
            private.save(path)
        return private


def _resumed(
    setup: Setup, ranks: Ranks, path: Path, stored: Mapping[str, Any], keeper: Keeper | None
) -> Private:
    """The run of a checkpoint, with the updates that its journal shows beyond it."""
    plan = checkpoint.plan_of(setup, stored, path, ranks)
    found = journal.Found()
    if not setup.repeatable:
        of_records = setup.method.keeps_records
        found = ranks.from_first("the journal", lambda: journal.read(path, private=of_records))
    saved = stored["steps_done"]
    begun = max(saved, found.begun)
    past = _Past(
        run=stored["run"],
        attempt=checkpoint.next_attempt(setup, stored, ranks.count),
        begun=begun,
        remade=checkpoint.remade(setup, stored, ranks.count),
        journal=found.evidence,
        made=stored["made"],
        charged=stored["charged"] + begun - saved,
        warnings=(
            (_NO_LEDGER,) if setup.ledger is None else checkpoint.older_than_known(setup, stored)
        ),
        processes=stored["processes"],
        parts=_stored_parts(setup, stored, path, ranks),
    )
    if setup.correlated is not None:
        ranks.from_first(
            "the order",
            lambda: checkpoint.require_order(stored, path, _order_mark(setup, past.parts)),
        )
    private = _start(setup, plan, ranks, past, keeper)
    checkpoint.restore(private, stored, path)
    replay(private, following(found.releases, stored["made"]), path)
    if begun > saved or stored["ranks"] != ranks.count:
        private.save(path)
    else:
        private.keeper.begin_anew(private.steps_done)
    return private


def _stored_parts(
    setup: Setup, stored: Mapping[str, Any], path: Path, ranks: Ranks
) -> bytes | None:
    if setup.correlated is None or setup.seed is not None:
        return None
    return ranks.from_first("the parts", lambda: checkpoint.parts_key(stored, path))


def _parts_source(setup: Setup, key: bytes | None) -> RandomSource:
    """What records' parts are drawn from: the same in all sessions of a run."""
    return SecureSource(key) if setup.seed is None else SeededSource(setup.seed, "parts")


def _parts_state(setup: Setup, parts: bytes) -> dict[str, str]:
    """What the file marked PRIVATE has of the records' parts: their key, where no seed is it."""
    if setup.correlated is None:
        return {}
    key = {checkpoint.PARTS: parts.hex()} if setup.seed is None else {}
    return {checkpoint.ORDER: _order_mark(setup, parts), **key}


def _order_mark(setup: Setup, parts: bytes | None) -> str:
    return order_mark(setup.records, setup.user_ids, _parts_source(setup, parts))


_NO_LEDGER = (
    "The run was resumed from a checkpoint and has no ledger. Steps made after it that neither the "
    "checkpoint nor the journal beside it shows, as after a power cut, are not known and not "
    "counted: if anyone can have seen their results, more was spent than is stated here."
)


@dataclass(frozen=True)
class _Past:
    """What checkpoint and journal say of a run.

    Attributes:
        run: The run's id.
        attempt: How often a seeded run was resumed with fresh noise and batches.
        begun: No step from this one on was begun, as far as they show.
        remade: Whether steps that were begun and lost are made again, to the bit.
        journal: What the journal is known by, if it may serve as evidence.
        made: How many updates are in the checkpoint.
        charged: How many steps were charged, where there is no ledger to ask.
        warnings: For the statement.
        processes: How many ranks there were in earlier sessions.
        parts: The key of the records' parts, where noise is correlated and there is no seed.
    """

    run: str
    attempt: int = 0
    begun: int = 0
    remade: bool = False
    journal: str | None = None
    made: int = 0
    charged: int = 0
    warnings: tuple[str, ...] = ()
    processes: Sequence[int] = ()
    parts: bytes | None = None


def _start(setup: Setup, plan: Plan, ranks: Ranks, past: _Past, keeper: Keeper | None) -> Private:
    """The run behind its past; what the first rank says holds for all."""
    shards = Shards.of(setup.model, ranks)
    _refuse_ranks(setup, ranks, shards)
    decided = ranks.from_first("the start", lambda: _decide(setup, plan, past))
    found = differences(_agreed(setup, plan), decided.facts, "on rank 0")
    if found:
        raise RanksDisagree(
            f"Rank {ranks.rank} was given another run than rank 0: {'; '.join(found)}. Give the "
            "same settings and data on every process."
        )
    weights = [*setup.model.parameters(), *setup.model.buffers()]
    ranks.take_from_first("the first weights", [one for one in weights if not is_shard(one)])
    drawing, source, noise = _sources(setup.seed, decided, ranks)
    parts = _parts_source(setup, decided.parts)
    sampler = setup.sampler(plan.release.sampling.rate, drawing, parts)
    if sampler.event() != plan.release.sampling:
        raise ValueError(
            f"The sampler draws batches by {sampler.event()}, and the plan accounts for "
            f"{plan.release.sampling}: epsilon would be that of another run. Give it the plan's "
            "sampling."
        )
    if len(setup.bands(plan.steps)) > sampler.parts:
        raise ValueError(
            f"Noise is correlated over {len(setup.bands(plan.steps))} steps, and the sampler lets "
            f"a record take part in one of {sampler.parts}: two of its columns would overlap, and "
            "it would be charged too little. Give the sampler as many parts as there are bands."
        )
    if setup.deterministic:
        # Each layer's first kernel, which its shape alone decides. A table of choices, kept in the
        # checkpoint, would tell how large batches and users were.
        KERNELS.pin()
    recognised = setup.seed is not None and decided.ledgered
    public = None
    if setup.public is not None:
        public = PublicStream(setup.public, setup.record_loss, drawing)
    keeper = keeper or _keeper(setup, ranks)
    return Private(
        setup,
        plan,
        charges=Charges(
            plan,
            setup.ledger,
            ranks,
            run=decided.run,
            attempt=decided.attempt,
            count=decided.charged,
            digest_key=noise.stream("digest").bytes(32) if recognised else None,
            journal=keeper.evidence,
        ),
        source=source,
        noise=noise,
        sampler=sampler,
        steps_done=decided.steps_done,
        made=past.made,
        stop=decided.stop,
        warnings=decided.warnings,
        ranks=ranks,
        keeper=keeper,
        shards=shards,
        processes=past.processes,
        public=public,
        parts=functools.cache(lambda: _parts_state(setup, decided.parts)),
    )


def _keeper(setup: Setup, ranks: Ranks) -> Keeper:
    path = None if setup.checkpoint is None else Path(setup.checkpoint)
    if path is None or setup.repeatable or not ranks.first:
        return Keeper(path, None)
    return Keeper(path, journal.Journal(path, private=setup.method.keeps_records))


@dataclass(frozen=True)
class _Decided:
    """What the first rank decides for all.

    Attributes:
        facts: The settings that all must have.
        key: What batches are drawn from, in a run without a seed.
        parts: What the records' parts are drawn from, in such a run.
        steps_done: Where the run stands.
        stop: Where the run ends.
        charged: How many steps are charged.
        ledgered: Whether there is a ledger.
        run, attempt, warnings: As of ``_Past``; one warning more where composition is basic.
    """

    facts: Facts
    key: bytes
    parts: bytes
    run: str
    attempt: int
    steps_done: int
    stop: int
    charged: int
    ledgered: bool
    warnings: tuple[str, ...]


def _decide(setup: Setup, plan: Plan, past: _Past) -> _Decided:
    seed, ledger, warnings = setup.seed, setup.ledger, past.warnings
    stop, charged = plan.steps, past.charged
    at = past.begun  # the number of a step that was begun and lost is never used again
    if ledger is not None:
        if seed is not None:
            refuse_shared_seed(ledger, past.run, seed)
        require_charged(ledger, plan.before)
        require_begun(ledger, past.run, past.begun)
        ledger.give_back(past.run, past.begun, past.journal)
        charged = ledger.counted(past.run)
        if not past.remade:
            at = min(max(at, ledger.charged(past.run)), plan.steps)
        here = noise_position(past.attempt, at)
        beyond = noise_position(past.attempt + 1, 0)
        replays = sum(here <= position < beyond for position in ledger.noise_positions(past.run))
        left = max(0, plan.steps - charged)
        if left:
            ledger.require_room(plan.release.of_run(past.run).to_dict(), left)
        stop = min(stop, at + replays + left)
    if plan.release.composition == "basic":
        warnings = (
            *warnings,
            "The questions of a step are charged one by one (basic composition), as the paper of "
            "the method does, or together where that costs more: the epsilon stated here may be "
            "larger than need be for this noise, and is never smaller.",
        )
    return _Decided(
        facts=_agreed(setup, plan),
        key=b"" if seed is not None else secrets.token_bytes(32),
        parts=past.parts or secrets.token_bytes(32),
        run=past.run,
        attempt=past.attempt,
        steps_done=at,
        stop=stop,
        charged=charged,
        ledgered=ledger is not None,
        warnings=warnings,
    )


def _agreed(setup: Setup, plan: Plan) -> Facts:
    """What must be the same on all ranks."""
    return setup.facts | {"the noise multiplier": plan.noise_multiplier}


def _sources(
    seed: int | None, decided: _Decided, ranks: Ranks
) -> tuple[RandomSource, RandomSource, RandomSource]:
    """What batches are drawn from, what records' own numbers are, and this rank's noise.

    The first two are the same on all ranks, and the third is the rank's own.
    """
    if seed is None:
        shared = SecureSource(decided.key)
        return shared, shared, shared if ranks.count == 1 else SecureSource()
    # Steps that are made again on the very batches they were first made on would cost more than
    # the ledger says: another attempt draws other batches too.
    attempt = decided.attempt
    drawing = SeededSource(seed, f"attempt {attempt}" if attempt else "")
    context = f"run {decided.run} attempt {attempt}"
    own = f"{context} rank {ranks.rank} of {ranks.count}" if ranks.count > 1 else context
    return drawing, SeededSource(seed, context), SeededSource(seed, own)


def _refuse_ranks(setup: Setup, ranks: Ranks, shards: Shards | None) -> None:
    """Refuses what several processes cannot do together."""
    if shards is not None and setup.method.reads_released:
        raise ValueError(
            f"The method '{setup.method.name}' looks at the released gradient as a whole, and with "
            "sharded parameters no process has it. Train it with whole parameters on every "
            "process (leave fully_shard out), or choose another method."
        )
    if shards is not None and setup.public is not None:
        raise ValueError(
            "Public data is given beside sharded parameters, which is not supported: their "
            "gradient would be whole on every process. Leave fully_shard out, or the public data."
        )
    if shards is not None and setup.correlated is not None:
        raise ValueError(
            "Correlated noise is asked for beside sharded parameters, which is not supported. "
            "Leave fully_shard out, or noise."
        )
    if ranks.count == 1:
        return
    if not ranks.first and setup.ledger is not None:
        raise ValueError(
            f"Rank {ranks.rank} was given a ledger, {setup.ledger.path}. A run has one, which rank "
            "0 writes: open it there alone, and give ledger=None on the others."
        )
    reason = setup.method.one_process_reason
    if reason is not None:
        raise ValueError(
            f"The method '{setup.method.name}' cannot be shared by {ranks.count} processes, since "
            f"{reason}. Run it in one process, or choose another method."
        )
