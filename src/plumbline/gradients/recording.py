"""Programs of torch operations, recorded from two runs of a function and run without its code.

What runs for each record is Python: the user's model, ``vmap``, the layer files. For a small model
that takes longer than the operations themselves. A recorder sees the operations below all of it, on
ordinary tensors with the records first. Two runs with different numbers of records show what
depends on that number: a ``Program`` is their common list of operations, in which a whole number is
fixed or a multiple of the number of records.

What cannot be a program is refused: two runs that differ otherwise, values read from a tensor,
random numbers, a tensor whose contents come from elsewhere, one record picked out by its place.
"""

from __future__ import annotations

import io
import operator
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten

_ALIASES = {aten.detach.default, aten.alias.default}
_VIEWS = {aten.view.default, aten._unsafe_view.default, aten.squeeze.dims, aten.squeeze.dim,
          aten.unsqueeze.default}  # fmt: skip
_VALUES = {Tensor.numpy, Tensor.tolist, Tensor.__array__}
_UNFILLED = {
    aten.empty.memory_format, aten.empty_like.default,
    aten.new_empty.default, aten.empty_strided.default, aten.new_empty_strided.default,
}  # fmt: skip
_FILLING = {aten.copy_.default, aten.fill_.Scalar, aten.zero_.default}
_QUICK: dict[Any, Callable[..., Any]] = {  # the same operations, called in less time
    aten.view.default: Tensor.view,
    aten.t.default: Tensor.t,
    aten.clone.default: Tensor.clone,
    aten.expand.default: Tensor.expand,
    aten.select.int: torch.select,
    aten.sum.default: torch.sum,
    aten._log_softmax.default: torch._log_softmax,
    aten._log_softmax_backward_data.default: torch._log_softmax_backward_data,
    aten.mm.default: torch.mm,
    aten.addmm.default: torch.addmm,
    aten.bmm.default: torch.bmm,
    aten.relu.default: torch.relu,
    aten.tanh.default: torch.tanh,
    aten.sigmoid.default: torch.sigmoid,
}


class NotRecordable(Exception):
    """What was recorded cannot be run for other records; says why."""


