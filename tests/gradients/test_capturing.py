import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.nn.utils.parametrize as parametrize
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from plumbline.gradients import (
    CaptureError,
    EscapedParameterError,
    Perturbation,
    UnsupportedModelError,
    capture,
)
from tests.gradients.harness import (
    assert_matches_loop,
    loop,
    output_losses,
    record_losses,
    record_norms,
)


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def _state(model: nn.Module) -> dict[str, Any]:
    """Everything that a capture must leave as it was."""
    return {
        "parameters": {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)},
        "kinds": {name: type(p) for name, p in model.named_parameters()},
        "values": {name: p.detach().clone() for name, p in model.named_parameters()},
        "buffers": {name: b.clone() for name, b in model.named_buffers()},
        "gradients": {name: p.grad for name, p in model.named_parameters()},
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "training": [module.training for module in model.modules()],
        "hooks": [
            (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks))
            for m in model.modules()
        ],
        "parameter hooks": [bool(p._backward_hooks) for p in model.parameters()],
        "keys": list(model.state_dict()),
        "attributes": [sorted(module.__dict__) for module in model.modules()],
        "random numbers": None,
    }


def _assert_same(model: nn.Module, before: dict[str, Any]) -> None:
    after = _state(model)
    for what in ("values", "buffers"):
        for name, value in before.pop(what).items():
            assert torch.equal(after[what][name], value), f"{what} of {name}"
        del after[what]
    for name, gradient in before.pop("gradients").items():
        assert after["gradients"][name] is gradient, name
    del after["gradients"]
    assert after == before


def _worn(kind: str) -> tuple[nn.Module, Tensor]:
    """A model with some history: gradients, hooks, frozen parts, modules in evaluation mode."""
    models: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
        "mlp": lambda: (_mlp(), torch.randn(5, 4).double()),
        "convolutions": lambda: (
            nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 2)),
            torch.randn(5, 2, 6, 6),
        ),
        "parametrised": lambda: (
            nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.Linear(3, 2)),
            torch.randn(5, 4),
        ),
        "tied": lambda: (_tied(), torch.randint(0, 6, (5, 3))),
    }
    model, inputs = models[kind]()
    first, *_, last = model.parameters()
    first.grad = torch.ones_like(first)
    last.requires_grad_(False)
    next(model.children()).eval()
    model.register_forward_hook(lambda *_: None)
    return model, inputs


def _tied() -> nn.Module:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.end, self.other = (
                nn.Embedding(6, 4),
                nn.Linear(4, 6, bias=False),
                nn.Linear(4, 4),
            )
            self.end.weight = self.table.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.end(torch.tanh(self.other(self.table(tokens))))

    return Tied()


KINDS = ["mlp", "convolutions", "parametrised", "tied"]


