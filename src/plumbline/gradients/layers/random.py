"""Random functions inside a model: every record draws numbers of its own.

They are keyed by the record and not by its place in the batch (``record_random.py``), so that one
record more or less does not change what the others draw, and they are the same in every pass of a
step. Dropout has a fast rule; any other random function runs record by record, each with a
generator that starts at a seed of the record's own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.gradients.errors import UnsupportedModelError
from plumbline.gradients.layers import handles
from plumbline.gradients.lowering import Lowered, has_records, lowered
from plumbline.gradients.tape import Tape

_LONG = 256
"""From this many numbers on, a generator for each record is faster than hashing each number."""


def kept(tape: Tape, shape: tuple[int, ...], p: float, like: Tensor) -> Tensor:
    """What dropout multiplies with, ``[B, *shape]``: 0 with probability p, else 1 / (1 - p).

    It is of ``like``'s type and on its device.
    """
    count = torch.Size(shape).numel()
    if count < _LONG:
        mask = tape.random.uniform(*shape) >= p
    else:
        mask = torch.empty(tape.records, *shape, device="cpu")
        generator = torch.Generator()
        for row, seed in zip(mask, tape.random.seeds().tolist(), strict=True):
            row.bernoulli_(1 - p, generator=generator.manual_seed(seed))
    mask = mask.to(like.device, like.dtype)
    return mask / (1 - p) if p < 1 else mask.zero_()


def dropped(tape: Tape, tensor: Tensor, p: float, shape: tuple[int, ...] | None = None) -> Tensor:
    """Dropout of one record's tensor; ``shape`` is that of its mask, broadcast."""
    shape = tuple(tensor.shape) if shape is None else shape

    def on_batch(call: Lowered, args: Any, kwargs: Any) -> Tensor:
        return kept(tape, shape, p, tensor)

    mask: Tensor = _of_each_record(tape, on_batch)
    return tensor * mask


@handles(F.dropout, torch.dropout, rewrites=True)
def dropout(
    tape: Tape,
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    train: bool | None = None,
) -> Tensor | None:
    """``F.dropout`` with each record's own mask."""
    if not (training if train is None else train) or p == 0:
        return None
    result = dropped(tape, input, p)
    return input.copy_(result) if inplace and has_records(input) else result


def _channels(tape: Tape, dims: int, input: Tensor, p: float = 0.5, training: bool = True,
              inplace: bool = False) -> Tensor | None:  # fmt: skip
    """``F.dropout1d`` and the like: whole channels are dropped."""
    if not training or p == 0:
        return None
    own = input.dim() - dims
    return dropped(tape, input, p, (*input.shape[:own], *(1,) * dims))


for _dims, _function in ((1, F.dropout1d), (2, F.dropout2d), (3, F.dropout3d)):
    handles(_function, rewrites=True)(
        lambda tape, *args, _dims=_dims, **kwargs: _channels(tape, _dims, *args, **kwargs)
    )


def _record_by_record(function: Callable[..., Any], tape: Tape, *args: Any, **kwargs: Any) -> Any:
    """Any random function, for each record with the default generator at the record's own seed."""
    in_place = function.__name__.endswith("_") and not function.__name__.endswith("__")
    if in_place and not has_records(args[0]):
        raise UnsupportedModelError(
            f"The model fills a tensor that is the same for all records by {function.__name__}(). "
            "Draw one that belongs to the record instead: torch.rand_like(x), torch.randn_like(x)."
        )

    def on_batch(call: Lowered, args: Any, kwargs: Any) -> Any:
        def own(value: Any, record: int) -> Any:
            if isinstance(value, Tensor):
                return value[record] if value in call else value
            if isinstance(value, list | tuple):
                return type(value)(own(part, record) for part in value)
            return value

        state = torch.default_generator.get_state()
        rows = []
        try:
            for record, seed in enumerate(tape.random.seeds().tolist()):
                torch.default_generator.manual_seed(seed)
                given = [own(value, record) for value in args]
                given = [given[0].clone(), *given[1:]] if in_place else given
                rows.append(function(*given, **{k: own(v, record) for k, v in kwargs.items()}))
        finally:
            torch.default_generator.set_state(state)
        if isinstance(rows[0], tuple):
            return tuple(torch.stack(parts) for parts in zip(*rows, strict=True))
        return torch.stack(rows)

    if any(tape.weight(value) is not None for value in args) or kwargs.get("generator") is not None:
        return None
    result = _of_each_record(tape, on_batch, *args, **kwargs)
    return args[0].copy_(result) if in_place else result


def _of_each_record(
    tape: Tape, on_batch: Callable[[Lowered, Any, Any], Any], *args: Any, **kwargs: Any
) -> Any:
    """What ``on_batch`` gives, as the record's own, also where no argument is a record's."""

    def marked(call: Lowered, args: Any, kwargs: Any) -> Any:
        result = on_batch(call, args, kwargs)
        call.found.append(result if isinstance(result, Tensor) else result[0])
        return result

    return lowered(marked, args, kwargs)


_RANDOM: tuple[Callable[..., Any], ...] = (
    torch.rand, torch.rand_like, torch.randn, torch.randn_like, torch.randint, torch.randint_like,
    torch.randperm, torch.normal, torch.bernoulli, torch.multinomial, torch.poisson, torch.rrelu,
    torch.binomial, F.rrelu, F.gumbel_softmax, F.alpha_dropout, F.feature_alpha_dropout,
    F.fractional_max_pool2d, F.fractional_max_pool3d, torch.alpha_dropout, torch.feature_dropout,
    torch.feature_alpha_dropout, Tensor.bernoulli, Tensor.multinomial, Tensor.bernoulli_,
    Tensor.normal_, Tensor.uniform_, Tensor.exponential_, Tensor.random_, Tensor.log_normal_,
    Tensor.geometric_, Tensor.cauchy_,
)  # fmt: skip
for _function in _RANDOM:
    handles(_function, rewrites=True)(partial(_record_by_record, _function))
