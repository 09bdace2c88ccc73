from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from plumbline.gradients import capture
from plumbline.gradients.outer import Outer
from tests.gradients.harness import (
    PRECISIONS,
    Precision,
    assert_matches_loop,
    output_losses,
    record_losses,
)
from tests.gradients.hessian_harness import assert_hessian_products_match_loop

WEIGHTS = pytest.mark.parametrize("weights", [True, False], ids=["weights", "no weights"])
SHAPES = pytest.mark.parametrize("shape", [(3, 5, 8), (4, 4, 8), (1, 3, 8), (3, 1, 8)], ids=str)


class SelfAttention(nn.Module):
    def __init__(self, *, weights: bool = False, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)
        self.weights = weights
        for parameter in self.parameters():
            # Not larger: at 0.4 bfloat16 itself moves some gradients by 2e-2, the loop's too.
            nn.init.normal_(parameter, std=0.2)

    def forward(self, x: Tensor) -> Tensor:
        output, weights = self.attention(x, x, x, need_weights=self.weights)
        if weights is None:
            return output
        return torch.cat([output.flatten(1), weights.flatten(1)], 1)


class CrossAttention(nn.Module):
    def __init__(
        self, width: int = 8, heads: int = 2, *, weights: bool = False, **options: Any
    ) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True, **options)
        self.weights = weights

    def forward(self, query: Tensor, key: Tensor, value: Tensor | None = None) -> Tensor:
        value = key if value is None else value
        return self.attention(query, key, value, need_weights=self.weights)[0]


@PRECISIONS
@WEIGHTS
@SHAPES
def test_self_attention(shape: tuple[int, ...], weights: bool, precision: Precision) -> None:
    assert_matches_loop(SelfAttention(weights=weights), torch.randn(shape), **precision)


def test_one_product_projects_queries_keys_and_values() -> None:
    model, x = SelfAttention(), torch.randn(3, 5, 8)
    found = capture(model, output_losses, x)
    assert isinstance(found.term("attention.in_proj_weight"), Outer)


@PRECISIONS
@WEIGHTS
@pytest.mark.parametrize(
    "options",
    [
        {"bias": False},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"add_bias_kv": True, "add_zero_attn": True, "bias": False},
    ],
    ids=lambda options: ", ".join(options),
)
def test_options(options: dict[str, bool], weights: bool, precision: Precision) -> None:
    model = SelfAttention(weights=weights, **options)
    assert_matches_loop(model, torch.randn(3, 4, 8), **precision)


@PRECISIONS
@WEIGHTS
@pytest.mark.parametrize("length", [5, 3], ids=["T != B", "T == B"])
def test_sequence_first(length: int, weights: bool, precision: Precision) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, add_bias_kv=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=weights)[0]

    assert_matches_loop(Model(), torch.randn(length, 3, 8), batch_dim=1, **precision)


@given(
    records=st.integers(1, 4),
    lengths=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    heads=st.integers(1, 3),
    each=st.integers(1, 3),
    own=st.booleans(),
    options=st.fixed_dictionaries(
        {name: st.booleans() for name in ("bias", "add_bias_kv", "add_zero_attn")}
    ),
    weights=st.booleans(),
)
def test_any_shape(
    records: int,
    lengths: tuple[int, int],
    heads: int,
    each: int,
    own: bool,
    options: dict[str, bool],
    weights: bool,
) -> None:
    torch.manual_seed(0)
    width = heads * each
    sizes = {"kdim": width + 1, "vdim": width + 2} if own else {}
    model = CrossAttention(width, heads, weights=weights, **sizes, **options)
    queries, keys = lengths
    inputs = [
        torch.randn(records, length, size)
        for length, size in [
            (queries, width),
            (keys, sizes.get("kdim", width)),
            (keys, sizes.get("vdim", width)),
        ]
    ]
    assert_matches_loop(model, tuple(inputs))


@PRECISIONS
@WEIGHTS
@pytest.mark.parametrize("length", [4, 3], ids=["S != B", "S == B"])
@pytest.mark.parametrize("several", [False, True], ids=["key is value", "all differ"])
def test_cross_attention(several: bool, length: int, weights: bool, precision: Precision) -> None:
    inputs = [torch.randn(3, 5, 8), torch.randn(3, length, 8), torch.randn(3, length, 8)]
    model = CrossAttention(weights=weights)
    assert_matches_loop(model, tuple(inputs if several else inputs[:2]), **precision)