class TestTheModelIsLeftAsItWas:
    @pytest.mark.parametrize("kind", KINDS)
    def test_after_a_capture(self, kind: str) -> None:
        model, inputs = _worn(kind)
        before = _state(model)
        found = capture(model, output_losses, inputs)
        found.sum(1 / found.norms())
        capture(model, output_losses, inputs, at=Perturbation(found, 0.1))
        capture(model, output_losses, inputs, at=found.sum())
        _assert_same(model, before)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("again", [False, True], ids=["first capture", "later capture"])
    def test_after_an_exception_in_losses(self, kind: str, again: bool) -> None:
        model, inputs = _worn(kind)
        if again:
            capture(model, output_losses, inputs)
        before = _state(model)

        def losses(net: nn.Module, x: Tensor) -> Tensor:
            net(x)
            raise ZeroDivisionError("in the middle")

        for isolation in ("vmap", "loop"):
            with pytest.raises(ZeroDivisionError, match="in the middle"):
                capture(model, losses, inputs, isolation=isolation)  # type: ignore[arg-type]
        _assert_same(model, before)
        assert_matches_loop(model, inputs, dtype=torch.float32)

    def test_after_an_exception_in_the_backward_pass(self) -> None:
        class Fails(torch.autograd.Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(x: Tensor) -> Tensor:
                return x.clone()

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
                pass

            @staticmethod
            def backward(ctx: Any, *gradients: Tensor) -> Tensor:
                raise ArithmeticError("no way back")

        model, inputs = _worn("mlp")
        before = _state(model)
        with pytest.raises(ArithmeticError, match="no way back"):
            capture(model, lambda net, x: record_losses(Fails.apply(net(x))), inputs)
        _assert_same(model, before)

    def test_the_model_trains_as_usual_afterwards(self) -> None:
        model, inputs = _mlp(), torch.randn(5, 4).double()
        plain = copy.deepcopy(model)
        capture(model, output_losses, inputs)
        for net in (model, plain):
            record_losses(net(inputs)).sum().backward()
        for own, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(own.grad, other.grad)  # type: ignore[arg-type]

    def test_no_graph_outlives_the_result(self) -> None:
        model, inputs = _mlp(), torch.randn(5, 4).double()
        outputs: list[weakref.ref[Tensor]] = []

        def losses(net: nn.Module, x: Tensor) -> Tensor:
            output = net(x)
            outputs.append(weakref.ref(output))
            return record_losses(output)

        for _ in range(2):
            found = capture(model, losses, inputs)
        del found
        gc.collect()
        assert all(output() is None for output in outputs)

    def test_the_results_need_no_gradient(self) -> None:
        model, inputs = _mlp(), torch.randn(5, 4).double()
        for _ in range(2):
            found = capture(model, output_losses, inputs)
            results = [*found.sum().values(), *found.materialise().values(), found.norms()]
            assert not any(result.requires_grad for result in [*results, found.losses])


class Counting(torch.autograd.Function):
    """The identity, which counts how often it is run forwards and backwards."""

    forwards = 0
    backwards = 0
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        Counting.forwards += 1
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        Counting.backwards += 1
        return gradients[0]


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(Counting.apply(self.first(x)))


class TestPasses:
    def test_one_forward_and_one_backward_after_the_first_capture(self) -> None:
        model = Counted()

        def counts(**named: Any) -> tuple[int, int]:
            Counting.forwards = Counting.backwards = 0
            inputs = torch.randn(5, 3, 4)
            found = capture(model, output_losses, inputs, **named)
            found.norms(), found.sum(torch.rand(5)), found.materialise()
            self.found = found
            return Counting.forwards, Counting.backwards

        assert counts() == (1, 2)  # the second backward is the check against autograd
        assert counts() == (1, 1)
        assert counts(at=Perturbation(self.found, 0.1)) == (1, 1)
        assert counts(at=self.found.sum()) == (1, 1)

    def test_a_parameter_that_is_unfrozen_is_checked_again(self) -> None:
        model = Counted()
        model.first.weight.requires_grad_(False)
        inputs = torch.randn(5, 4)
        passes = []
        for _ in range(4):
            Counting.backwards = 0
            capture(model, output_losses, inputs)
            passes.append(Counting.backwards)
            model.first.weight.requires_grad_(True)
        assert passes == [2, 2, 1, 1]


class TestBatches:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_batch_of_one(self, kind: str) -> None:
        model, inputs = _worn(kind)
        assert_matches_loop(model, inputs[:1])

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("again", [False, True], ids=["first capture", "later capture"])
    def test_an_empty_batch(self, kind: str, again: bool) -> None:
        model, inputs = _worn(kind)
        if again:
            capture(model, output_losses, inputs)
        found = capture(model, output_losses, inputs[:0])
        assert found.records == 0
        assert found.norms().shape == (0,)
        assert found.losses.shape == (0,)
        for name, value in found.sum().items():
            assert value.shape == model.get_parameter(name).shape
            assert not value.any()
        assert not found.dot(found.sum()).numel()
        for name, value in found.materialise().items():
            assert value.shape == (0, *model.get_parameter(name).shape)
        pooled = found.pool(torch.zeros(0, dtype=torch.long), groups=2)
        assert pooled.norms().tolist() == [0, 0]
        again_empty = capture(model, output_losses, inputs[:0], at=Perturbation(found, 0.1))
        assert again_empty.records == 0
        assert_matches_loop(model, inputs)

    def test_batches_of_changing_size(self) -> None:
        model = _mlp()
        for records in (3, 5, 1, 4):
            assert_matches_loop(model, torch.randn(records, 4))

    @pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
    @pytest.mark.parametrize("records", [2, 9, 20, 38])
    def test_records_that_are_all_alike(self, records: int, autocast: bool) -> None:
        # The check's weights are of both signs, with which equal gradients nearly cancel.
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        inputs = torch.randn(1, 8).expand(records, 8).clone()
        assert_matches_loop(model, inputs, dtype=torch.float32, autocast=autocast)

    def test_the_losses_are_kept(self) -> None:
        model, inputs = _mlp(), torch.randn(5, 4).double()
        found = capture(model, output_losses, inputs)
        torch.testing.assert_close(found.losses, record_losses(model(inputs)).detach())


class TestParameters:
    def test_frozen_parameters_are_left_out(self) -> None:
        model = _mlp()
        model[0].requires_grad_(False)
        found = assert_matches_loop(model, torch.randn(5, 4))
        assert found.names == ["2.weight", "2.bias"]

    def test_a_frozen_end(self) -> None:
        model = _mlp()
        model[2].requires_grad_(False)
        found = assert_matches_loop(model, torch.randn(5, 4))
        assert found.names == ["0.weight", "0.bias"]

    def test_an_unused_parameter_has_zero_gradients(self) -> None:
        model = _mlp()
        model.register_module("spare", nn.Linear(3, 2))
        inputs = torch.randn(5, 4)
        assert_matches_loop(
            model, inputs, losses=lambda m, x: record_losses(m[2](torch.tanh(m[0](x))))
        )

    def test_a_parameter_used_by_some_records_only(self) -> None:
        class Routed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.left, self.right = nn.Linear(4, 2), nn.Linear(4, 2)

            def forward(self, x: Tensor) -> Tensor:
                return torch.where(x[:, :1] > 0, self.left(x), self.right(x))

        assert_matches_loop(Routed(), torch.randn(6, 4))

    def test_tied_weights_include_the_cross_term(self) -> None:
        model, tokens = _tied().double(), torch.randint(0, 6, (5, 3))
        found = assert_matches_loop(model, tokens)
        assert found.names == ["table.weight", "other.weight", "other.bias"]

        # Without the cross term the two uses' squared norms would just add up.
        untied = copy.deepcopy(model)
        untied.end.weight = nn.Parameter(model.table.weight.detach().clone())
        apart = loop(untied, tokens)
        separate = record_norms({name: apart[name] for name in ("table.weight", "end.weight")})
        together = found.square_norms()["table.weight"].sqrt()
        assert bool(((together - separate).abs() > 1e-2 * separate).any())

    @pytest.mark.parametrize("shape", [(5, 4), (5, 3, 4), (4, 4, 4)])
    def test_a_reused_layer_includes_the_cross_term(self, shape: tuple[int, ...]) -> None:
        layer = nn.Linear(4, 4)
        model = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), layer)
        assert_matches_loop(model, torch.randn(shape))

    def test_a_layer_reused_with_different_ranks(self) -> None:
        class Twice(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 4)

            def forward(self, x: Tensor) -> Tensor:
                return self.layer(torch.tanh(self.layer(x)).mean(1))

        assert_matches_loop(Twice(), torch.randn(5, 3, 4))

    def test_tied_convolution_and_linear(self) -> None:
        class Shared(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.randn(4, 4))

            def forward(self, x: Tensor) -> Tensor:
                y = torch.tanh(F.conv2d(x, self.weight[:, :, None, None]))
                return F.linear(y.mean((2, 3)), self.weight)

        assert_matches_loop(Shared(), torch.randn(5, 4, 3, 3))


