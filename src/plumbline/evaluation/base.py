"""What an evaluation is, and what it sees of a batch.

An evaluation answers one of four questions about a record's gradient (its ``slot``): what the model
sees of the record, at which weights the gradient is taken, what is added to it before it is
clipped, and what becomes of the released mean. A method has at most one answer to each.

Guarantee asked of every evaluation: what it makes of a record depends on that record, on what was
released before, and on public things; never on another record.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from torch import Tensor

from plumbline.gradients import PerSampleGradients, Perturbation
from plumbline.mechanism.release import GaussianQuery, Program
from plumbline.record_random import Draws
from plumbline.registry import Registry
from plumbline.spaces import Space
from plumbline.state import Stateful

Slot = Literal["records", "weights", "gradient", "update"]
Update = dict[str, Tensor]
Asking = Program[None]
Ask = Callable[[str], Program[Update]]
"""The program that asks for the batch's noisy mean gradient at the weights as they are, by name."""


@dataclass(frozen=True, eq=False)
class Rows:
    """What the model is to see instead of a chunk's records.

    Attributes:
        data: In the form of ``Chunk.data``, with ``R'`` rows.
        record: Which record of the chunk each row belongs to, ``[R']``, from 0, ascending.
        weights: By how much its loss counts in that record's, ``[R']``; zero for not at all.
        together: Whether BatchNorm takes the rows of a record together.
    """

    data: Any
    record: Tensor
    weights: Tensor
    together: bool = False


class Chunk(Protocol):
    """A physical part of a batch. Its units are records, or users, or buckets of records."""

    @property
    def step(self) -> int:
        """The number of the step."""

    @property
    def units(self) -> int:
        """How many units it has."""

    @property
    def unit_ids(self) -> Tensor:
        """The units' numbers in the data set, ``[units]``. Private."""

    @property
    def records(self) -> int:
        """How many records it has."""

    @property
    def groups(self) -> Tensor | None:
        """Each unit's group, ``[units]``, if groups were given."""

    @property
    def weights(self) -> Tensor | None:
        """By how much each unit counts once it is clipped, ``[units]`` in [0, 1]; None for 1."""

    @property
    def data(self) -> Any:
        """The records, as the loss sees them."""

    def parameters(self) -> Mapping[str, Tensor]:
        """The trainable parameters by name."""

    def losses(self) -> Tensor:
        """Each record's loss, ``[R]``, with the random numbers of its other passes."""

    def outputs(self) -> Any:
        """The model's outputs for the records, where the loss is one of output and target."""

    def draws(self, purpose: str, *, of: Literal["records", "units"] = "records") -> Draws:
        """Random numbers of each record's (or unit's) own, the same in every pass of the step."""

    def capture(
        self,
        at: Perturbation | Mapping[str, Tensor] | None = None,
        *,
        rows: Rows | None = None,
    ) -> PerSampleGradients:
        """The gradients of its units: one forward and one backward pass.

        All captures of a chunk in a step see the same random numbers (dropout masks). A
        perturbation is by unit; each of the unit's rows is evaluated at the unit's weights.
        """

    def hvp(self, vectors: Mapping[str, Tensor], *, rows: Rows | None = None) -> PerSampleGradients:
        """Its units' Hessians times vectors ``[units, *shape]``, or one ``[*shape]`` for all."""


class Batch(Protocol):
    """A step's records, as a method sees them."""

    @property
    def step(self) -> int:
        """The number of the step."""

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the gradient query."""

    @property
    def expected_size(self) -> int:
        """The public constant L by which sums are divided."""

    @property
    def sampling_rate(self) -> float:
        """The probability with which a record takes part."""

    @property
    def whole(self) -> bool:
        """Whether it is one chunk, whichever records are drawn: public."""

    def parameters(self) -> Mapping[str, Tensor]:
        """The trainable parameters by name: public, as they are between steps."""

    def chunks(self, limit: int | None = None) -> Iterator[Chunk]:
        """The physical chunks, in order, of at most ``limit`` records; every call starts again."""

    def zeros(self) -> Update:
        """A zero for every trainable parameter: the sum over an empty batch."""

    def draws(self, purpose: str) -> Draws:
        """Random numbers of each unit's own, the same whenever they are asked for in the step."""

    def bucketed(self, buckets: Tensor, *, together: bool) -> Batch:
        """The batch with the units of equal ``buckets`` (``[units]``) made one unit.

        With ``together``, BatchNorm takes the records of a bucket together.
        """


class Evaluation(Stateful, ABC):
    """A rule for how a unit's gradient is taken; each hook leaves things as they are by default.

    Attributes:
        slot: Which question it answers.
        passes: How many forward and backward passes a step makes with it.
        needs_public: Whether it needs public data.
        limit: The most records it takes at once, where its memory grows with them.
        together: Whether it lets BatchNorm take the rows of a record together.
        reads_released: Whether it computes with released gradients as whole vectors.
        search: Where its settings are searched when a method is tuned.
    """

    slot: ClassVar[Slot]
    reads_released: ClassVar[bool] = False
    needs_public: ClassVar[bool] = False
    together: ClassVar[bool] = False
    search: ClassVar[Mapping[str, Space]] = {}
    limit: int | None = None

    @property
    def passes(self) -> int:
        """How many forward and backward passes a step makes with it, times those of others."""
        return 1

    @property
    def unbounded_reason(self) -> str | None:
        """Why there is no guarantee with it, or None."""
        return None

    @property
    def one_process_reason(self) -> str | None:
        """Why several processes cannot share the records of a step, or None."""
        return None

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What it uses that no guarantee covers, for the statement."""
        return ()

    def queries(self, noise_multiplier: float) -> tuple[GaussianQuery, ...]:
        """The questions of ``before``, declared."""
        return ()

    def before(self, batch: Batch, ask: Ask) -> Asking:
        """What it asks before the records' gradients are taken."""
        yield from ()

    def see(self, chunk: Chunk) -> Chunk:
        """The chunk as the model is to see it (slot "records")."""
        return chunk

    def gradients(self, chunk: Chunk) -> PerSampleGradients:
        """Each unit's gradient (slot "weights")."""
        return chunk.capture()

    def change(self, chunk: Chunk, gradients: PerSampleGradients) -> PerSampleGradients:
        """Each unit's gradient as it is to be clipped (slot "gradient")."""
        return gradients

    def after(self, batch: Batch, update: Update) -> Update:
        """Takes note of what was released, and returns the optimizer's gradient."""
        return update


EVALUATIONS: Registry[type[Evaluation]] = Registry("rule of evaluation")
"""Every rule by name. The contract tests, recipes and the command line find them here."""

Kind = TypeVar("Kind", bound=Evaluation)


def evaluation(kind: type[Kind]) -> type[Kind]:
    """Registers a rule of evaluation under the name of its class."""
    EVALUATIONS.add(kind.__name__, kind)
    return kind