@PRECISIONS
@WEIGHTS
@pytest.mark.parametrize("bias", [True, False])
def test_keys_and_values_of_other_widths(bias: bool, weights: bool, precision: Precision) -> None:
    model = CrossAttention(weights=weights, kdim=6, vdim=7, bias=bias)
    inputs = torch.randn(3, 5, 8), torch.randn(3, 4, 6), torch.randn(3, 4, 7)
    assert_matches_loop(model, inputs, **precision)


@pytest.mark.covering
@PRECISIONS
@WEIGHTS
@pytest.mark.parametrize("extra", [False, True], ids=["plain", "keys added"])
@pytest.mark.parametrize("kind", ["padding", "causal", "each head", "both"])
@pytest.mark.parametrize("boolean", [True, False], ids=["boolean", "added"])
def test_masks(boolean: bool, kind: str, extra: bool, weights: bool, precision: Precision) -> None:
    batch, length, heads = 4, 5, 2
    padding = torch.arange(length) >= torch.tensor([5, 3, 4, 1])[:, None]
    causal = torch.ones(length, length).triu(1).bool()
    each = (torch.rand(batch, heads, length, length) < 0.3) & ~torch.eye(length).bool()

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(
                8, heads, batch_first=True, add_bias_kv=extra, add_zero_attn=extra
            )
            self.register_buffer("causal", self.made(causal))

        def made(self, mask: Tensor) -> Tensor:
            return mask if boolean else torch.zeros(mask.shape).masked_fill(mask, -torch.inf)

        def forward(self, x: Tensor, padding: Tensor, each: Tensor) -> Tensor:
            masks: dict[str, Tensor] = {}
            if kind in ("padding", "both"):
                masks["key_padding_mask"] = self.made(padding).to(self.causal.dtype)
            if kind in ("causal", "both"):
                masks["attn_mask"] = self.causal
            if kind == "each head":
                masks["attn_mask"] = self.made(each).flatten(0, 1).to(self.causal.dtype)
            return self.attention(x, x, x, need_weights=weights, **masks)[0]

    inputs = torch.randn(batch, length, 8), padding, each
    assert_matches_loop(Masked(), inputs, **precision)


@PRECISIONS
@WEIGHTS
@pytest.mark.parametrize("padded", [False, True])
def test_the_causal_hint(padded: bool, weights: bool, precision: Precision) -> None:
    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
            self.register_buffer("mask", mask)

        def forward(self, x: Tensor, padding: Tensor) -> Tensor:
            return self.attention(
                x, x, x, attn_mask=self.mask, is_causal=True, need_weights=weights,
                key_padding_mask=padding if padded else None,
            )[0]  # fmt: skip

    padding = torch.zeros(3, 5, dtype=torch.float64)
    padding[1, 3:] = -torch.inf
    assert_matches_loop(Causal(), (torch.randn(3, 5, 8), padding), **precision)


@PRECISIONS
def test_a_learned_mask(precision: Precision) -> None:
    class Relative(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.bias = nn.Parameter(torch.randn(5, 5))

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, attn_mask=self.bias, need_weights=True)[0]

    assert_matches_loop(Relative(), torch.randn(3, 5, 8), **precision)


@pytest.mark.parametrize(
    "frozen",
    [
        ["in_proj_weight"],
        ["in_proj_bias"],
        ["in_proj_weight", "in_proj_bias"],
        ["out_proj.weight", "out_proj.bias"],
        ["in_proj_weight", "in_proj_bias", "out_proj.weight"],
    ],
    ids=", ".join,
)
def test_frozen_projections(frozen: list[str]) -> None:
    for model, inputs in [
        (SelfAttention(), torch.randn(3, 5, 8)),
        (CrossAttention(), (torch.randn(3, 5, 8), torch.randn(3, 4, 8))),
    ]:
        for name in frozen:
            model.attention.get_parameter(name).requires_grad_(False)
        found = assert_matches_loop(model, inputs)
        assert not {f"attention.{name}" for name in frozen} & set(found.names)


def test_only_a_separate_projection_is_trained() -> None:
    model = CrossAttention(kdim=6, vdim=7)
    model.requires_grad_(False)
    model.attention.k_proj_weight.requires_grad_(True)
    assert_matches_loop(model, (torch.randn(3, 5, 8), torch.randn(3, 4, 6), torch.randn(3, 4, 7)))