class Recorder(TorchDispatchMode):
    """Notes every operation that runs while it is on, and keeps its tensors.

    Attributes:
        calls: The operations, each with its arguments and its result.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, Sequence[Any], dict[str, Any], Any]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # that would import all of torch's compiler, which takes seconds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Runs an operation and notes it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, result))
        return result


class _Reads(TorchFunctionMode):
    """Notes whether Python reads all values of a tensor, which is no operation."""

    def __init__(self) -> None:
        super().__init__()
        self.any = False

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        self.any |= func in _VALUES
        return func(*args, **(kwargs or {}))


class Recording:
    """One run of a function.

    Attributes:
        result: What it gave.
        records: How many records it was for.
        inputs: The tensors in what it was given.
        outputs: The tensors in what it gave, once that is taken apart.
        form: What it gave, without them.
    """

    def __init__(self, function: Callable[[], Any], given: Sequence[Tensor], records: int) -> None:
        recorder, self._reads = Recorder(), _Reads()
        with self._reads, recorder:
            self.result = function()
        self.calls, self.records, self.inputs = recorder.calls, records, list(given)
        self.form, self.outputs = b"", list[Tensor]()

    def take_apart(self) -> None:
        """Takes the result apart.

        Raises:
            NotRecordable: If it holds something that cannot be, or depends on values that were
                read in the run.
        """
        if self._reads.any or any(
            _tagged(call, torch.Tag.data_dependent_output) or _sized_by_values(call)
            for call in self.calls
        ):
            raise NotRecordable("values are read from a tensor, and may decide what comes next")
        self.form, self.outputs = taken_apart(self.result, self.records)

    def needed(self) -> set[int]:
        """The places of the calls that what it gave depends on, by what shares memory."""
        memory = {_memory(one) for one in self.outputs}
        needed = set()
        for place, (_, args, kwargs, result) in reversed(list(enumerate(self.calls))):
            if any(_memory(one) in memory for one in _tensors(result)):
                needed.add(place)
                memory.update(map(_memory, _tensors((args, kwargs))))
        return needed

    @property
    def nbytes(self) -> int:
        """The memory of the tensors that were made in the run."""
        made: dict[int, int] = {}
        given: set[int] = set()
        for _, args, kwargs, result in self.calls:
            given |= set(map(_memory, _tensors((args, kwargs)))) - made.keys()
            for one in _tensors(result):
                if _memory(one) not in given:
                    made[_memory(one)] = one.untyped_storage().nbytes()
        return sum(made.values())


class Program:
    """What two recordings have in common, to be run for any number of records.

    Attributes:
        only: The number of records, if both recordings had the same: it serves no other.

    Raises:
        NotRecordable: If they differ by more than the number of records.
    """

    def __init__(self, first: Recording, second: Recording) -> None:
        if first.form != second.form:
            raise NotRecordable("what it gives differs")
        if len(first.calls) != len(second.calls) or len(first.outputs) != len(second.outputs):
            raise NotRecordable("the number of operations differs")
        self.only = first.records if first.records == second.records else None
        self._form = first.form
        self._constants: list[Tensor] = []
        self._run = _Builder(first, second, self._constants).function()

    def __call__(self, given: Sequence[Tensor], records: int) -> Any:
        """What the function would give for these tensors."""
        with torch.no_grad():
            return put_together(self._form, self._run(records, *given, *self._constants), records)


class _Builder:
    """Builds a program's graph from two recordings, operation by operation."""

    def __init__(self, first: Recording, second: Recording, constants: list[Tensor]) -> None:
        self._records = first.records, second.records
        self._constants = constants
        self._graph = fx.Graph()
        self._number = self._graph.placeholder("records")
        self._multiples: dict[int, fx.Node] = {1: self._number}
        self._nodes: dict[int, fx.Node] = {}  # of a tensor of the first recording
        self._twin: dict[int, int] = {}  # and the tensor in its place in the second
        self._whole: dict[fx.Node, tuple[fx.Node, torch.Size]] = {}  # what a view is a view of
        for place, pair in enumerate(zip(first.inputs, second.inputs, strict=True)):
            self._note(*pair, self._graph.placeholder(f"given_{place}"))
        # Constants become inputs too, which stand before everything else; multiples come next.
        self._head = self._graph.call_function(operator.pos, (self._number,))
        self._operations = self._graph.call_function(operator.pos, (self._number,))
        self._filled = {_memory(call[1][0]) for call in first.calls if call[0] in _FILLING}
        self._filled |= {_memory(call[2]["out"]) for call in first.calls if "out" in call[2]}
        needed = first.needed()
        for place, (one, two) in enumerate(zip(first.calls, second.calls, strict=True)):
            if place in needed:
                self._add(one, two)
        outputs = [self._node(*pair) for pair in zip(first.outputs, second.outputs, strict=True)]
        self._graph.output(outputs)
        self._graph.eliminate_dead_code()

    def function(self) -> Callable[..., list[Tensor]]:
        """The graph as a Python function of the number of records, the tensors, the constants."""
        run: Callable[..., list[Tensor]] = fx.GraphModule(torch.nn.Module(), self._graph).forward
        return run

    def _add(self, one: Any, two: Any) -> None:
        (func, args, kwargs, result), (other, other_args, other_kwargs, other_result) = one, two
        if func is not other:
            raise NotRecordable("the operations differ")
        if _draws(one):
            raise NotRecordable("random numbers are drawn")
        if func in _UNFILLED and _memory(result) not in self._filled:
            raise NotRecordable("memory is filled by something that is not seen")
        _refuse_places(func, args, other_args)
        if func in _ALIASES:
            self._note(result, other_result, self._node(args[0], other_args[0]))
            return
        if func in _VIEWS and args[0].is_contiguous() and other_args[0].is_contiguous():
            self._view(args[0], other_args[0], result, other_result)
            return
        node = self._graph.call_function(
            _QUICK.get(func, func),
            tuple(self._matched(*pair) for pair in zip(args, other_args, strict=True)),
            {name: self._matched(kwargs[name], other_kwargs[name]) for name in kwargs},
        )
        if isinstance(result, Tensor):
            self._note(result, other_result, node)
            return
        for place, pair in enumerate(zip(result, other_result, strict=True)):
            if isinstance(pair[0], Tensor):
                self._note(*pair, self._graph.call_function(operator.getitem, (node, place)))

    def _view(self, one: Tensor, two: Tensor, result: Tensor, other_result: Tensor) -> None:
        """Views of views are views of the first; those of its own shape are itself."""
        base, shape = self._whole.get(node := self._node(one, two), (node, one.shape))
        if result.shape == shape:
            viewed = base
        else:
            sizes = self._matched(list(result.shape), list(other_result.shape))
            viewed = self._graph.call_function(Tensor.view, (base, sizes))
            self._whole[viewed] = base, shape
        self._note(result, other_result, viewed)

    def _matched(self, one: Any, two: Any) -> Any:
        if isinstance(one, Tensor):
            return self._node(one, two)
        if isinstance(one, list | tuple):
            if len(one) != len(two):
                raise NotRecordable("an argument differs")
            return [self._matched(*pair) for pair in zip(one, two, strict=True)]
        if type(one) is int and one != two:
            return self._multiple(one, two)
        if one != two:
            raise NotRecordable("an argument differs")
        return one

    def _multiple(self, one: int, two: int) -> fx.Node:
        factor, rest = divmod(one, self._records[0])
        if rest or two != factor * self._records[1]:
            raise NotRecordable("a number differs that is no multiple of the number of records")
        if factor not in self._multiples:
            with self._graph.inserting_before(self._operations):
                made = self._graph.call_function(operator.mul, (self._number, factor))
            self._multiples[factor] = made
        return self._multiples[factor]

    def _note(self, one: Tensor, two: Tensor, node: fx.Node) -> None:
        self._nodes[id(one)] = node
        self._twin[id(one)] = id(two)

    def _node(self, one: Tensor, two: Tensor) -> fx.Node:
        if id(one) not in self._nodes:
            if one is not two:  # not a weight or a buffer: made by something that was not seen
                raise NotRecordable("a tensor comes from elsewhere")
            with self._graph.inserting_before(self._head):
                constant = self._graph.placeholder(f"constant_{len(self._constants)}")
            self._note(one, two, constant)
            self._constants.append(one)
        elif self._twin[id(one)] != id(two):
            raise NotRecordable("the tensors of an operation differ")
        return self._nodes[id(one)]


