from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from plumbline.gradients import CaptureError, Perturbation, capture
from plumbline.gradients.layers import recurrent_scan
from plumbline.gradients.outer import Outer
from tests.gradients.harness import (
    AUTOCAST,
    PRECISIONS,
    Precision,
    assert_matches_loop,
    record_losses,
)
from tests.gradients.hessian_harness import assert_hessian_products_match_loop

# Torch's own warning about nn.LSTM(proj_size=...), which the loop meets.
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")

LAYERS: dict[str, Callable[..., nn.RNNBase]] = {
    "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
    "gru": nn.GRU,
    "lstm": nn.LSTM,
    "lstm, narrowed": lambda *sizes, **options: nn.LSTM(*sizes, proj_size=3, **options),
}
CELLS: dict[str, Callable[..., nn.RNNCellBase]] = {
    "tanh": nn.RNNCell,
    "relu": lambda *sizes, **options: nn.RNNCell(*sizes, nonlinearity="relu", **options),
    "gru": nn.GRUCell,
    "lstm": nn.LSTMCell,
}
ANY_LAYER = pytest.mark.parametrize("build", LAYERS.values(), ids=LAYERS.keys())
ANY_CELL = pytest.mark.parametrize("build", CELLS.values(), ids=CELLS.keys())
BATCH_FIRST = pytest.mark.parametrize(
    "batch_first", [True, False], ids=["batch first", "sequence first"]
)
OPTIONS = pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"bidirectional": True}, {"num_layers": 2, "bidirectional": True}],
    ids=lambda options: ", ".join(options) or "plain",
)


def _shaped(batch_first: bool, records: int, length: int) -> Tensor:
    return torch.randn(records, length, 4) if batch_first else torch.randn(length, records, 4)


def _sequence_first(model: nn.Module, record: Tensor) -> Tensor:
    """The loss of a record ``[1, T, d]`` for a model that takes ``[T, 1, d]``."""
    return record_losses(model(record.transpose(0, 1)), batch_dim=1)


def _clear_of_kinks(layer: nn.Module, inputs: Tensor, precision: Precision) -> Tensor:
    """Inputs, and the layer's weights in place, with which no ReLU's argument rounds to zero.

    A zero in bfloat16 would choose another side of the ReLU than the loop's. So there each unit's
    weights are of one sign and the inputs positive.
    """
    if getattr(layer, "nonlinearity", "") != "relu" or precision is not AUTOCAST:
        return inputs
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.abs_()
            parameter[1::2] *= -1
    return inputs.abs()


@pytest.mark.covering
@PRECISIONS
@OPTIONS
@BATCH_FIRST
@ANY_LAYER
def test_layers(
    build: Callable[..., nn.Module],
    batch_first: bool,
    options: dict[str, Any],
    precision: Precision,
) -> None:
    model = build(4, 6, batch_first=batch_first, **options)
    inputs = _shaped(batch_first, records=3, length=5)
    inputs = _clear_of_kinks(model, inputs, precision)
    assert_matches_loop(model, inputs, **precision, batch_dim=0 if batch_first else 1)


@pytest.mark.covering
@pytest.mark.parametrize(
    ("records", "length"), [(4, 4), (1, 3), (3, 1), (2, 4)], ids=["T == B", "B = 1", "T = 1", "2B"]
)
@BATCH_FIRST
@ANY_LAYER
def test_lengths(
    build: Callable[..., nn.Module], batch_first: bool, records: int, length: int
) -> None:
    model = build(4, 6, batch_first=batch_first)
    inputs = _shaped(batch_first, records, length)
    assert_matches_loop(model, inputs, batch_dim=0 if batch_first else 1)


@given(
    build=st.sampled_from([nn.RNN, nn.GRU, nn.LSTM]),
    records=st.integers(1, 4),
    length=st.integers(1, 4),
    into=st.integers(1, 3),
    hidden=st.integers(1, 3),
    options=st.fixed_dictionaries(
        {
            "num_layers": st.integers(1, 2),
            "bidirectional": st.booleans(),
            "bias": st.booleans(),
            "batch_first": st.booleans(),
        }
    ),
)
def test_any_shape(
    build: Callable[..., nn.Module],
    records: int,
    length: int,
    into: int,
    hidden: int,
    options: dict[str, Any],
) -> None:
    torch.manual_seed(0)
    first = options["batch_first"]
    inputs = torch.randn(records, length, into) if first else torch.randn(length, records, into)
    assert_matches_loop(build(into, hidden, **options), inputs, batch_dim=0 if first else 1)


@ANY_LAYER
def test_all_steps_are_one_term(build: Callable[..., nn.Module]) -> None:
    model, inputs = build(4, 6), torch.randn(3, 5, 4)
    found = capture(model, _sequence_first, inputs)
    for name in ("weight_ih_l0", "weight_hh_l0"):
        term = found.term(name)
        assert isinstance(term, Outer)
        assert term.positions == 5


