"""The object that ``make_private`` returns: accounted steps in the user's own loop.

The model and the optimizer stay the user's own objects. Guarantees, by construction: batches come
from a Poisson sampler whose event is the one accounted; a step is charged, durably, before its
result can be seen; the noise scale is taken from the sensitivity that the clipping proves; records
that are not finite contribute zero; sums are divided by the public expected batch size; no step is
made beyond the budget.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import os
import random
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from plumbline.clipping import Program
from plumbline.compiled import run_of
from plumbline.evaluation import Views
from plumbline.gradients.model_parts import parts_of
from plumbline.gradients.opaque import refuse_anomaly_detection, refuse_autocast
from plumbline.gradients.programs import Programs, Trust
from plumbline.gradients.state_watch import StateWatch
from plumbline.mechanism.accountant import EpsilonCurve
from plumbline.mechanism.calibration import Plan
from plumbline.mechanism.random_source import RandomSource
from plumbline.mechanism.release import Query
from plumbline.record_random import OwnGenerators
from plumbline.sampling import PoissonSampler, UserSampler
from plumbline.training import looping
from plumbline.training.answering import Answers
from plumbline.training.averaging import WeightAverage
from plumbline.training.batches import ChosenBatch, PrivateBatch
from plumbline.training.charging import Charges
from plumbline.training.checkpoint import save
from plumbline.training.distributed import Ranks
from plumbline.training.distributed_shards import Shards, is_shard
from plumbline.training.fetching import Fetching
from plumbline.training.fitting import Callback, Metric, StepInfo, fit
from plumbline.training.keeping import Keeper, crash_cost
from plumbline.training.looping import BatchRefused
from plumbline.training.own_neighbours import NeighbourAudit, audit_neighbours
from plumbline.training.parameters import OwnWeights, apply, require_same, trainable, warn_of_moved
from plumbline.training.public import PublicStream
from plumbline.training.record_order import order_mark
from plumbline.training.run_identity import feed
from plumbline.training.schedules import Schedules
from plumbline.training.setup import Setup
from plumbline.training.stating import RECORDED, statement_of
from plumbline.training.step_losses import NotCovered

_COMPARED = 100
"""At every so many steps, ranks compare their weights and the method's state."""
_SAME_STATE = (
    "It must be equal to the last bit: change the weights in private.step only, do the same on "
    "every process, and use processors of one kind."
)
_SAME_RECORDS = (
    "Give every process the whole data set, in the same order, and not a part of it: the processes "
    "draw each batch together, and share its records by themselves."
)


class BudgetSpent(RuntimeError):
    """A step was asked for beyond the steps that the budget pays for."""


