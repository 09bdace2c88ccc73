"""Records cannot mix, by construction: what a model may do with one record, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from plumbline.gradients import (
    PerSampleGradients,
    RecordsMixError,
    UnsupportedModelError,
    capture,
)
from tests.gradients.devices import seeded
from tests.gradients.harness import assert_matches_loop, loop, output_losses, record_losses

Step = Callable[["Model", Tensor, Tensor], Tensor | None]
KEPT: list[Tensor] = []
CACHE: dict[str, Tensor] = {}


class Model(nn.Module):
    """A linear layer, and what a test does with the record and the output."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.linear, self.step = nn.Linear(4, 3), step
        self.register_buffer("buffer", torch.zeros(3))
        self.register_buffer("row", torch.zeros(1, 3))
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        changed = self.step(self, x, y)
        return y if changed is None else changed


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    """What a test keeps would be found after any later run of a custom function."""
    yield
    KEPT.clear()
    CACHE.clear()


def batch(records: int = 5, *shape: int) -> Tensor:
    return torch.randn(records, *(shape or (4,)), generator=seeded(1))


def captured(step: Step, **named: Any) -> PerSampleGradients:
    return capture(Model(step), output_losses, batch(), **named)


def _branch(model: Model, x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        return 2 * y
    return y


DEPENDS_ON_DATA: dict[str, Step] = {
    "item": lambda model, x, y: y * x.sum().item(),
    "float": lambda model, x, y: y * float(x.sum()),
    "tolist": lambda model, x, y: y * x.tolist()[0][0],
    "numpy": lambda model, x, y: y * float(x.detach().numpy()[0, 0]),
    "if": _branch,
    "a length": lambda model, x, y: y[:, : int(x[0, 0] > 0) + 1],
    "a mask": lambda model, x, y: y * x[x > 0].sum(),
    "nonzero": lambda model, x, y: y * len(x.nonzero()),
    "equal": lambda model, x, y: y if torch.equal(x, y) else 2 * y,
    "storage": lambda model, x, y: y * x.untyped_storage()[0],
    "the address": lambda model, x, y: y * x.data_ptr(),
}


@pytest.mark.parametrize("step", DEPENDS_ON_DATA.values(), ids=DEPENDS_ON_DATA.keys())
def test_what_depends_on_the_data_is_refused_by_its_line(step: Step) -> None:
    message = r'line test_one_record\.py:\d+ \(.*(torch\.where|loop).*isolation="loop"'
    with pytest.raises(UnsupportedModelError, match=message):
        captured(step)


@pytest.mark.parametrize("name", ["item", "float", "if", "a mask"])
def test_one_record_at_a_time_it_works(name: str) -> None:
    model = Model(DEPENDS_ON_DATA[name]).double()
    x = batch().double()
    found = capture(model, output_losses, x, isolation="loop").materialise()
    for key, rows in loop(model, x).items():
        torch.testing.assert_close(found[key], rows, rtol=1e-12, atol=1e-14)


def test_printing_shows_no_values(capsys: pytest.CaptureFixture[str]) -> None:
    def step(model: Model, x: Tensor, y: Tensor) -> None:
        print(x, [y], f"{x}", str(y), repr(x))

    captured(step)
    (line,) = set(capsys.readouterr().out.split("\n")) - {""}
    first, second = (f"a record's tensor of shape (1, {size})" for size in (4, 3))
    assert line == f"{first} [{second}] {first} {second} {first}"


def test_data_and_grad_fn_are_of_the_record() -> None:
    def step(model: Model, x: Tensor, y: Tensor) -> Tensor:
        assert y.grad_fn is None
        return y * y.data + x.data[:, :3]

    assert_matches_loop(Model(lambda model, x, y: y * y.data + x.data[:, :3]), batch())
    captured(step)


class Square(torch.autograd.Function):
    """x squared; a base for functions with other rules."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.square()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradients[0]


class Generated(Square):
    generate_vmap_rule = True


class OwnRule(Square):
    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:
        return (x - x.mean(in_dims[0], keepdim=True)).square(), in_dims[0]


class OldStyle(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.square()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class OwnRuleInside(Generated):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return OwnRule.apply(x) + x.square()


class KeepsGradients(Generated):
    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        KEPT.append(gradients[0])
        return gradients[0]


class KeepsInputs(Generated):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        KEPT.append(x)
        return x.square()


class PrintsGradients(Generated):
    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        print(gradients[0])
        return gradients[0]


class TestCustomFunctions:
    def test_a_generated_rule_works(self) -> None:
        assert_matches_loop(Model(lambda model, x, y: Generated.apply(y)), batch())

    @pytest.mark.parametrize("function", [Square, OwnRule, OldStyle, OwnRuleInside])
    def test_any_other_rule_is_refused(self, function: Any) -> None:
        with pytest.raises(UnsupportedModelError, match=r"generate_vmap_rule = True.*loop"):
            captured(lambda model, x, y: function.apply(y))

    @pytest.mark.parametrize("function", [KeepsGradients, KeepsInputs])
    def test_what_its_code_keeps_is_refused(self, function: Any) -> None:
        with pytest.raises(RecordsMixError, match=r"keeps a tensor.*\(in a list\)"):
            captured(lambda model, x, y: function.apply(y))

    def test_what_its_backward_prints_shows_no_values(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        captured(lambda model, x, y: PrintsGradients.apply(y))
        shown = set(capsys.readouterr().out.split("\n"))
        assert shown == {"a record's tensor of shape (1, 3)", ""}

    def test_a_function_that_hides_its_code_is_refused(self) -> None:
        def hidden(x: Tensor) -> Tensor:
            if torch.overrides.has_torch_function((x,)):
                return torch.overrides.handle_torch_function(hidden, (x,), x)
            return OwnRule.apply(x)

        with pytest.raises(UnsupportedModelError, match=r"hidden.*handle_torch_function"):
            captured(lambda model, x, y: hidden(y))


def _operator(name: str, *, own_rule: bool) -> Any:
    @torch.library.custom_op(f"plumbline_tests::{name}", mutates_args=())
    def operator(x: Tensor) -> Tensor:
        return x.sin()

    operator.register_autograd(
        lambda ctx, gradient: gradient * ctx.saved_tensors[0].cos(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    if own_rule:
        operator.register_vmap(lambda info, dims, x: (x - x.mean(dims[0], keepdim=True), dims[0]))
    return operator


class TestCustomOperators:
    def test_one_without_a_rule_of_its_own_is_refused_too(self) -> None:
        """Its code would run row after row, and what it draws would depend on the row's place."""
        operator = _operator("plain_sine", own_rule=False)
        model = Model(lambda model, x, y: operator(y))
        with pytest.raises(UnsupportedModelError, match=r"operator plumbline_tests.*plain_sine"):
            capture(model, output_losses, batch())
        assert capture(model, output_losses, batch(), isolation="loop").records > 1

    def test_one_with_a_rule_of_its_own_is_refused(self) -> None:
        operator = _operator("mixing_sine", own_rule=True)
        message = r"operator plumbline_tests.*mixing_sine.*all records at once"
        with pytest.raises(UnsupportedModelError, match=message):
            captured(lambda model, x, y: operator(y))
        with pytest.raises(UnsupportedModelError, match=message):
            captured(lambda model, x, y: torch.ops.plumbline_tests.mixing_sine(y))


KEEPING: dict[str, Step] = {
    "the input, as an attribute": lambda model, x, y: setattr(model, "kept", x),
    "an output, as an attribute": lambda model, x, y: setattr(model, "kept", y),
    "a detached output": lambda model, x, y: setattr(model, "kept", y.detach()),
    "a buffer that is replaced": lambda model, x, y: setattr(model, "row", model.row + y),
    "in a list": lambda model, x, y: KEPT.append(x),
    "one of several results": lambda model, x, y: KEPT.append(y.max(1).values),
    "a part": lambda model, x, y: KEPT.extend(y.chunk(2, 1)),
    "a row": lambda model, x, y: KEPT.append(next(iter(x))),
    "a property": lambda model, x, y: KEPT.append(y.mT),
    "in a global": lambda model, x, y: CACHE.update(last=y),
    "as a gradient": lambda model, x, y: setattr(model.row, "grad", y.detach()),
    "in a closure": lambda model, x, y: setattr(model, "step", lambda *_: y),
}
LATER = 3
"""How many are also tried at a later capture; the slow tests try all."""


@pytest.mark.parametrize(
    ("step", "again"),
    [
        pytest.param(
            step,
            again,
            id=f"{'later' if again else 'first'} capture-{what}",
            marks=[pytest.mark.slow] if again and place >= LATER else [],
        )
        for again in (False, True)
        for place, (what, step) in enumerate(KEEPING.items())
    ],
)
def test_a_tensor_that_is_kept_is_refused(step: Step, again: bool) -> None:
    model = Model(lambda model, x, y: None)
    if again:
        capture(model, output_losses, batch())
    model.step = step
    with pytest.raises(RecordsMixError, match=r"keeps a tensor of a record after it has run"):
        capture(model, output_losses, batch())
    model.row.grad = None


def test_the_holder_is_named() -> None:
    with pytest.raises(RecordsMixError, match=r"as 'kept' of Model"):
        captured(KEEPING["the input, as an attribute"])


def test_a_reference_cycle_is_not_kept() -> None:
    def step(model: Model, x: Tensor, y: Tensor) -> None:
        cycle: list[Any] = [y]
        cycle.append(cycle)

    captured(step)


WRITING: dict[str, Step] = {
    "add_": lambda model, x, y: model.buffer.add_(y[0].detach()),
    "copy_": lambda model, x, y: model.buffer.copy_(y[0].detach()),
    "one number": lambda model, x, y: model.buffer.__setitem__(0, y[0, 0].detach()),
    "index_put_": lambda model, x, y: model.buffer.index_put_((torch.tensor([0]),), y[0, :1]),
    "scatter_": lambda model, x, y: model.buffer.scatter_(0, torch.tensor([0]), y[0, :1].detach()),
    "set_": lambda model, x, y: model.buffer.set_(y[0].detach()),
    "out=": lambda model, x, y: torch.add(y.detach(), 1, out=model.row),
    "a running mean": lambda model, x, y: model.buffer.mul_(0.9).add_(0.1 * y.mean().detach()),
    "a parameter": lambda model, x, y: model.linear.bias.data.add_(y[0].detach()),
    "data": lambda model, x, y: setattr(model.buffer, "data", y[0].detach()),
}


@pytest.mark.parametrize("records", [1, 3, 5])
@pytest.mark.parametrize("step", WRITING.values(), ids=WRITING.keys())
def test_writing_into_what_all_records_share_is_refused(step: Step, records: int) -> None:
    model = Model(step)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UnsupportedModelError, match=r"line test_one_record\.py.*loop"):
        capture(model, output_losses, batch(records))
    for name, value in model.state_dict().items():
        if name != "buffer" or "mul_" not in str(step):
            assert torch.equal(value, before[name]), name