class LastState(nn.Module):
    """A classifier on the last state, as everybody writes it."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer
        width = layer.proj_size or layer.hidden_size
        self.head = nn.Linear(width * (2 if layer.bidirectional else 1), 2)

    def forward(self, x: Tensor) -> Tensor:
        _, state = self.layer(x)
        h = state[0] if isinstance(state, tuple) else state
        last = h[-2:] if self.layer.bidirectional else h[-1:]
        return self.head(torch.cat(tuple(last), 1))


@BATCH_FIRST
@ANY_LAYER
def test_a_classifier_on_the_last_state(
    build: Callable[..., nn.RNNBase], batch_first: bool
) -> None:
    model = LastState(build(4, 6, num_layers=2, bidirectional=True, batch_first=batch_first))
    x = torch.randn(3, 5, 4)

    def losses(own: nn.Module, inputs: Tensor) -> Tensor:
        return record_losses(own(inputs if batch_first else inputs.transpose(0, 1)))

    assert_matches_loop(model, x, losses=losses)


@PRECISIONS
@ANY_LAYER
def test_a_learned_first_state(build: Callable[..., nn.RNNBase], precision: Precision) -> None:
    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = build(4, 6, batch_first=True)
            self.h = nn.Parameter(torch.rand(1, 1, self.layer.proj_size or 6))
            self.c = nn.Parameter(torch.randn(1, 1, 6))

        def forward(self, x: Tensor) -> Tensor:
            h, c = (one.expand(-1, len(x), -1) for one in (self.h, self.c))
            return self.layer(x, (h, c) if isinstance(self.layer, nn.LSTM) else h)[0]

    model = Learned()
    inputs = _clear_of_kinks(model.layer, torch.randn(3, 5, 4), precision)
    assert_matches_loop(model, inputs, **precision)


@ANY_LAYER
def test_a_state_that_depends_on_the_record(build: Callable[..., nn.RNNBase]) -> None:
    class Started(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = build(4, 6, batch_first=True)
            self.start = nn.Linear(4, self.layer.proj_size or 6)

        def forward(self, x: Tensor) -> Tensor:
            h = self.start(x[:, 0])[None]
            c = torch.ones(1, len(x), 6, dtype=x.dtype)
            return self.layer(x, (h, c) if isinstance(self.layer, nn.LSTM) else h)[0]

    assert_matches_loop(Started(), torch.randn(3, 5, 4))


@pytest.mark.parametrize("frozen", ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"])
@ANY_LAYER
def test_frozen_parameters(build: Callable[..., nn.Module], frozen: str) -> None:
    model = build(4, 6, batch_first=True)
    model.get_parameter(frozen).requires_grad_(False)
    assert frozen not in assert_matches_loop(model, torch.randn(3, 5, 4)).names


@ANY_LAYER
def test_only_one_parameter_is_trained(build: Callable[..., nn.Module]) -> None:
    for name, _ in build(4, 6).named_parameters():
        model = build(4, 6, batch_first=True).requires_grad_(False)
        model.get_parameter(name).requires_grad_(True)
        assert assert_matches_loop(model, torch.randn(3, 5, 4)).names == [name]


@ANY_LAYER
def test_a_parametrised_weight(build: Callable[..., nn.Module]) -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = build(4, 6, batch_first=True)
            nn.utils.parametrizations.weight_norm(self.layer, "weight_hh_l0")

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)[0]  # type: ignore[no-any-return]

        def __deepcopy__(self, memo: object) -> nn.Module:
            own = Normed().double()  # torch cannot copy a recurrent layer with a made weight
            own.load_state_dict(self.state_dict())
            return own

    assert_matches_loop(Normed(), torch.randn(3, 5, 4))


@ANY_LAYER
def test_a_layer_used_twice_and_an_in_place_activation(build: Callable[..., nn.RNNBase]) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = build(4, 6, batch_first=True)
            self.back = nn.Linear(self.layer.proj_size or 6, 4)

        def forward(self, x: Tensor) -> Tensor:
            between = self.layer(x)[0].relu_()
            return self.layer(torch.tanh(self.back(between)))[0].tanh_()

    assert_matches_loop(Twice(), torch.randn(3, 5, 4))


def test_several_sequences_per_record() -> None:
    class Sentences(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(4, 6, batch_first=True)

        def forward(self, documents: Tensor) -> Tensor:
            output, _ = self.layer(documents.flatten(0, 1))
            return output.unflatten(0, documents.shape[:2])

    assert_matches_loop(Sentences(), torch.randn(3, 2, 5, 4))


@BATCH_FIRST
@ANY_LAYER
def test_outputs_and_last_states_are_torchs_own(
    build: Callable[..., nn.RNNBase], batch_first: bool
) -> None:
    model = build(4, 6, num_layers=3, bidirectional=True, dropout=0.5, batch_first=batch_first)

    def losses(net: nn.Module, x: Tensor) -> Tensor:
        output, states = net(x if batch_first else x.transpose(0, 1))
        states = states if isinstance(states, tuple) else (states,)
        found = record_losses(output, batch_dim=0 if batch_first else 1)
        return found + sum(record_losses(state, batch_dim=1) for state in states)

    inputs = torch.randn(3, 5, 4)
    found = capture(model.eval(), losses, inputs)
    torch.testing.assert_close(found.losses, losses(model, inputs).detach())


@ANY_LAYER
def test_the_module_is_as_before(build: Callable[..., nn.RNNBase]) -> None:
    model, inputs = build(4, 6), torch.randn(3, 5, 4)
    flat, refs = model._flat_weights, model._flat_weight_refs
    capture(model, _sequence_first, inputs)
    assert model._flat_weights is flat
    assert model._flat_weight_refs is refs


@pytest.mark.parametrize("build", [nn.RNN, nn.GRU, nn.LSTM])
def test_packed_sequences_are_refused(build: Callable[..., nn.Module]) -> None:
    model = build(4, 6, batch_first=True)

    def losses(net: nn.Module, x: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, [4], batch_first=True)
        return record_losses(net(packed)[1], batch_dim=1)

    with pytest.raises(CaptureError, match="Pad the sequences instead"):
        capture(model, losses, torch.randn(3, 5, 4))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled loops for LSTMs of any size."""
    monkeypatch.setattr(recurrent_scan, "_MANY", 1)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("length", [4, 9], ids=["offsets of low rank", "own weights"])
