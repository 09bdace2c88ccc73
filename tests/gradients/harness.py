"""The oracle of the engine's tests: a loop that differentiates one record at a time.

``assert_matches_loop`` takes any module and a batch and compares every operation of a capture with
that loop. It captures twice, because the first capture of a model takes another way (it is checked
against autograd) than all later ones.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from plumbline.gradients import KERNELS, PerSampleGradients, Perturbation, capture
from plumbline.record_random import Draws

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
Losses = Callable[[nn.Module, Inputs], Tensor]
Gradients = dict[str, Tensor]

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
AUTOCAST_TOLERANCE = 2e-2
UNDERSTATED = 1e-6

Precision = dict[str, Any]
AUTOCAST: Precision = {"dtype": torch.float32, "autocast": True}
PRECISIONS = pytest.mark.parametrize(
    "precision",
    [{"dtype": torch.float64}, {"dtype": torch.float32}, AUTOCAST],
    ids=["float64", "float32", "bfloat16"],
)
"""What every layer must do in: ``assert_matches_loop(model, inputs, **precision)``."""


def assert_matches_loop(
    model: nn.Module,
    inputs: Inputs,
    *,
    losses: Losses | None = None,
    dtype: torch.dtype = torch.float64,
    tolerance: float | None = None,
    perturbed: bool = True,
    autocast: bool = False,
    batch_dim: int = 0,
) -> PerSampleGradients:
    """Every operation of a capture equals the loop; returns the (second) capture.

    Args:
        model: Any module; moved to ``dtype`` in place.
        inputs: The batch: a tensor, a tuple (positional arguments) or a dict (keywords). Floating
            point tensors are moved to ``dtype``.
        losses: One loss per record, ``[B]``, from the model and (a slice of) the inputs; by default
            a smooth function of the model's first output.
        dtype: The type of weights and inputs.
        tolerance: Relative error allowed; by default that of ``dtype`` or of autocast.
        perturbed: Also capture with every record at its own weights.
        autocast: Run model and loss under bfloat16 autocast, the loop too.
        batch_dim: The dimension of every input, and of the output, that counts the records for
            the model; the batch itself always has them first.
    """
    model = model.to(dtype)
    inputs = _mapped(inputs, lambda x: x.to(dtype) if x.is_floating_point() else x)
    tolerance = tolerance or (AUTOCAST_TOLERANCE if autocast else TOLERANCE[dtype])
    run = _runner(losses, autocast, batch_dim)
    truth = loop(model, inputs, run, batch_dim)
    norms = record_norms(truth)

    batch = _mapped(inputs, lambda x: x.movedim(batch_dim, 0))

    def loss(model: nn.Module, record: Inputs) -> Tensor:
        return run(model, _mapped(record, lambda x: x.movedim(0, batch_dim)))

    for which in ("first", "later"):
        found = capture(model, loss, batch)
        # Under autocast the loop itself is only right to that precision, parameter by parameter.
        _assert_operations(found, truth, tolerance, f"{which} capture", whole=autocast)

    if perturbed and found.records:
        scale = torch.where(norms > 0, 0.1 / norms, 0.0).to(dtype)
        moved = loop(model, inputs, run, batch_dim, offsets=truth, scale=scale)
        own = capture(model, loss, batch, at=Perturbation(found, scale))
        _assert_operations(own, moved, tolerance, "perturbed capture", whole=autocast)
    return found


def loop(
    model: nn.Module,
    inputs: Inputs,
    losses: Losses | None = None,
    batch_dim: int = 0,
    *,
    offsets: Gradients | None = None,
    scale: Tensor | None = None,
) -> Gradients:
    """Dense per-record gradients, one record at a time, ``[B, *shape]`` by parameter name.

    With ``offsets`` and ``scale``, record i is differentiated at its own copy of the model, whose
    weights are moved by ``scale_i offsets_i``.
    """
    losses = losses or _runner(None, False, batch_dim)
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    rows: dict[str, list[Tensor]] = {name: [] for name in trainable}
    for i in range(batch_size(inputs, batch_dim)):
        own = model
        if offsets is not None and scale is not None:
            own = copy.deepcopy(model)
            with torch.no_grad():
                for name, parameter in own.named_parameters():
                    if name in offsets:
                        parameter += scale[i] * offsets[name][i]
        parameters = {name: p for name, p in own.named_parameters() if p.requires_grad}
        record = _mapped(inputs, lambda x, i=i: x.narrow(batch_dim, i, 1))
        loss = losses(own, record)
        assert loss.shape == (1,)
        gradients = torch.autograd.grad(loss.sum(), list(parameters.values()), allow_unused=True)
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
            rows[name].append(torch.zeros_like(parameter) if gradient is None else gradient)
    shapes = dict(model.named_parameters())
    return {
        name: torch.stack(own) if own else shapes[name].detach().new_zeros(0, *shapes[name].shape)
        for name, own in rows.items()
    }


def record_norms(gradients: Gradients) -> Tensor:
    """Each record's norm over all parameters, ``[B]``, in float64."""
    squares = [_flat(rows).square().sum(1) for rows in gradients.values()]
    return torch.stack(squares).sum(0).sqrt()