def _tagged(call: Any, tag: torch.Tag) -> bool:
    return tag in call[0].tags


def _draws(call: Any) -> bool:
    """Whether an operation draws random numbers; attention need not."""
    func, args, kwargs, _ = call
    if not _tagged(call, torch.Tag.nondeterministic_seeded):
        return False
    names = [one.name for one in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return "dropout_p" not in names or bool(given.get("dropout_p"))


def _sized_by_values(call: Any) -> bool:
    """Whether the shape of the result depends on values: it does if an index is a mask."""
    func, args, _, _ = call
    if func is aten.index.Tensor:
        return any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1])
    return _tagged(call, torch.Tag.dynamic_output_shape)


def _tensors(values: Any) -> list[Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, Tensor)]


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _refuse_places(func: Any, args: Sequence[Any], other: Sequence[Any]) -> None:
    """Refuses to pick out some records by their places in the batch."""
    if func not in (aten.slice.Tensor, aten.select.int) or len(args) < 2:
        return
    size, other_size = (given[0].shape[given[1]] for given in (args, other))
    if size == other_size:
        return
    whole = func is aten.slice.Tensor and not (args[2] if len(args) > 2 else 0)
    if not whole or (len(args) > 3 and args[3] is not None and args[3] < size):
        raise NotRecordable("records are picked out by their places")


class _Apart(pickle.Pickler):
    def __init__(self, file: io.BytesIO, records: int) -> None:
        super().__init__(file, protocol=5)
        self.tensors: list[Tensor] = []
        self._records = records
        self._places: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        if isinstance(value, Tensor):
            place = self._places.setdefault(id(value), len(self.tensors))
            if place == len(self.tensors):
                self.tensors.append(value)
            return place
        return -1 if type(value) is int and value == self._records else None


class _Together(pickle.Unpickler):
    def __init__(self, form: bytes, tensors: Sequence[Tensor], records: int) -> None:
        super().__init__(io.BytesIO(form))
        self._tensors, self._records = tensors, records

    def persistent_load(self, place: int) -> Any:
        return self._records if place < 0 else self._tensors[place]


def taken_apart(value: Any, records: int) -> tuple[bytes, list[Tensor]]:
    """An object without its tensors and its number of records, and the tensors.

    Raises:
        NotRecordable: If it holds something that cannot be taken apart.
    """
    file = io.BytesIO()
    apart = _Apart(file, records)
    try:
        apart.dump(value)
    except (pickle.PicklingError, AttributeError, TypeError):
        raise NotRecordable(f"a {type(value).__name__} cannot be taken apart") from None
    return file.getvalue(), apart.tensors


def put_together(form: bytes, tensors: Sequence[Tensor], records: int) -> Any:
    """The object of that form, with these tensors."""
    return _Together(form, tensors, records).load()