@OPTIONS
def test_compiled_steps(options: dict[str, Any], length: int) -> None:
    model = nn.LSTM(4, 6, batch_first=True, **options)
    assert_matches_loop(model, torch.randn(3, length, 4), dtype=torch.float32)


@pytest.mark.usefixtures("compiled")
def test_compiled_steps_of_several_sequences_per_record() -> None:
    class Sentences(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(4, 6, batch_first=True)

        def forward(self, documents: Tensor) -> Tensor:
            output, _ = self.layer(documents.flatten(0, 1))
            return output.unflatten(0, documents.shape[:2])

    assert_matches_loop(Sentences(), torch.randn(3, 2, 4, 4), dtype=torch.float32)


@pytest.mark.usefixtures("compiled")
def test_compiled_rows_do_not_meet() -> None:
    model, inputs = Forward(nn.LSTM(4, 6, batch_first=True)), torch.randn(3, 5, 4)

    def gradients() -> list[Tensor]:
        own = capture(model, lambda net, x: record_losses(net(x)), inputs)
        scale = torch.full((3,), 0.1)
        moved = capture(
            model, lambda net, x: record_losses(net(x)), inputs, at=Perturbation(own, scale)
        )
        return [*own.materialise().values(), *moved.materialise().values()]

    before = gradients()
    inputs[1] = torch.nan
    for old, new in zip(before, gradients(), strict=True):
        assert torch.equal(old[::2], new[::2])
        assert new[1].isnan().any()


@pytest.mark.parametrize(
    ("steps", "build"),
    [("Simple", nn.RNN), ("Gru", nn.GRU), ("Lstm", nn.LSTM)],
    ids=["rnn", "gru", "lstm"],
)
def test_the_check_notices_a_wrong_derivative(
    monkeypatch: pytest.MonkeyPatch, steps: str, build: Callable[..., nn.Module]
) -> None:
    one = getattr(recurrent_scan, steps)
    right = one._step_back
    monkeypatch.setattr(one, "_step_back", lambda *args: 1.1 * right(*args))
    with pytest.raises(CaptureError, match="differs from autograd's own"):
        capture(build(4, 6), _sequence_first, torch.randn(3, 5, 4))


class Unrolled(nn.Module):
    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state, outputs = None, []
        for step in x.unbind(1):
            state = self.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs, 1)


@pytest.mark.covering
@PRECISIONS
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("shape", [(3, 5, 4), (4, 4, 4), (1, 2, 4)], ids=str)
@ANY_CELL
def test_cells(
    build: Callable[..., nn.RNNCellBase], shape: tuple[int, ...], bias: bool, precision: Precision
) -> None:
    model, inputs = Unrolled(build(4, 6, bias=bias)), torch.randn(shape)
    inputs = _clear_of_kinks(model.cell, inputs, precision)
    assert_matches_loop(model, inputs, **precision)


@pytest.mark.parametrize("mode", ["forward", "reverse"])
@ANY_LAYER
def test_hessian_products(
    build: Callable[..., nn.Module], mode: Literal["forward", "reverse"]
) -> None:
    model = build(4, 6, num_layers=2, bidirectional=True, batch_first=True)
    assert_hessian_products_match_loop(Forward(model), torch.randn(3, 4, 4), mode=mode)


@ANY_CELL
def test_hessian_products_of_cells(build: Callable[..., nn.RNNCellBase]) -> None:
    assert_hessian_products_match_loop(Unrolled(build(4, 6)), torch.randn(3, 3, 4))


class Forward(nn.Module):
    """A layer's outputs alone."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]  # type: ignore[no-any-return]
