"""Whole models, every operation against the loop."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.nn.utils.parametrize as parametrize
from torch import Tensor, nn

from plumbline.gradients import capture
from tests.gradients.harness import AUTOCAST, Inputs, assert_matches_loop, output_losses

Case = tuple[nn.Module, Inputs]

DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32], ids=["float64", "float32"]
)


def _mlp() -> Case:
    model = nn.Sequential(
        nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2)
    )
    return model, torch.randn(6, 12)


def _cnn() -> Case:
    """The papers' network: two 3x3 convolutions with tanh, and a linear layer."""
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.Tanh(), nn.Conv2d(32, 16, 3), nn.Tanh(), nn.Flatten(),
        nn.Linear(16 * 6 * 6, 10),
    )  # fmt: skip
    return model, torch.randn(5, 1, 10, 10)


class Standardise(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        mean = weight.mean((1, 2, 3), keepdim=True)
        return (weight - mean) / (weight.std((1, 2, 3), keepdim=True) + 1e-5)


class Block(nn.Module):
    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = self._convolution(into, out, 3, stride)
        self.second = self._convolution(out, out, 3, 1)
        self.norms = nn.ModuleList([nn.GroupNorm(out // 4, out), nn.GroupNorm(out // 4, out)])
        self.shortcut = (
            nn.Identity()
            if into == out and stride == 1
            else self._convolution(into, out, 1, stride)
        )

    @staticmethod
    def _convolution(into: int, out: int, size: int, stride: int) -> nn.Conv2d:
        layer = nn.Conv2d(into, out, size, stride, padding=size // 2, bias=False)
        return parametrize.register_parametrization(layer, "weight", Standardise())  # type: ignore[return-value]

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.norms[0](self.first(x)))
        y = self.norms[1](self.second(y))
        return F.silu(y + self.shortcut(x))


def _resnet(widths: tuple[int, ...], blocks: int, size: int, records: int) -> Case:
    """A group-norm residual network with standardised weights."""
    stem = Block._convolution(3, widths[0], 3, 1)
    layers: list[nn.Module] = [stem, nn.GroupNorm(widths[0] // 4, widths[0]), nn.SiLU()]
    into = widths[0]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            layers.append(Block(into, width, 2 if stage and not block else 1))
            into = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, 10)]
    return nn.Sequential(*layers), torch.randn(records, 3, size, size)


class Transformer(nn.Module):
    """Tokens and positions, two encoder layers, the mean over the sequence, a linear layer."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(20, 8), nn.Embedding(7, 8)
        layer = nn.TransformerEncoderLayer(
            8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first, activation=F.gelu
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.end = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.end(self.encoder(x).mean(1))


def _transformer(norm_first: bool = False) -> Case:
    model = Transformer(norm_first)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    return model, torch.randint(0, 20, (5, 7))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 5)
        self.recurrent = kind(5, 6, batch_first=True, **options)
        self.end = nn.Linear(6 * (2 if options.get("bidirectional") else 1), 3)

    def forward(self, tokens: Tensor) -> Tensor:
        output, _ = self.recurrent(self.tokens(tokens))
        return self.end(output[:, -1])


def _gru(**options: Any) -> Case:
    return Recurrent(nn.GRU, **options), torch.randint(0, 20, (4, 5))


SMALL: dict[str, Callable[[], Case]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "resnet": lambda: _resnet((8, 8, 16), blocks=1, size=8, records=4),
    "transformer": _transformer,
    "transformer, norm first": lambda: _transformer(norm_first=True),
    "gru": _gru,
    "gru, two layers, both ways": lambda: _gru(num_layers=2, bidirectional=True),
    "lstm": lambda: (Recurrent(nn.LSTM), torch.randint(0, 20, (4, 5))),
}


@DTYPES
@pytest.mark.parametrize("name", SMALL)
def test_small_models(name: str, dtype: torch.dtype) -> None:
    model, inputs = SMALL[name]()
    assert_matches_loop(model, inputs, dtype=dtype)


# The residual network's gradients are beyond bfloat16: the loop's own are 2e-2 from float32's.
@pytest.mark.parametrize("name", [name for name in SMALL if name != "resnet"])
def test_small_models_under_autocast(name: str) -> None:
    model, inputs = SMALL[name]()
    assert_matches_loop(model, inputs, **AUTOCAST)


@pytest.mark.parametrize("name", SMALL)
def test_one_record(name: str) -> None:
    model, inputs = SMALL[name]()
    assert isinstance(inputs, Tensor)
    assert_matches_loop(model, inputs[:1])


@pytest.mark.parametrize("name", ["transformer", "transformer, norm first", "gru", "lstm"])
def test_as_many_records_as_positions(name: str) -> None:
    model, inputs = SMALL[name]()
    assert isinstance(inputs, Tensor)
    length = inputs.shape[1]
    tokens = torch.randint(0, 20, (length, length))
    assert_matches_loop(model, tokens)
    model, _ = SMALL[name]()
    assert_matches_loop(model, inputs)
    assert_matches_loop(model, tokens)


@pytest.mark.slow
@DTYPES
def test_resnet_20(dtype: torch.dtype) -> None:
    model, inputs = _resnet((16, 32, 64), blocks=3, size=32, records=3)
    assert_matches_loop(model, inputs, dtype=dtype)


def _each_mask(mask: Tensor, *, causal: bool = False) -> Tensor:
    """Each record's own mask ``[B, 1, T, T]`` from padding ``[B, T]``: which positions see which.

    With a mask of two dimensions, transformers asks whether any record is padded.
    """
    length = mask.shape[1]
    seen = torch.ones(length, length, dtype=torch.bool)
    return mask.bool()[:, None, None, :] & (seen.tril() if causal else seen)


def _classes(model: nn.Module, inputs: Inputs) -> Tensor:
    """Cross-entropy against fixed labels, for models from transformers."""
    assert isinstance(inputs, dict)
    logits = model(**inputs).logits
    labels = inputs[next(iter(inputs))].flatten(1).sum(1).long() % logits.shape[-1]
    return F.cross_entropy(logits, labels, reduction="none")


def _next_tokens(model: nn.Module, inputs: Inputs) -> Tensor:
    """The mean over a record's own tokens of the loss of the next one."""
    assert isinstance(inputs, dict)
    logits, tokens = model(**inputs).logits[:, :-1], inputs["input_ids"][:, 1:]
    return F.cross_entropy(logits.mT, tokens, reduction="none").mean(1)


def _livelier(model: nn.Module) -> nn.Module:
    """Weights large enough that no gradient is tiny; fresh models are nearly linear."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.2)
    return model.eval()


def _vit() -> Case:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        image_size=8, patch_size=4, num_channels=3, num_labels=3,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    return _livelier(model), {"pixel_values": torch.randn(4, 3, 8, 8)}


def _bert() -> Case:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=12, num_labels=3,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    tokens = torch.randint(1, 30, (4, 7))
    mask = torch.ones(4, 7, dtype=torch.long)
    mask[1, 5:], mask[3, 3:] = 0, 0
    return _livelier(model), {"input_ids": tokens, "attention_mask": _each_mask(mask)}


def _roberta() -> Case:
    transformers = pytest.importorskip("transformers")
    config = transformers.RobertaConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=12, num_labels=3, pad_token_id=0,
    )  # fmt: skip
    model = transformers.RobertaForSequenceClassification(config)
    tokens = torch.randint(1, 30, (4, 7))
    tokens[1, 5:], tokens[3, 3:] = 0, 0
    return _livelier(model), {"input_ids": tokens, "attention_mask": _each_mask(tokens != 0)}


def _llama() -> Case:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=24, max_position_embeddings=12,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    mask = torch.ones(4, 7)
    mask[1, 5:], mask[3, 3:] = 0, 0
    tokens = torch.randint(1, 30, (4, 7))
    return _livelier(model), {
        "input_ids": tokens,
        "attention_mask": _each_mask(mask, causal=True),
    }


def _gpt2() -> Case:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=30, n_positions=12, n_embd=16, n_layer=2, n_head=2,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    mask = torch.ones(4, 7)
    mask[1, 5:], mask[3, 3:] = 0, 0
    tokens = torch.randint(1, 30, (4, 7))
    return _livelier(model), {
        "input_ids": tokens,
        "attention_mask": _each_mask(mask, causal=True),
    }


PRETRAINED: dict[str, tuple[Callable[[], Case], Callable[[nn.Module, Inputs], Tensor]]] = {
    "vit": (_vit, _classes),
    "bert": (_bert, _classes),
    "roberta": (_roberta, _classes),
    "llama": (_llama, _next_tokens),
    "gpt2": (_gpt2, _next_tokens),
}


@DTYPES
@pytest.mark.parametrize("name", PRETRAINED)
def test_models_from_transformers(name: str, dtype: torch.dtype) -> None:
    build, losses = PRETRAINED[name]
    model, inputs = build()
    assert_matches_loop(model, inputs, losses=losses, dtype=dtype)


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "llama"])
def test_a_mask_for_each_record_changes_nothing(name: str) -> None:
    """The usual mask, of two dimensions, gives the same losses outside of a capture."""
    build, losses = PRETRAINED[name]
    model, inputs = build()
    assert isinstance(inputs, dict)
    padding = inputs["attention_mask"][:, 0, -1].long()
    usual = losses(model, inputs | {"attention_mask": padding})
    own = capture(model, losses, inputs).losses
    torch.testing.assert_close(own, usual.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_transformers_with_as_many_records_as_positions(name: str) -> None:
    build, losses = PRETRAINED[name]
    model, inputs = build()
    assert isinstance(inputs, dict)
    mask = _each_mask(torch.ones(7, 7), causal=name == "gpt2")
    tokens = {"input_ids": torch.randint(1, 30, (7, 7)), "attention_mask": mask}
    assert_matches_loop(model, tokens, losses=losses)


@pytest.mark.parametrize("name", PRETRAINED)
def test_low_rank_adapters(name: str) -> None:
    peft = pytest.importorskip("peft")
    build, losses = PRETRAINED[name]
    model, inputs = build()
    config = peft.LoraConfig(
        r=2, lora_alpha=4, target_modules=r".*(query|value|q_proj|v_proj|c_attn)",
        lora_dropout=0.0, fan_in_fan_out=name == "gpt2",
    )  # fmt: skip
    adapted = peft.get_peft_model(model, config)
    for parameter_name, parameter in adapted.named_parameters():
        if "lora_B" in parameter_name:  # they start at zero, where the other half has no gradient
            nn.init.normal_(parameter, std=0.2)
    found = assert_matches_loop(adapted.eval(), inputs, losses=losses)
    assert found.names
    assert all("lora" in name for name in found.names)


@pytest.mark.parametrize("name", [*SMALL, *PRETRAINED])
def test_no_parameter_is_skipped(name: str) -> None:
    build = SMALL[name] if name in SMALL else PRETRAINED[name][0]
    model, inputs = build()
    found = capture(model, output_losses, inputs)
    assert found.names == [name for name, p in model.named_parameters() if p.requires_grad]