def test_a_layer_used_in_two_ways() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            x = self.attention(x, x, x)[0]
            x = self.attention(x, y, y)[0]
            return self.attention(x, y, torch.tanh(y))[0]

    assert_matches_loop(Twice(), (torch.randn(3, 5, 8), torch.randn(3, 4, 8)))


@WEIGHTS
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_output_is_torchs_own(batch_first: bool, average: bool, weights: bool) -> None:
    layer = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=batch_first, add_bias_kv=True)
    x, y = torch.randn(3, 5, 8), torch.randn(3, 4, 8)

    def losses(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = (one if batch_first else one.transpose(0, 1) for one in batch)
        output, attended = net(x, y, y, need_weights=weights, average_attn_weights=average)
        assert (attended is not None) == weights
        assert output.shape == x.shape
        found = record_losses(output, batch_dim=0 if batch_first else 1)
        return found if attended is None else found + record_losses(attended)

    found = capture(layer.eval(), losses, (x, y))
    torch.testing.assert_close(found.losses, losses(layer, (x, y)).detach())


@WEIGHTS
def test_dropout_passes_the_check(weights: bool) -> None:
    model = SelfAttention(weights=weights, dropout=0.5).train()
    capture(model, output_losses, torch.randn(3, 5, 8))


def test_several_sequences_per_record() -> None:
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True)

        def forward(self, x: Tensor) -> Tensor:
            windows = x.reshape(-1, 3, 8)
            return self.attention(windows, windows, windows)[0].reshape(x.shape)

    assert_matches_loop(Windows(), torch.randn(3, 6, 8))


@WEIGHTS
def test_a_query_without_a_batch_dimension(weights: bool) -> None:
    def losses(model: nn.Module, x: Tensor) -> Tensor:
        (one,) = x
        return record_losses(model(one, one, one, need_weights=weights)[0][None])

    assert_matches_loop(nn.MultiheadAttention(8, 2), torch.randn(3, 5, 8), losses=losses)


def _encoder(layers: int, **options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, **{"dropout": 0.0} | options)
    if layers == 0:
        return layer
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


@pytest.mark.covering
@PRECISIONS
@pytest.mark.parametrize("layers", [0, 2], ids=["layer", "encoder"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "sequence first"])
@pytest.mark.parametrize("norm_first", [True, False], ids=["norm first", "norm last"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_transformer_encoders(
    training: bool, norm_first: bool, batch_first: bool, layers: int, precision: Precision
) -> None:
    # A smooth activation: a rounded zero would choose another side of a ReLU than the loop's.
    model = _encoder(layers, norm_first=norm_first, batch_first=batch_first, activation="gelu")
    model.train(training)
    inputs = torch.randn(3, 5, 8) if batch_first else torch.randn(5, 3, 8)
    assert_matches_loop(model, inputs, **precision, batch_dim=0 if batch_first else 1)


@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "sequence first"])
@pytest.mark.parametrize("norm_first", [True, False], ids=["norm first", "norm last"])
def test_as_many_positions_as_records_in_the_first_capture(
    norm_first: bool, batch_first: bool
) -> None:
    model = _encoder(2, norm_first=norm_first, batch_first=batch_first)
    assert_matches_loop(model, torch.randn(4, 4, 8), batch_dim=0 if batch_first else 1)


@PRECISIONS
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_a_padded_encoder_that_could_take_torchs_fast_path(
    training: bool, precision: Precision
) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu")
    model = nn.TransformerEncoder(layer, 2).train(training)  # with nested tensors, if it may
    padding = torch.arange(5) >= torch.tensor([5, 3, 4])[:, None]
    inputs = {"src": torch.randn(3, 5, 8), "src_key_padding_mask": padding}
    assert_matches_loop(model, inputs, **precision)


def test_an_encoder_with_dropout_passes_the_check() -> None:
    model = _encoder(2, dropout=0.3, batch_first=True).train()
    capture(model, output_losses, torch.randn(4, 4, 8))


@PRECISIONS
def test_a_decoder_layer(precision: Precision) -> None:
    model = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu")
    inputs = {"tgt": torch.randn(3, 5, 8), "memory": torch.randn(3, 4, 8)}
    assert_matches_loop(model, inputs, **precision)


@WEIGHTS
@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_hessian_products(mode: Literal["forward", "reverse"], weights: bool) -> None:
    inputs = torch.randn(3, 5, 8), torch.randn(3, 4, 8)
    model = CrossAttention(weights=weights, add_bias_kv=True)
    assert_hessian_products_match_loop(model, inputs, mode=mode)
