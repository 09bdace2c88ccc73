"""The networks of the whole-loop benchmark: those of `models.py` and six that users bring.

A small MLP on a table, a wide one of more than a million parameters, a VGG-like network with group
norms, an LSTM, a vision transformer of Hugging Face's, and LoRA on a small GPT-2 of theirs. The
last two come from a configuration: their weights are random.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models import WORKLOADS, Workload

TOKENS, WORDS = 48, 4_000


def table_mlp() -> nn.Module:
    """30-64-64-2 with ReLU."""
    return nn.Sequential(
        nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )


def wide_mlp() -> nn.Module:
    """784-1024-1024-10 with ReLU: 1,863,690 parameters."""
    return nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def vgg() -> nn.Module:
    """Six 3x3 convolutions with group norms (32, 32, 64, 64, 128, 128), pooled after each two."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128):
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(8, width), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 10))


class Lstm(nn.Module):
    """An embedding, an LSTM of 128 units, and a linear layer on its last output."""

    def __init__(self, lstm: type[nn.Module] = nn.LSTM) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 64)
        self.lstm = lstm(64, 128, batch_first=True)
        self.head = nn.Linear(128, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens `[B, T]` to logits `[B, 2]`."""
        return self.head(self.lstm(self.embedding(tokens))[0][:, -1])


class Logits(nn.Module):
    """A Hugging Face model, of which only the logits are used.

    With `causal`, it is given the mask that it would make itself of texts without padding.
    """

    def __init__(self, model: Any, causal: bool = False) -> None:
        super().__init__()
        self.model = model
        self.mask: dict[str, Tensor] = {}
        if causal:
            self.mask["attention_mask"] = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).tril()

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits `[B, classes]`."""
        return self.model(inputs, **self.mask).logits


def vit() -> nn.Module:
    """Four layers of width 128 over 8x8 patches of 32x32 images."""
    from transformers import ViTConfig, ViTForImageClassification

    return Logits(
        ViTForImageClassification(
            ViTConfig(
                hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512,
                image_size=32, patch_size=8, num_labels=10,
                hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            )
        )
    )  # fmt: skip


def lora_gpt2() -> nn.Module:
    """A GPT-2 of four layers of width 128 that is frozen, with LoRA of rank 8 on its attention."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2ForSequenceClassification

    model = GPT2ForSequenceClassification(
        GPT2Config(
            vocab_size=WORDS, n_positions=TOKENS, n_embd=128, n_layer=4, n_head=4, num_labels=2,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, pad_token_id=WORDS - 1,
        )
    )  # fmt: skip
    lora = LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True, task_type="SEQ_CLS")
    return Logits(get_peft_model(model, lora), causal=True)


def _gaussian(*shape: int) -> Any:
    return lambda size, generator: torch.randn(size, *shape, generator=generator)


def _words(size: int, generator: torch.Generator) -> Tensor:
    return torch.randint(WORDS - 1, (size, TOKENS), generator=generator)


LOOPS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("table", "table MLP", table_mlp, 512, _gaussian(30), 2),
        Workload("wide", "wide MLP", wide_mlp, 512, _gaussian(784), 10),
        WORKLOADS["mlp"],
        WORKLOADS["cnn"],
        Workload("vgg", "VGG", vgg, 64, _gaussian(3, 32, 32), 10),
        WORKLOADS["resnet"],
        WORKLOADS["transformer"],
        Workload("vit", "ViT", vit, 64, _gaussian(3, 32, 32), 10),
        Workload("lstm", "LSTM", Lstm, 128, _words, 2),
        Workload("lora", "LoRA GPT-2", lora_gpt2, 64, _words, 2),
    )
}