class Standardise(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        rows = weight.flatten(1)
        rows = (rows - rows.mean(1, keepdim=True)) / (rows.std(1, keepdim=True) + 1e-5)
        return rows.view_as(weight)


class TestParametrisations:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
    def test_weight_standardisation(self, dtype: torch.dtype) -> None:
        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))
        parametrize.register_parametrization(model[0], "weight", Standardise())
        assert_matches_loop(model, torch.randn(5, 2, 6, 6), dtype=dtype)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
    @pytest.mark.parametrize("shape", [(5, 4), (5, 7, 4)])
    def test_weight_norm(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        norm = nn.utils.parametrizations.weight_norm
        model = nn.Sequential(norm(nn.Linear(4, 6)), nn.Tanh(), norm(nn.Linear(6, 2)))
        assert_matches_loop(model, torch.randn(shape), dtype=dtype)

    def test_orthogonal(self) -> None:
        layer = nn.utils.parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="cayley")
        assert_matches_loop(layer, torch.randn(5, 4))

    def test_two_parametrisations_in_a_row(self) -> None:
        model = nn.Linear(4, 3)
        parametrize.register_parametrization(model, "weight", Standardise())
        parametrize.register_parametrization(model, "weight", nn.Tanh())
        assert_matches_loop(model, torch.randn(5, 7, 4))

    def test_a_cached_parametrisation(self) -> None:
        model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)))
        inputs = torch.randn(5, 4)

        def losses(net: nn.Module, batch: Any) -> Tensor:
            with parametrize.cached():
                return record_losses(net(batch) + net(2 * batch))

        assert_matches_loop(model, inputs, losses=losses)

    @pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
    def test_the_old_weight_norm(self) -> None:
        layer = nn.utils.weight_norm(nn.Linear(4, 3)).double()
        inputs = torch.randn(5, 4).double()
        truth = loop(layer, inputs)
        before = layer.weight
        for _ in range(2):
            found = capture(layer, output_losses, inputs)
            for name, rows in found.materialise().items():
                torch.testing.assert_close(rows, truth[name], rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(found.norms(), record_norms(truth), rtol=1e-10, atol=0)
        assert layer.weight is before
        layer(inputs).sum().backward()


class Positions(nn.Module):
    """Batch-first and sequence-first tensors, constants and parameters all meet here."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(length, 4))
        self.places = nn.Embedding(length, 4)
        self.into, self.out = nn.Linear(4, 4), nn.Linear(4, 2)
        self.mask = nn.Parameter(torch.randn(length, length))
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.positions + self.places(torch.arange(x.shape[1]))
        y = torch.softmax(x @ x.mT + self.mask, dim=-1) @ self.into(x)
        return self.out(self.norm(y))


class TestCoincidences:
    """A batch that is by chance as long as a sequence, or as wide as a layer."""

    @pytest.mark.parametrize("records", [3, 4, 6, 12, 1])
    def test_on_the_first_capture(self, records: int) -> None:
        assert_matches_loop(Positions(6), torch.randn(records, 6, 4))

    def test_on_a_later_capture(self) -> None:
        model = Positions(6)
        for records in (5, 6, 4, 12, 1, 3):
            assert_matches_loop(model, torch.randn(records, 6, 4))

    def test_on_the_first_and_not_on_a_later_capture(self) -> None:
        model = Positions(6)
        for records in (6, 5, 12, 7):
            assert_matches_loop(model, torch.randn(records, 6, 4))

    def test_a_square_batch_of_square_images(self) -> None:
        model = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.GroupNorm(3, 3), nn.Linear(3, 3))
        assert_matches_loop(model, torch.randn(3, 3, 3, 3))

    def test_sequence_first_with_as_many_positions_as_records(self) -> None:
        model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 2))
        assert_matches_loop(model, torch.randn(5, 5, 4), batch_dim=1)


class TestSequenceFirst:
    def test_every_capture(self) -> None:
        model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 2))
        for shape in ((7, 5, 4), (7, 3, 4), (5, 5, 4), (2, 6, 4), (7, 1, 4)):
            assert_matches_loop(model, torch.randn(shape), batch_dim=1)

    def test_with_positions_and_raw_parameters(self) -> None:
        class Sequence(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.positions = nn.Parameter(torch.randn(7, 1, 4))
                self.table = nn.Embedding(9, 4)
                self.linear = nn.Linear(4, 3)

            def forward(self, tokens: Tensor) -> Tensor:
                return self.linear(torch.tanh(self.table(tokens) + self.positions)).mean(0)

        def losses(net: nn.Module, tokens: Any) -> Tensor:
            return record_losses(net(tokens))

        model = Sequence()
        for records in (5, 7, 2):
            tokens = torch.randint(0, 9, (7, records))
            assert_matches_loop(model, tokens, batch_dim=1, losses=losses)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self._middle, self.first(x), use_reentrant=self.reentrant)
        return self.third(hidden)

    def _middle(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(torch.tanh(x)))


class TestOtherMachinery:
    @pytest.mark.parametrize("reentrant", [False, True])
    def test_gradient_checkpointing_is_refused(self, reentrant: bool) -> None:
        # It runs a part of the model again in the backward pass, outside of the record's own run.
        model, inputs = Checkpointed(reentrant), torch.randn(5, 4)
        before = _state(model)
        with pytest.raises(UnsupportedModelError, match=r"checkpointing.*max_physical_batch.*loop"):
            capture(model, output_losses, inputs)
        _assert_same(model, before)

    @pytest.mark.parametrize("shape", [(5, 4), (5, 3, 4)])
    def test_gradient_checkpointing_one_record_at_a_time(self, shape: tuple[int, ...]) -> None:
        model, inputs = Checkpointed(reentrant=False).double(), torch.randn(shape).double()
        found = capture(model, output_losses, inputs, isolation="loop").materialise()
        for name, rows in loop(model, inputs).items():
            torch.testing.assert_close(found[name], rows, rtol=1e-12, atol=1e-14)

    def test_reentrant_checkpointing_one_record_at_a_time_is_refused(self) -> None:
        # It runs a backward pass of its own, which torch.autograd.grad does not allow.
        model, inputs = Checkpointed(reentrant=True), torch.randn(5, 4)
        with pytest.raises(CaptureError, match="use_reentrant=False"):
            capture(model, output_losses, inputs, isolation="loop")

    def test_a_compiled_model_is_refused_before_it_runs(self) -> None:
        model = torch.compile(_mlp(), backend="eager")
        with pytest.raises(UnsupportedModelError, match=r"torch\.compile.*_orig_mod"):
            capture(model, lambda net, x: pytest.fail("it ran"), torch.randn(5, 4))

    def test_a_model_compiled_in_place_is_refused(self) -> None:
        model = _mlp()
        model.compile(backend="eager")
        with pytest.raises(UnsupportedModelError, match=r"torch\.compile"):
            capture(model, lambda net, x: pytest.fail("it ran"), torch.randn(5, 4))

    def test_a_compiled_part_is_refused_by_name(self) -> None:
        model = _mlp()
        model[2] = torch.compile(model[2], backend="eager")
        with pytest.raises(UnsupportedModelError, match=r"'2'.*torch\.compile"):
            capture(model, lambda net, x: pytest.fail("it ran"), torch.randn(5, 4))

    @pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
    def test_torchscript_is_refused(self) -> None:
        model = torch.jit.script(_mlp())
        with pytest.raises(UnsupportedModelError, match=r"TorchScript.*original Python module"):
            capture(model, lambda net, x: pytest.fail("it ran"), torch.randn(5, 4))

    def test_in_place_activations(self) -> None:
        model = nn.Sequential(
            nn.Conv2d(2, 4, 3),
            nn.ReLU(inplace=True),
            nn.Conv2d(4, 4, 3),
            nn.GroupNorm(2, 4),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Flatten(),
            nn.Linear(16, 6),
            nn.ELU(inplace=True),
            nn.Linear(6, 2),
            nn.SiLU(inplace=True),
        )
        assert_matches_loop(model, torch.randn(5, 2, 6, 6))

    def test_an_in_place_residual(self) -> None:
        class Residual(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x: Tensor) -> Tensor:
                y = self.first(x)
                z = self.second(torch.tanh(y))
                z += y
                return z

        assert_matches_loop(Residual(), torch.randn(5, 3, 4))

    def test_an_input_changed_after_a_layer_read_it_is_refused(self) -> None:
        model, inputs = nn.Linear(4, 3), torch.randn(5, 4)

        def losses(net: nn.Module, x: Tensor) -> Tensor:
            batch = x.clone()
            output = net(batch)
            batch.mul_(2)
            return record_losses(output)

        with pytest.raises(CaptureError, match=r"\(5, 1, 4\) was changed in place"):
            capture(model, losses, inputs)

    @pytest.mark.parametrize("p", [0.5, 0.1])
    def test_dropout_draws_the_same_masks_when_the_seed_is_reset(self, p: float) -> None:
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(p), nn.Linear(8, 2)).double()
        inputs = torch.randn(5, 4).double()
        captures = []
        for at in (None, None, "own"):
            torch.manual_seed(7)
            given = Perturbation(captures[0], 0.0) if at else None
            captures.append(capture(model, output_losses, inputs, at=given))
        torch.manual_seed(8)
        other = capture(model, output_losses, inputs)
        for found in captures[1:]:
            torch.testing.assert_close(found.losses, captures[0].losses)
            for name, value in found.sum().items():
                torch.testing.assert_close(value, captures[0].sum()[name])
        assert not torch.allclose(other.losses, captures[0].losses)

    @pytest.mark.parametrize("isolation", ["vmap", "loop"])
    def test_every_capture_draws_as_much_from_torchs_generator(self, isolation: Any) -> None:
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        after = []
        for _ in range(2):
            torch.manual_seed(7)
            capture(model, output_losses, torch.ones(6, 4), isolation=isolation)
            after.append(torch.rand(3))
        assert torch.equal(*after)

    def test_another_models_parameters_get_no_gradient(self) -> None:
        generator, critic = (
            _mlp(),
            nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double(),
        )
        noise = torch.randn(5, 4).double()
        for _ in range(2):
            found = capture(generator, lambda net, x: critic(net(x)).squeeze(1), noise)
        assert all(p.grad is None for p in [*critic.parameters(), *generator.parameters()])
        assert found.names == [name for name, _ in generator.named_parameters()]
        expected = torch.autograd.grad(critic(generator(noise)).sum(), list(generator.parameters()))
        for value, truth in zip(found.sum().values(), expected, strict=True):
            torch.testing.assert_close(value, truth)

    def test_inputs_that_require_grad_get_none(self) -> None:
        model = _mlp()
        inputs = torch.randn(5, 4).double().requires_grad_()
        for _ in range(2):
            found = capture(model, output_losses, inputs)
            truth = loop(model, inputs.detach())
            torch.testing.assert_close(found.norms(), record_norms(truth), rtol=1e-10, atol=0)
        assert inputs.grad is None

    def test_inside_no_grad(self) -> None:
        model, inputs = _mlp(), torch.randn(5, 4).double()
        with torch.no_grad():
            found = capture(model, output_losses, inputs)
            assert not torch.is_grad_enabled()
        torch.testing.assert_close(found.norms(), record_norms(loop(model, inputs)))

    def test_a_detached_path_counts_for_nothing(self) -> None:
        class Detached(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

            def forward(self, x: Tensor) -> Tensor:
                y = torch.tanh(self.first(x))
                return self.second(y) + self.second(y.detach()) * y.detach()[:, :2]

        assert_matches_loop(Detached(), torch.randn(5, 4))

    def test_a_part_under_no_grad(self) -> None:
        class Partly(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

            def forward(self, x: Tensor) -> Tensor:
                with torch.no_grad():
                    y = torch.tanh(self.first(x))
                return self.second(y) * self.first(x)[:, :2]

        assert_matches_loop(Partly(), torch.randn(5, 4))


class Scaled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, scale: Tensor) -> Tensor:
        return x * scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        return gradients[0] * scale, (gradients[0] * x).sum(0)


class TestEscapes:
    @pytest.mark.parametrize("frozen", [False, True])
    def test_a_custom_autograd_function_on_a_parameter_is_seen(self, frozen: bool) -> None:
        class Custom(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(4, 3)
                self.scale = nn.Parameter(torch.ones(3))

            def forward(self, x: Tensor) -> Tensor:
                return Scaled.apply(self.linear(x), self.scale)

        model = Custom()
        model.scale.requires_grad_(not frozen)
        assert_matches_loop(model, torch.randn(5, 4))

    def test_a_reference_to_a_parameter_kept_outside(self) -> None:
        model, inputs = _mlp(), torch.randn(5, 4).double()
        kept = model[2].weight
        with pytest.raises(EscapedParameterError, match=r"'2\.weight'.*kept outside"):
            capture(model, lambda net, x: record_losses(net(x) + F.linear(net[0](x), kept)), inputs)


def _attention() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(48, 2))


def _centred() -> nn.Module:
    layer = nn.Linear(8, 16, bias=False)
    parametrize.register_parametrization(layer, "weight", Centre())
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(16, 2))


class Centre(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight - weight.mean(1, keepdim=True)


EXTREME: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Callable[[Tensor], Any]]] = {
    "attention 1e3": (_attention, (6, 8), lambda row: row.mul_(1e3)),
    "attention 1e6": (_attention, (6, 8), lambda row: row.mul_(1e6)),
    "attention constant": (_attention, (6, 8), lambda row: row.fill_(1e6)),
    "hidden by a parametrisation": (_centred, (8,), lambda row: row.fill_(1e6)),
    "a square that overflows": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)),
        (8,),
        lambda row: row.mul_(3e38).clamp_(-3e38, 3e38),
    ),
    "one infinite number": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)),
        (8,),
        lambda row: row[:1].fill_(float("inf")),
    ),
}  # fmt: skip


class TestExtremeRecords:
    """A record whose gradient is nothing but rounding: the check must neither stop nor miss it."""

    @staticmethod
    def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    @pytest.fixture(params=EXTREME)
    def case(self, request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor, Tensor]:
        make, shape, change = EXTREME[request.param]
        torch.manual_seed(0)
        model, x = make(), torch.randn(101, *shape)
        change(x[100])
        return model, x, torch.arange(101) % 2

    def test_does_not_stop_a_capture(self, case: tuple[nn.Module, Tensor, Tensor]) -> None:
        model, x, labels = case
        found = capture(model, self.losses, (x, labels))
        others = found.select(torch.arange(100)).materialise()
        alone = capture(model, self.losses, (x[:100], labels[:100])).materialise()
        for name, rows in alone.items():
            torch.testing.assert_close(others[name], rows, rtol=1e-3, atol=1e-5)

    def test_does_not_stop_a_capture_of_itself(
        self, case: tuple[nn.Module, Tensor, Tensor]
    ) -> None:
        model, x, labels = case
        capture(model, self.losses, (x[100:], labels[100:]))

    def test_does_not_hide_an_escape(self, case: tuple[nn.Module, Tensor, Tensor]) -> None:
        model, x, labels = case
        kept = model[2].weight
        with pytest.raises(EscapedParameterError, match=r"'2\.weight'.*kept outside"):
            capture(model, lambda net, batch: self.losses(net, batch) + kept.sum(), (x, labels))

    def test_leaves_the_check_to_a_later_batch_when_it_is_alone(self) -> None:
        model, x = _attention(), 1e6 * torch.randn(1, 6, 8)
        capture(model, output_losses, x)

        kept = model[2].weight

        def escaped(net: nn.Module, x: Tensor) -> Tensor:
            return record_losses(net(x)) + kept.sum()

        with pytest.raises(EscapedParameterError):
            capture(model, escaped, torch.randn(5, 6, 8))

    def test_among_records_as_many_as_positions(self) -> None:
        class SequenceFirst(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.norm, self.last = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)

            def forward(self, x: Tensor) -> Tensor:
                return self.last(self.norm(self.first(x.transpose(0, 1)))).mean(0)

        model, x = SequenceFirst(), torch.randn(6, 6, 4)
        x[5] *= 1e6
        found = capture(model, output_losses, x).select(torch.arange(5))
        truth = loop(model, x[:5])
        for name, rows in found.materialise().items():
            torch.testing.assert_close(rows, truth[name], rtol=1e-3, atol=1e-5)


class TestAt:
    def test_one_offset_for_all_records(self) -> None:
        model, inputs = _mlp(), torch.randn(5, 4).double()
        offset = {name: 0.1 * torch.randn_like(p) for name, p in model.named_parameters()}
        del offset["0.bias"]
        moved = copy.deepcopy(model)
        with torch.no_grad():
            for name, value in offset.items():
                moved.get_parameter(name).add_(value)
        truth = loop(moved, inputs)
        for _ in range(2):
            found = capture(model, output_losses, inputs, at=offset).materialise()
            for name, rows in truth.items():
                torch.testing.assert_close(found[name], rows, rtol=1e-10, atol=1e-12)

    def test_an_offset_of_an_unknown_parameter_is_refused(self) -> None:
        model, inputs = _mlp(), torch.randn(5, 4).double()
        with pytest.raises(CaptureError, match=r"'nothing'.*not a trainable parameter"):
            capture(model, output_losses, inputs, at={"nothing": torch.zeros(2)})

    def test_an_offset_of_the_wrong_shape_is_refused(self) -> None:
        model, inputs = _mlp(), torch.randn(5, 4).double()
        with pytest.raises(CaptureError, match=r"'0\.bias'.*\(1,\).*\(6,\)"):
            capture(model, output_losses, inputs, at={"0.bias": torch.zeros(1)})

    def test_one_scale_for_all_records(self) -> None:
        model, inputs = _mlp(), torch.randn(5, 4).double()
        first = capture(model, output_losses, inputs)
        single, each = (
            capture(model, output_losses, inputs, at=Perturbation(first, scale))
            for scale in (0.1, torch.full((5,), 0.1, dtype=torch.float64))
        )
        for name, rows in single.materialise().items():
            torch.testing.assert_close(rows, each.materialise()[name])

    @pytest.mark.parametrize(
        "build",
        [
            lambda: (_mlp(), torch.randn(3, 4)),
            lambda: (nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), torch.randn(3, 6, 4)),
            lambda: (
                nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3)),
                torch.randn(3, 2, 5, 5),
            ),
            lambda: (_tied(), torch.randint(0, 6, (3, 4))),
        ],
        ids=["mlp", "sequence", "convolution", "tied"],
    )
    def test_views_use_their_records_gradient(
        self, build: Callable[[], tuple[nn.Module, Tensor]]
    ) -> None:
        model, inputs = build()
        model = model.double()
        inputs = inputs.double() if inputs.is_floating_point() else inputs
        index = torch.tensor([0, 0, 2, 1, 2, 2])
        views = inputs[index]
        if views.is_floating_point():
            views = views + 0.1 * torch.randn_like(views)
        first = capture(model, output_losses, inputs)
        scale = 0.1 / first.norms()

        found = capture(
            model, output_losses, views, at=Perturbation(first, scale, index)
        ).materialise()

        offsets = {name: rows[index] for name, rows in loop(model, inputs).items()}
        truth = loop(model, views, offsets=offsets, scale=scale[index])
        for name, rows in truth.items():
            torch.testing.assert_close(found[name], rows, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("again", [False, True], ids=["first capture", "later capture"])
    def test_a_perturbation_may_be_the_first_capture_in_its_mode(self, again: bool) -> None:
        model, inputs = _mlp(), torch.randn(5, 4).double()
        first = capture(model.eval(), output_losses, inputs)
        model.train()
        for _ in range(2 if again else 1):
            found = capture(model, output_losses, inputs, at=Perturbation(first, 0.1)).materialise()
        scale = torch.full((5,), 0.1, dtype=torch.float64)
        truth = loop(model, inputs, offsets=first.materialise(), scale=scale)
        for name, rows in truth.items():
            torch.testing.assert_close(found[name], rows, rtol=1e-10, atol=1e-12)

    def test_a_perturbation_by_a_combination(self) -> None:
        model, inputs = _mlp(), torch.randn(5, 4).double()
        first = capture(model, output_losses, inputs)
        second = capture(model, output_losses, 2 * inputs)
        both = type(first).combine([first, second], [0.9, -torch.rand(5).double()])
        found = capture(model, output_losses, inputs, at=Perturbation(both, 0.1)).materialise()
        truth = loop(
            model,
            inputs,
            offsets=both.materialise(),
            scale=torch.full((5,), 0.1, dtype=torch.float64),
        )
        for name, rows in truth.items():
            torch.testing.assert_close(found[name], rows, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["plain", "parametrised", "raw", "attention"])
def test_gradients_die_with_their_last_reference(kind: str) -> None:
    """A cycle would keep every step's memory until the garbage collector happens to run."""

    class Raw(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x * self.scale)

    models = {
        "plain": lambda: nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)),
        "parametrised": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
        "raw": Raw,
        "attention": lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
    }
    model = models[kind]()
    x = torch.randn(5, 2, 4 if kind == "attention" else 3)

    def losses(net: nn.Module, x: Tensor) -> Tensor:
        return net(x).square().sum((1, 2))

    capture(model, losses, x)
    gc.collect()
    gc.disable()
    try:
        first = capture(model, losses, x)
        second = capture(model, losses, x, at=Perturbation(first, 0.01))
        norms = second.norms()
        gone = [
            weakref.ref(gradients.term(name))
            for gradients in (first, second)
            for name in first.names
        ]
        del first, second
        assert norms.shape == (5,)
        assert all(reference() is None for reference in gone)
    finally:
        gc.enable()
