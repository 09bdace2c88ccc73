"""The contract of every method: one record moves what is asked by at most what was declared.

A method takes its step on every batch of a neighbourhood of adversarial records, from the same
state and with the same answers: answers are public, privacy is about what else differs. Then every
two batches that differ by one record, added or replaced, are compared, question by question:

- the questions are the same: their number, names, sensitivities and noise multipliers;
- each value moves by at most the question's sensitivity (by twice that for a replaced record);
- whatever is not asked is the same to the last bit: the update, the method's public state and the
  weights. Were one of these to depend on the records, it would leave without noise.

This finds what is wrong, and proves nothing: a method may break it on records that are not tried.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from plumbline.auditing.neighbours import Neighbourhood, TokenNetwork, all_kinds
from plumbline.auditing.tracing import NeighbourWorld, NoisyAnswers, traced_step
from plumbline.clipping import Clipping
from plumbline.gradients import KERNELS, PerSampleGradients
from plumbline.methods import Method
from plumbline.methods.tracing import StepTrace, Values, flat

SLACK = 1e-5
"""Relative: float32 rounds every clipped gradient, and their sum."""

WARM = 2
"""Steps before the one that is compared, so that what a method carries is not as at the start."""

_SWEPT = torch.cat([torch.logspace(-4, 4, 41), torch.linspace(0.9, 3.0, 22)]).tolist()


@dataclass(frozen=True)
class Movement:
    """How far one record moved the value of a question.

    Attributes:
        question: Its name.
        moved: In L2 norm.
        declared: The farthest that it may move.
        batches: The records of the two batches, by kind.
    """

    question: str
    moved: float
    declared: float
    batches: tuple[list[str], list[str]]

    @property
    def share(self) -> float:
        """Of what is declared; above 1, the declaration is wrong."""
        return self.moved / self.declared

    def __str__(self) -> str:
        one, other = (", ".join(kinds) or "no record" for kinds in self.batches)
        return (
            f"'{self.question}' moves by {self.moved:.6g}, not {self.declared:.6g}, between the "
            f"batches ({one}) and ({other})"
        )


@dataclass
class Contract:
    """What the comparison of neighbours found.

    Attributes:
        added: How many pairs were compared that differ by an added record.
        replaced: How many that differ by a replaced one.
        farthest: For each question the movement that came nearest to its bound, by an added record.
        farthest_replaced: The same by a replaced one.
        broken: Why the contract does not hold, or None if nothing was found.
        beyond: The movement that is larger than declared, if that is the reason.
    """

    added: int = 0
    replaced: int = 0
    farthest: dict[str, Movement] = field(default_factory=dict)
    farthest_replaced: dict[str, Movement] = field(default_factory=dict)
    broken: str | None = None
    beyond: Movement | None = None


def check_contract(
    method: Method,
    neighbourhoods: Sequence[Neighbourhood] | None = None,
    *,
    sampling_rate: float = 0.1,
    chunk: int | None = None,
) -> Contract:
    """Compares a method's steps on neighbouring batches, until something is wrong.

    Args:
        method: The method; it is copied.
        neighbourhoods: Where; by default seven, with about 2,000 pairs of either kind.
        sampling_rate: What the method is told; 1 for one that needs full batches.
        chunk: The most records in a physical chunk.
    """
    found = Contract()
    declared = [(query.name, query.noise_multiplier) for query in method.queries(1.0)]
    for number, records in enumerate(all_kinds() if neighbourhoods is None else neighbourhoods):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            world = NeighbourWorld(method, records, sampling_rate, chunk)
            # Gram norms are where sums cancel; the usual way has its turn too.
            with KERNELS.unmeasured("gram" if number % 2 == 0 else None):
                _confirm(world, copy.deepcopy(method))
                for traces in _every_batch(world, copy.deepcopy(method), number):
                    _compare(traces, declared, records, found)
                    if found.broken is not None:
                        return found
    return found


def check_norms(clipping: Clipping, groups: Tensor | None = None) -> Movement | None:
    """Clips single gradients, short, long and just around the bound, and compares their lengths.

    Args:
        clipping: The clipping as it is now.
        groups: The groups' values that it is given in turn, if it needs any.

    Returns:
        The movement that is farthest beyond what is declared, or None if none is.
    """
    draw = torch.Generator().manual_seed(0)
    shapes = {name: p.shape for name, p in TokenNetwork().named_parameters()}
    worst: Movement | None = None
    own = [None] if groups is None else list(groups[:, None])
    for length, group in itertools.product(_SWEPT, own):
        dense = {name: torch.randn(1, *shape, generator=draw) for name, shape in shapes.items()}
        scale = length * clipping.sensitivity / float(flat(dense).norm())
        dense = {name: value * scale for name, value in dense.items()}
        gradients = PerSampleGradients.of(dense, torch.zeros(1))
        norms = gradients.norms()
        clipped = clipping.clipped_sum(gradients, norms, torch.isfinite(norms), group)
        moved, declared = float(flat(clipped).norm()), clipping.sensitivity
        if moved > max(declared * (1 + SLACK), worst.moved if worst else 0):
            kind = f"a gradient of norm {float(norms[0]):.6g}"
            worst = Movement("gradient", moved, declared, ([kind], []))
    return worst


def _confirm(world: NeighbourWorld, method: Method) -> None:
    """The first capture of a model is compared with autograd: on ordinary records, as in training.

    (Where gradients cancel, two ways to sum them up differ, and the comparison would be refused.)
    """
    data = world.data
    world.data = replace(data, x=torch.randn(data.x.shape))
    answers = NoisyAnswers(torch.Generator())
    traced_step(world, method, 0, torch.arange(data.records - 1), answers)
    world.data = data


def _every_batch(world: NeighbourWorld, method: Method, seed: int) -> Iterator[list[StepTrace]]:
    """The traces of all batches, for each step that is compared."""
    draw = torch.Generator().manual_seed(seed)
    everybody = torch.arange(world.data.records)
    # What is kept of records differs between data sets: they go all the way from the start.
    first, last = (0, 1) if method.keeps_records else (WARM, WARM)
    starts, answers = [], []
    for number in range(last + 1):
        starts.append((copy.deepcopy(method), world.weights()))
        noisy = NoisyAnswers(draw)
        update = traced_step(world, method, number, everybody, noisy).left["update"]
        answers.append(noisy.given)
        with torch.no_grad():
            for name, parameter in world.parameters().items():
                parameter.sub_(0.1 * update[name].clamp(-1, 1))
    seen: list[list[StepTrace]] = [[] for _ in starts]
    for batch in world.data.batches:
        method = copy.deepcopy(starts[first][0])
        world.batch = batch
        numbers = torch.tensor(batch).nonzero()[:, 0].clamp(max=world.data.records - 1)
        for number in range(first, last + 1):
            _put(starts[number][1], world.model.state_dict())
            again = [{name: one.clone() for name, one in a.items()} for a in answers[number]]
            seen[number].append(
                traced_step(world, method, number, numbers, lambda place, *_, a=again: a[place])
            )
    yield from seen[first:]


def _compare(
    traces: list[StepTrace], declared: list[tuple[str, float]], data: Neighbourhood, found: Contract
) -> None:
    found.broken = _differs(traces, declared, data)
    if found.broken is not None:
        return
    for place, (name, sensitivity, _) in enumerate(traces[0].asked):
        values = torch.stack([trace.values[place] for trace in traces])
        for pairs, bound, farthest in (
            (data.added, sensitivity, found.farthest),
            (data.replaced, 2 * sensitivity, found.farthest_replaced),
        ):
            gaps = (values[pairs[0]] - values[pairs[1]]).norm(dim=1)
            one, other = (data.those(data.batches[int(k)]) for k in pairs[:, gaps.argmax()])
            movement = Movement(name, float(gaps.max()), bound, (one, other))
            if name not in farthest or movement.share > farthest[name].share:
                farthest[name] = movement
            if movement.share > 1 + SLACK:
                found.broken, found.beyond = str(movement), movement
                return
    found.added += data.added.shape[1]
    found.replaced += data.replaced.shape[1]


def _differs(
    traces: list[StepTrace], declared: list[tuple[str, float]], data: Neighbourhood
) -> str | None:
    """What depends on the records and is not asked, or is not asked as declared."""
    empty = traces[0]
    if [(name, sigma) for name, _, sigma in empty.asked] != declared:
        return f"{empty.asked} is asked, but {declared} is declared and charged"
    if not all(sensitivity > 0 for _, sensitivity, _ in empty.asked):
        return f"{empty.asked} is asked, with a sensitivity that is not positive"
    for batch, trace in zip(data.batches, traces, strict=True):
        if trace.asked != empty.asked:
            return f"{data.those(batch)} is asked {trace.asked}, nobody {empty.asked}"
        if not all(bool(torch.isfinite(value).all()) for value in trace.values):
            return f"what is asked of {data.those(batch)} is not finite"
        for what, value in trace.left.items():
            if not _equal(value, empty.left[what]):
                return f"{data.those(batch)} changes the {what}, which is not asked for"
    return None


def _put(values: Values, into: Values) -> None:
    for name, value in values.items():
        into[name].copy_(value)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)