def test_a_tensor_of_the_records_own_may_be_written() -> None:
    def step(model: Model, x: Tensor, y: Tensor) -> Tensor:
        own = torch.zeros_like(y)
        own += y
        own[:, 0] = 2 * y[:, 1]
        return own.mul_(y)

    assert_matches_loop(Model(step), batch())


class TestHooks:
    @pytest.mark.parametrize(
        "step",
        [
            lambda model, x, y: y.register_hook(lambda g: g.mean(0, keepdim=True)) and None,
            lambda model, x, y: y.retain_grad(),
            lambda model, x, y: model.linear.weight.register_hook(KEPT.append) and None,
        ],
        ids=["hook", "retain_grad", "of a parameter"],
    )
    def test_on_tensors_are_refused(self, step: Step) -> None:
        with pytest.raises(UnsupportedModelError, match=r"hook on a tensor.*isolation=\"loop\""):
            captured(step)

    def test_on_saved_tensors_are_refused(self) -> None:
        def step(model: Model, x: Tensor, y: Tensor) -> Tensor:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
                return y.square()

        with pytest.raises(UnsupportedModelError, match=r"hooks on saved tensors.*loop"):
            captured(step)

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_checkpointing_is_refused(self, reentrant: bool) -> None:
        def step(model: Model, x: Tensor, y: Tensor) -> Tensor:
            return checkpoint(torch.tanh, y, use_reentrant=reentrant)

        with pytest.raises(UnsupportedModelError, match=r"checkpointing.*max_physical_batch.*loop"):
            captured(step)

    def test_around_modules_run_for_one_record(self) -> None:
        model = Model(lambda model, x, y: None)
        model.linear.register_forward_hook(lambda module, given, output: 2 * output)
        assert_matches_loop(model, batch())