class Private:
    """A model in private training; made by ``make_private``.

    Attributes:
        setup: What the user gave.
        model: The user's model.
        optimizer: The user's optimizer.
        method: The run's own copy of the method.
        plan: The budget made exact: noise, steps, sampling rate.
        ledger: Where steps are charged, if anywhere.
        run: The run's id in the ledger.
        first_step: The step at which this object began, or went on from a checkpoint.
        steps_done: How many steps are done. A step that was charged counts, even if it was lost.
        made: How many updates are made: the steps done, less those that were lost.
        stop: The step at which the run ends.
        warnings: Sentences that the statement adds.
        not_covered: Items that the statement adds to what is not covered.
        average: The moving average of the weights, if one was asked for.
        keeper: Keeps the run on the disk, where it has a checkpoint file.
        released: What the last step released: the noisy mean gradient, before public data is added
            and the optimizer sees it.
        ranks: The processes that make the run together; most often this one alone.
        audited: What ``audit_neighbours`` found, if it was asked.
        processes: How many there have been, in one session or another, ascending.
    """

    def __init__(
        self,
        setup: Setup,
        plan: Plan,
        *,
        charges: Charges,
        source: RandomSource,
        noise: RandomSource,
        sampler: PoissonSampler,
        steps_done: int,
        made: int,
        stop: int,
        warnings: Sequence[str],
        ranks: Ranks,
        keeper: Keeper,
        shards: Shards | None = None,
        processes: Sequence[int] = (),
        public: PublicStream | None = None,
        parts: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.setup = setup
        self.model = setup.model
        self.optimizer = setup.optimizer
        self.method = copy.deepcopy(setup.method)  # what it keeps from step to step is the run's
        self.loss = setup.record_loss
        self.ledger = setup.ledger
        self.sensitive_features = setup.groups
        self.record_weights = setup.weights
        self.max_physical_batch = setup.max_physical_batch
        self.isolation = setup.isolation
        self.generators = OwnGenerators()
        self.averaging = setup.averaging
        self.average: WeightAverage | None = None
        if setup.averaging is not None:
            self.average = WeightAverage(setup.model, setup.averaging)
        self.plan = plan
        self.run = charges.run
        self.attempt = charges.attempt
        self.first_step = self.steps_done = steps_done
        self.made = made
        self.stop = stop
        self.warnings = tuple(warnings)
        self.not_covered = (*setup.not_covered, *self.method.not_covered)
        if public is not None:
            self.not_covered += (public.not_covered,)
        self.released: dict[str, Tensor] | None = None
        self._public = public
        self.ranks = ranks
        self.processes = tuple(sorted({*processes, ranks.count}))
        self._source = source
        self._noise = noise
        self._shards = shards
        self._sampler = sampler
        self._sampler.step = steps_done
        self._parts = parts
        self.bands = setup.bands(plan.steps)
        self._charges = charges
        self.keeper = keeper
        self._schedules = Schedules(setup.schedulers)
        self._answers: Answers | None = None
        self._pending: PrivateBatch | None = None
        self._fetching = Fetching(setup.records, source, self._own_chunks, stop, setup.workers)
        weakref.finalize(self, self._fetching.close)
        drawn = int.from_bytes(source.stream("state watch").bytes(7), "little")
        augments = [rule.augment for rule in self.method.evaluation if isinstance(rule, Views)]
        self._watch = StateWatch(
            self.model, torch.Generator().manual_seed(drawn), beside=[setup.loss, *augments]
        )
        self.programs: Programs | None = None
        if self.isolation == "vmap":
            self.programs = Programs(self.model, setup.loss)
        self._trained = trainable(self.model)
        self.own_weights = OwnWeights(())  # shards are new objects in each step
        if shards is None:
            frozen = [p for p in self.model.parameters() if not p.requires_grad]
            self.own_weights = OwnWeights(self._trained.values(), [*frozen, *self.model.buffers()])
        self.audited: NeighbourAudit | None = None
        self._curve = EpsilonCurve(
            plan.release,
            steps=plan.steps,
            delta=plan.delta,
            accountant=plan.accountant,
            relation=plan.relation,
            before=[(one, 1) for one in plan.before],
        )

    def __len__(self) -> int:
        """The number of steps that remain."""
        return max(0, self.stop - self.steps_done)

    def __iter__(self) -> Iterator[PrivateBatch]:
        """The batches of the remaining steps, each to be stepped on.

        After a ``break``, a new loop begins with the batch that was not stepped on. A loop over a
        run that an earlier loop finished warns (``RunFinished``).
        """
        return looping.all_batches(self)

    def epoch(self, number: int | None = None) -> Iterator[PrivateBatch]:
        """The batches of one epoch, each to be stepped on.

        An epoch is a public number of steps, 1/q rounded, where q is the sampling rate; all
        epochs together have the budget's steps, exactly.

        Args:
            number: Which one, from 0 to ``epochs`` - 1. Of one that was made before the run was
                resumed there are no batches left. By default the one in which the run stands.
        """
        return looping.epoch(self, number)

    @property
    def epochs(self) -> int:
        """The number of epochs of the whole run."""
        return self.plan.epochs

    @property
    def seeded(self) -> bool:
        """Whether the randomness can be recomputed from a seed."""
        return not self._source.secure

    @property
    def noise_source(self) -> str:
        """Where the randomness comes from, in a sentence."""
        return self._source.describe()

    @property
    def sharded(self) -> bool:
        """Whether each rank has only a part of the parameters."""
        return self._shards is not None

    @property
    def charged(self) -> int:
        """How many steps are charged; if there is a ledger, what it says."""
        return max(self._charges.count, self.steps_done)

    @property
    def moved(self) -> int:
        """After how many steps something beside the run has changed the weights."""
        return self.own_weights.times + self.own_weights.moved

    @property
    def lost(self) -> int:
        """How many steps were charged and not made, since the run was killed or they failed."""
        return self.plan.steps - self.made - len(self)

    @property
    def crash_cost(self) -> str:
        """What a crash can cost from here on, in words and steps."""
        ahead = 0 if self.ledger is None else self.ledger.reserve
        repeatable = self.setup.repeatable
        return crash_cost(
            kept=self.setup.checkpoint is not None, repeatable=repeatable, ahead=ahead
        )

    def step(self, batch: PrivateBatch) -> NotCovered:
        """One accounted update: asks, charges, adds noise, lets optimizer and schedulers step.

        Where the run has a checkpoint file, what was released is in its journal before the weights
        move, and a checkpoint is written when it is time.

        Returns:
            The mean loss of the batch (of this process's share), as the step saw it: exact, so not
            covered by epsilon, and it says so when printed. NaN for an empty batch.

        Raises:
            BudgetSpent: If the run has no steps left.
            BatchRefused: If the batch is not the one that was drawn for this step.
            LedgerError: If the step could not be charged; nothing was released then.
            RankFailed: If the step failed on another rank.
            RankLost: If another rank has ended.
        """
        if self.steps_done >= self.stop:
            raise BudgetSpent(
                f"The run is over: {self.charged} steps are charged of the {self.plan.steps} that "
                "its budget pays for. A further step would cost more than was planned; to train "
                "longer, plan a new run with a budget of its own."
            )
        try:
            with self.ranks.failing_together(), run_of(self.plan.steps):
                refuse_autocast()
                refuse_anomaly_detection()
                self._step(batch)
        except BaseException:
            self._fetching.close()
            raise
        if self.steps_done >= self.stop:
            self._fetching.close()
        return batch.losses.mean

    def fit(
        self,
        callbacks: Sequence[Callback | Callable[[Private, StepInfo], object]] = (),
        *,
        show: Sequence[str] = ("epsilon",),
        metrics: Mapping[str, Metric] | None = None,
        progress: Console | bool | None = None,
    ) -> StepInfo:
        """Runs the remaining steps, with a progress display; see ``fitting.fit``."""
        return fit(self, callbacks, show=show, metrics=metrics, progress=progress)

    def averaged(self) -> AbstractContextManager[nn.Module]:
        """The model with its averaged weights, inside a ``with`` block; no step can be made there.

        Raises:
            ValueError: If the run averages nothing.
        """
        if self.average is None:
            raise ValueError(
                "This run keeps no average of its weights. Ask for one with "
                "make_private(..., averaging=0.999)."
            )
        return self._averaged(self.average)

    def save(self, path: str | os.PathLike[str] | None = None) -> None:
        """Writes a checkpoint, with which ``make_private(..., checkpoint=path)`` goes on.

        Call it between steps; where several processes make the run, on all of them. It holds no
        key and no seed. State of single records, which few methods have, goes to
        ``<path>.PRIVATE``.

        Args:
            path: The file; by default the ``checkpoint`` that ``make_private`` was given.

        Raises:
            CheckpointError: If it cannot be written; what was at ``path`` is then unchanged.
        """
        path = self.setup.checkpoint if path is None else path
        if path is None:
            raise ValueError(
                "There is no file to save to: give a path, or make_private(..., checkpoint=path)."
            )
        path = Path(path)
        with self.keeper.saving(path, self):
            save(self, path)

    def check_state(self) -> None:
        """Compares every buffer and frozen parameter with what it was when training began.

        The steps compare only a part of a large model. Call this before the model is given away;
        ``save`` and the last step do.

        Raises:
            RecordsMixError: If one was written to as the model looked at records.
        """
        self._watch.check_all()

    def sampler_state(self) -> dict[str, Any]:
        """The sampler's position, for a checkpoint; the number of records is in its settings."""
        state = self._sampler.state_dict()
        del state["records"]
        return state

    def load_sampler_state(self, state: Mapping[str, Any]) -> None:
        """Refuses the stored position of another sampler; the run stands at ``steps_done``."""
        self._sampler.load_state_dict({**state, "records": self._sampler.records})
        self._sampler.step = self.steps_done

    def private_state_dict(self) -> dict[str, Any]:
        """What belongs to single records, for a file marked PRIVATE: theirs, and their parts."""
        return self.method.private_state_dict() | dict(self._parts())

    def parameters(self) -> dict[str, nn.Parameter]:
        """The trainable parameters by name."""
        # As every step requires, those that the run began with; shards are new objects each time.
        return trainable(self.model) if self.sharded else self._trained

    def put_shards_back(self) -> None:
        """Leaves each rank its own shards; FSDP leaves whole weights after an evaluation."""
        if self._shards is not None:
            self._shards.put_back()

    def fetch(self, indices: Tensor, step: int | None = None) -> Any:
        """Some records, as the loss of a step sees them, on the model's device.

        Args:
            indices: Their numbers, ``[R]``, at least one.
            step: The step whose random numbers the records are read with; by default the next one.
        """
        device = next(iter(self.parameters().values())).device
        return self._fetching.fetch(indices, self.steps_done if step is None else step, device)

    def draws_key(self, step: int) -> str:
        """The key of the records' own random numbers in a step."""
        return self._fetching.key(step)

    def epsilon(self, *, exact: bool = False) -> float:
        """Epsilon spent so far at the budget's delta: from a cached curve, rounded up.

        Args:
            exact: Compute it for exactly the steps charged, which takes up to a second or two.
        """
        if exact and (self.charged or self.plan.before):
            return statement_of(self, self.charged).epsilon
        return self.spent()

    @property
    def spent(self) -> Callable[[], float]:
        """Computes the epsilon spent by now, whenever it is called; holds public constants only."""
        return functools.partial(self._curve, self.charged)

    def statement(self, format: str = "text") -> str:
        """The guarantee with its assumptions, in words ("text") or for programs ("json")."""
        statement = statement_of(self, self.charged)
        if format == "json":
            return statement.json()
        if format != "text":
            raise ValueError(f"format is {format!r}; it must be 'text' or 'json'.")
        return statement.text()

    def audit_neighbours(self, **settings: int) -> NeighbourAudit:
        """How far one record moves what the next steps would ask; see ``own_neighbours``.

        The statement says what was found.
        """
        return audit_neighbours(self, **settings)

    def record_captures(self) -> None:
        """Records captures of a small model with code of its own, and runs it without that code.

        Captures of torch's own modules are recorded anyway. For others it is on trust: what the
        model's code reads must not change during the run, but for its weights and what is watched
        (docs/isolation.md). The statement says so.

        Raises:
            ValueError: If records are run one after the other.
        """
        if self.programs is None:
            raise ValueError(
                'Captures can be recorded with isolation="vmap" only; this run has "loop".'
            )
        if self.programs.proven:
            return
        coin = random.Random(self._source.stream("programs").bytes(8))
        trust = Trust(lambda: self._watch.changes, coin.random)
        self.programs = Programs(self.model, self.setup.loss, trust)
        self.warnings = (*self.warnings, RECORDED)

    def close(self) -> None:
        """Ends worker processes and releases the noise prepared ahead; the ledger stays open."""
        self._fetching.close()
        if self._answers is not None:
            self._answers.close()
            self._answers = None

    @contextmanager
    def _averaged(self, average: WeightAverage) -> Iterator[nn.Module]:
        self.put_shards_back()
        try:
            with self.own_weights.put_back(), average.applied() as model:
                yield model
        finally:
            self.put_shards_back()

    def batch_of(self, units: Tensor) -> ChosenBatch:
        """A batch of chosen records (or users), ``[N]``, as the next step would see it.

        Nothing is drawn or charged, and ``step`` refuses it.
        """
        indices, groups = self.records_of(units)
        return ChosenBatch(self.steps_done, indices, units, self, groups, chosen=len(units))

    @property
    def units(self) -> int:
        """How many records (or users) there are to draw from."""
        return self._sampler.records

    def records_of(self, units: Tensor) -> tuple[Tensor, Tensor | None]:
        """The records of some units, and each one's unit among them."""
        if isinstance(self._sampler, UserSampler):
            return self._sampler.records_of(units)
        return units, None

    def draw(self) -> PrivateBatch:
        """The batch of the next step, for ``step``; loops over the run call this."""
        self._fetching.begin(self.steps_done)
        self._pending = self._batch(self.steps_done)
        return self._pending

    def _batch(self, step: int) -> PrivateBatch:
        units = self._sampler.indices(step)
        indices, groups = self.records_of(units)
        share = self.ranks.rank, self.ranks.count
        return PrivateBatch(step, indices, units, self, groups, _share=share)

    def _own_chunks(self, step: int) -> list[Tensor]:
        """The records of a step that this process takes, in chunks."""
        return [chunk.indices for chunk in self._batch(step).chunks()]

    def _accept(self, batch: PrivateBatch) -> None:
        if batch is not self._pending or not isinstance(batch, PrivateBatch):
            raise BatchRefused(
                "This batch was not drawn by this object's sampler for this step (or was stepped "
                "on already), so the accounting does not hold for it. Step once on each batch "
                "that `for batch in private` gives."
            )
        self._pending = None

    def _step(self, batch: PrivateBatch) -> None:
        if self.average is not None:
            self.average.require_own_weights("train on")
        now = trainable(self.model) if self.sharded else parts_of(self.model).parameters
        require_same(self._trained, now, sharded=self.sharded)
        self._schedules.require_untouched()
        self._accept(batch)
        if self.own_weights.moved:
            self.own_weights.times += 1
            if self.own_weights.times == 1:
                warn_of_moved(stacklevel=4)
        self.put_shards_back()
        if self.ranks.count > 1 and batch.step % _COMPARED == 0:
            self.ranks.require_same("The state of the run", self._state_digest(), _SAME_STATE)
        if self.ranks.count > 1 and batch.step == self.first_step:
            # A record with two numbers could be in the shares of two ranks, and count twice.
            mark = order_mark(self.setup.records, self.setup.user_ids, self._source)
            what = "What the data set has as records and their order"
            self.ranks.require_same(what, mark, _SAME_RECORDS)
        with self._shards.gathered() if self._shards is not None else nullcontext():
            self._fetching.check(batch.indices, batch.step)
            # Before the charge: should it fail, nothing is spent.
            public: dict[str, Tensor] = {}
            if self._public is not None:
                public = self._public.gradient(
                    self.model, self.parameters(), batch.step, self.ranks
                )
            update = self.released = self._released(batch)
        batch.losses.warn_of_bad(len(batch), stacklevel=4)
        if batch.step == 0:
            batch.losses.warn_of_zero(len(batch), stacklevel=4)
        summed = {name: g + public[name] if public else g for name, g in update.items()}
        self.keeper.release(self, batch.step, summed)
        self.apply(summed)
        if self.steps_done >= self.stop:
            self.check_state()
        self.keeper.after_step(self)

    def apply(self, update: Mapping[str, Tensor]) -> None:
        """Makes an update that was released: of the weights, their average and the schedulers."""
        apply(update, self.parameters(), self.optimizer)
        self.made += 1
        if self.average is not None:
            self.average.update()
        self._schedules.step()
        self.own_weights.leave()

    def _state_digest(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        # A shard has no equal on another rank.
        whole = {name: p for name, p in self.parameters().items() if not is_shard(p)}
        feed(digest, [whole, self.method.state_dict()])
        return digest.hexdigest()

    def _released(self, batch: PrivateBatch) -> dict[str, Tensor]:
        declared = self.plan.release.queries
        program = self.method.step(batch)
        place = 0
        asked = self._asked(program, None)
        while isinstance(asked, Query):
            if place == 0:
                self._charge(batch.step, asked)
            mark = self._charges.mark
            answer = self._answering().answer(asked, declared, batch.step, place, mark)
            self._charges.hear()
            place += 1
            asked = self._asked(program, answer)
        if place != len(declared):
            raise RuntimeError(
                f"The method '{self.method.name}' asked {place} questions and declared "
                f"{len(declared)}."
            )
        return asked

    def _asked(self, program: Program[dict[str, Tensor]], answer: Any) -> Query | dict[str, Tensor]:
        """The method's next question, or its update at the end, while the model is watched."""
        # A method without a guarantee may move the weights itself, as DP-SAT does as released.
        with self._watch.step(trained=self.method.private, goes_on=answer is not None):
            try:
                return program.send(answer)
            except StopIteration as end:
                update: dict[str, Tensor] = end.value
                return update

    def _charge(self, step: int, query: Query) -> None:
        beside: list[Any] = [self.bands] if len(self.bands) > 1 else []
        if len(self.plan.release.queries) > 1:
            beside += [self.parameters(), self.method.state_dict()]
        self._charges.charge(step, query, *beside, follows=self._answering().follows(step))
        # From here on the step is spent: should it fail, its batch and noise are not used again.
        self.steps_done = step + 1
        self._sampler.step = self.steps_done
        self.keeper.begin(step)

    def _answering(self) -> Answers:
        if self._answers is None:
            parameters = list(self.parameters().values())
            numel = sum(p.numel() for p in parameters)
            # Beside a step on an accelerator the processor is free. Beside one on the processor a
            # thread only takes turns with it, and costs more than it saves.
            on_processor = parameters[0].device.type == "cpu"
            ahead = 0 if on_processor else self.stop
            self._answers = Answers(self._noise, numel, ahead, self.ranks, self._shards, self.bands)
        return self._answers