def _flat(rows: Tensor) -> Tensor:
    return rows.double().reshape(len(rows), rows.shape[1:].numel())


def batch_size(inputs: Inputs, batch_dim: int = 0) -> int:
    """The number of records of a batch."""
    tensors = _tensors(inputs)
    return tensors[0].shape[batch_dim]


def record_losses(output: object, batch_dim: int = 0) -> Tensor:
    """A smooth loss per record, ``[B]``, of the first tensor of any module's output.

    Every output element has its own linear and quadratic weight, so that no gradient vanishes by
    symmetry (a plain sum of squares after a normalisation is a constant).
    """
    first = _first(output)
    rows = first.movedim(batch_dim, 0)
    rows = rows.reshape(len(rows), rows[0].numel() if len(rows) else 1)
    rows = rows.float() if rows.dtype == torch.bfloat16 else rows
    weights = torch.cos(torch.arange(rows.shape[1], device=rows.device) * 1.7).to(rows.dtype)
    return (weights * rows + (0.6 + 0.4 * weights.flip(0)) * rows.square()).mean(1)


def output_losses(model: nn.Module, batch: Inputs) -> Tensor:
    """``record_losses`` of the model's output: the loss that most tests capture."""
    return record_losses(called(model, batch))


def assert_unmoved_by_others(
    model: nn.Module, batch: Any, losses: Callable[[nn.Module, Any], Tensor] = output_losses
) -> None:
    """Another last record leaves every other record's gradient bit-identical, dropout included."""
    records = len(tree_leaves(batch)[0])
    other = tree_map(lambda x: torch.cat([x[:-1], x[:1]]), batch)
    found = [
        capture(model, losses, given, random=Draws(torch.arange(records), "unmoved")).materialise()
        for given in (batch, batch, other)  # the first capture of a model takes another way
    ][1:]
    for name, rows in found[0].items():
        assert torch.equal(rows[:-1], found[1][name][:-1]), name


@contextmanager
def kernel(*names: str) -> Iterator[None]:
    """Whoever offers a kernel of one of these names uses it; everybody else the usual one."""
    usual = KERNELS.run
    used: set[str] = set()

    def run(key, candidates, *rest, **named):  # type: ignore[no-untyped-def]
        name = next((name for name in names if name in candidates), None)
        if name is None:
            return usual(key, candidates, *rest, **named)
        used.add(name)
        return candidates[name]()

    with mock.patch.object(KERNELS, "run", run):
        yield
    assert used == set(names), f"no layer offered the kernel {set(names) - used}"