class TestTorchFunc:
    GRADIENT: Step = staticmethod(  # type: ignore[assignment]
        lambda model, x, y: y + torch.func.grad(lambda z: model.linear(z).square().sum())(x)[:, :3]
    )

    def test_on_parameters_is_refused(self) -> None:
        with pytest.raises(UnsupportedModelError, match=r"torch\.func.*isolation=\"loop\""):
            captured(self.GRADIENT)
        with pytest.raises(UnsupportedModelError, match=r"torch\.func.*isolation=\"loop\""):
            captured(lambda model, x, y: torch.vmap(model.linear)(x))

    def test_on_parameters_works_one_record_at_a_time(self) -> None:
        model, x = Model(self.GRADIENT).double(), batch().double()
        found = capture(model, output_losses, x, isolation="loop").materialise()
        for name, rows in loop(model, x).items():
            torch.testing.assert_close(found[name], rows, rtol=1e-12, atol=1e-14)

    def test_on_the_record_alone_works(self) -> None:
        def step(model: Model, x: Tensor, y: Tensor) -> Tensor:
            slopes = torch.func.grad(lambda z: z.sin().sum())(x)
            return y * slopes[:, :3] + torch.vmap(torch.cos)(x)[:, :3]

        assert_matches_loop(Model(step), batch())

    @pytest.mark.parametrize(
        "unwrapped",
        [
            lambda x: torch.func.debug_unwrap(x),
            lambda x: torch._C._functorch.get_unwrapped(x),  # type: ignore[attr-defined]
            torch.func.debug_unwrap,
        ],
        ids=["by name", "torch's own", "imported before"],
    )
    def test_unwrapping_is_refused(self, unwrapped: Callable[[Tensor], Tensor]) -> None:
        with pytest.raises(UnsupportedModelError, match="unwraps a record's tensor"):
            captured(lambda model, x, y: y + unwrapped(x).mean())
        seen: list[torch.Size] = []
        torch.vmap(lambda x: (seen.append(torch.func.debug_unwrap(x).shape), x)[1])(batch())
        assert seen == [batch().shape], "afterwards it works as ever"

    def test_autograd_within_the_model_is_refused(self) -> None:
        with pytest.raises(UnsupportedModelError, match=r"differentiates within the model.*loop"):
            captured(lambda model, x, y: torch.autograd.grad(y.sum(), x)[0])