def _assert_operations(
    found: PerSampleGradients, truth: Gradients, tolerance: float, what: str, *, whole: bool
) -> None:
    records = found.records
    dtype = found.losses.dtype
    device = found.losses.device
    generator = torch.Generator(device).manual_seed(records)
    assert found.names == list(truth), what

    # norms first: they may keep something that the other operations then use.
    norms, true_norms = found.norms(), record_norms(truth)
    dense = found.materialise()
    for name, rows in truth.items():
        assert dense[name].shape == rows.shape, f"{what}: shape of {name}"
        assert dense[name].dtype == rows.dtype, f"{what}: dtype of {name}"
    _assert_close(dense, truth, tolerance, f"{what}: materialise", whole=whole)

    own_norms = record_norms(dense)
    assert norms.shape == (records,), what
    floor = own_norms * (1 - UNDERSTATED)
    assert bool((norms.double() >= floor).all()), (
        f"{what}: norms under-stated: {norms.tolist()} for gradients of norm {own_norms.tolist()}"
    )
    # A norm of zero may be over-stated by what is nothing beside the others.
    error = (norms.double() - true_norms).abs()
    assert bool((error <= tolerance * (true_norms + 1e-6 * true_norms.sum())).all()), (
        f"{what}: norms {norms.tolist()} but the loop's are {true_norms.tolist()}"
    )

    weights = torch.rand(records, generator=generator, dtype=dtype, device=device) - 0.3
    weights[::3] = 0
    for given in (weights, None):
        ones = torch.ones_like(weights) if given is None else given
        total = found.sum(given)
        expected = {
            name: torch.einsum("b,b...->...", ones.to(rows.dtype), rows)[None]
            for name, rows in truth.items()
        }
        size = (ones.abs().double() * true_norms).sum()
        _assert_close(
            {name: value[None] for name, value in total.items()},
            expected,
            tolerance,
            f"{what}: sum",
            whole=whole,
            size=size,
        )

    double = {"dtype": torch.float64, "device": device}
    direction = {
        name: torch.randn(rows.shape[1:], generator=generator, **double).to(rows.dtype)
        for name, rows in truth.items()
    }
    dots = found.dot(direction)
    assert dots.shape == (records,), what
    expected_dots = sum(
        _flat(rows) @ direction[name].double().flatten() for name, rows in truth.items()
    )
    length = sum(float(value.double().square().sum()) for value in direction.values()) ** 0.5
    error = (dots.double() - expected_dots).abs()
    assert bool((error <= tolerance * length * true_norms + 1e-300).all()), (
        f"{what}: dot is off by {error.tolist()}"
    )


def _assert_close(
    found: Gradients,
    truth: Gradients,
    tolerance: float,
    what: str,
    *,
    whole: bool,
    size: Tensor | None = None,
) -> None:
    """Close parameter by parameter (over the batch), and record by record (over the parameters).

    A parameter whose gradient is nothing but rounding (the bias of attention's keys) is held
    against a thousandth of the whole gradient; with ``whole``, every parameter against all of it.
    """
    total = record_norms(truth).norm() if size is None else size
    share = 1.0 if whole else 1e-3
    differences = {name: found[name].double() - rows.double() for name, rows in truth.items()}
    for name, rows in truth.items():
        error = float(differences[name].norm())
        scale = float(rows.double().norm() + share * total)
        assert error <= tolerance * scale, (
            f"{what} of {name} differs from the loop by {error / max(scale, 1e-300):.1e}"
        )
    if size is None:
        error, scale = record_norms(differences), record_norms(truth)
        bad = (error > tolerance * (scale + 1e-3 * scale.mean())).nonzero()[:, 0].tolist()
        assert not bad, f"{what} of records {bad} differs from the loop: {error[bad]}"


def _runner(losses: Losses | None, autocast: bool, batch_dim: int) -> Losses:
    def run(model: nn.Module, inputs: Inputs) -> Tensor:
        context: AbstractContextManager[object] = nullcontext()
        if autocast:
            context = torch.autocast(_tensors(inputs)[0].device.type, torch.bfloat16)
        with context, _runnable_lstm() if autocast else nullcontext():
            if losses is not None:
                return losses(model, inputs)
            return record_losses(called(model, inputs), batch_dim)

    return run


@contextmanager
def _runnable_lstm() -> Iterator[None]:
    """On processors without bfloat16, oneDNN's LSTM fails under autocast: torch's own runs."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(before and torch.ops.mkldnn._is_mkldnn_bf16_supported())
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def called(model: nn.Module, inputs: Inputs) -> object:
    """The model's output for the inputs."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def _first(output: object) -> Tensor:
    while not isinstance(output, Tensor):
        values = output.values() if isinstance(output, dict) else output
        output = next(iter(values))  # type: ignore[call-overload]
    return output


def _tensors(inputs: Inputs) -> list[Tensor]:
    if isinstance(inputs, dict):
        return list(inputs.values())
    return list(inputs) if isinstance(inputs, tuple) else [inputs]


def _mapped(inputs: Inputs, function: Callable[[Tensor], Tensor]) -> Inputs:
    if isinstance(inputs, dict):
        return {name: function(value) for name, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(function(value) for value in inputs)
    return function(inputs)