class Positional(nn.Module):
    """An encoding for ``[T, B, D]``: given ``[B, T, D]``, it would tell the rows of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("encoding", torch.randn(64, 1, 4, generator=seeded(2)))
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.tanh(x + self.encoding[: len(x)])).mean(1)


class UnmaskedMean(nn.Module):
    """The mean over all positions, padding included."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.linear(torch.tanh(self.table(tokens).mean(1)))


class Centred(nn.Module):
    """Subtracts the mean of its batch, in the forward and only in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y.square() - (y - y.detach()).mean(0) + 0.5 * y.cumsum(0)


def _contrastive(model: nn.Module, x: Tensor) -> Tensor:
    z = F.normalize(model(x), dim=1)
    return (z @ z.T).logsumexp(1) + record_losses(z)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], Any]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)),
        lambda: batch(8),
        output_losses,
    ),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 2)
        ),
        lambda: batch(8, 2, 4, 4),
        output_losses,
    ),
    "attention": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        lambda: batch(8, 3, 4),
        output_losses,
    ),
    "gru": (lambda: nn.GRU(4, 3, batch_first=True), lambda: batch(8, 3, 4), output_losses),
    "a row's own place": (Positional, lambda: batch(8, 3, 4), output_losses),
    "a mean over padding": (
        UnmaskedMean,
        lambda: torch.randint(0, 9, (8, 5), generator=seeded(3)),
        output_losses,
    ),
    "centring by the batch": (Centred, lambda: batch(8), output_losses),
    "a contrastive loss": (lambda: nn.Linear(4, 3), lambda: batch(8), _contrastive),
}


class TestCompany:
    """Neither the row nor the company of a record changes its gradient."""

    @pytest.fixture(params=CASES)
    def case(self, request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor, Any]:
        make, given, losses = CASES[request.param]
        return make(), given(), losses

    def test_other_records_of_the_same_number_leave_it_bit_identical(
        self, case: tuple[nn.Module, Tensor, Any]
    ) -> None:
        model, x, losses = case
        capture(model, losses, x)  # the first one is compared with autograd, by other kernels
        before = capture(model, losses, x).materialise()
        other = x.clone()
        other[3] = 1e3 * x[3] if x.is_floating_point() else (x[3] + 1) % 9
        after = capture(model, losses, other).materialise()
        same = torch.arange(8) != 3
        for name, rows in before.items():
            assert torch.equal(rows[same], after[name][same]), name

    def test_another_order_leaves_it_within_rounding(
        self, case: tuple[nn.Module, Tensor, Any]
    ) -> None:
        # Not bit for bit: a product over the batch may block its rows in another way.
        model, x, losses = case
        order = torch.tensor([5, 2, 7, 0, 3, 1, 6, 4])
        before = capture(model, losses, x).materialise()
        after = capture(model, losses, x[order]).materialise()
        for name, rows in before.items():
            torch.testing.assert_close(after[name], rows[order], rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("kept", [1, 2, 5])
    def test_fewer_records_leave_it_within_rounding(
        self, case: tuple[nn.Module, Tensor, Any], kept: int
    ) -> None:
        model, x, losses = case
        before = capture(model, losses, x).materialise()
        after = capture(model, losses, x[:kept]).materialise()
        for name, rows in before.items():
            torch.testing.assert_close(after[name], rows[:kept], rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("name", ["a row's own place", "centring by the batch"])
    def test_the_same_record_in_every_row_has_one_gradient(self, name: str) -> None:
        make, given, losses = CASES[name]
        x = given()
        found = capture(make(), losses, x[:1].expand(8, *x.shape[1:])).materialise()
        for rows in found.values():
            assert torch.equal(rows, rows[:1].expand_as(rows))
