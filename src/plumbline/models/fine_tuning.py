"""Pretrained transformers for fine-tuning: all weights, the last layer, biases, or LoRA.

ViT and DeiT for images, BERT for texts, GPT-2 for language, and anything else that transformers
loads by the same names (the extra ``transformers``). Weights come from the hub or from a local
folder. The records they were pretrained on are outside any guarantee.

| ``tune`` | what is trained |
| --- | --- |
| ``"full"`` | everything |
| ``"last"`` | the last layer: the classifier, or the output layer of a language model |
| ``"bias"`` | every bias, and the classifier (Zaken et al. 2022; privately, Bu et al. 2022) |
| ``"lora"`` | low-rank updates of attention's projections (Hu et al. 2022), and the classifier |

A language model has no classifier: there, the last two train nothing else.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plumbline.checks import check_count
from plumbline.models.pretrained import (
    Task,
    head,
    is_language,
    is_transformers,
    library,
    place,
    pretrained,
    quiet,
)
from plumbline.transformer_masks import learn_mask, with_own_mask

Tune = Literal["full", "last", "bias", "lora"]

ATTENTION = r".*\.(query|value|q_proj|v_proj|q_lin|v_lin|qkv|c_attn)"
"""The layers that LoRA acts on: transformers' names for attention's queries and values."""

IGNORED = -100
"""The label of a token that does not count, such as padding."""

_ADAPTER = "adapter_config.json"


class FineTuned(nn.Module):
    """A pretrained network that returns logits for a tensor, or for named tensors.

    Texts without an ``attention_mask`` get one that hides their padding, so that the length of the
    other records in a batch makes no difference.

    Attributes:
        network: The network from transformers (or peft around it).
        tune: What is trained.
    """

    def __init__(self, network: nn.Module, tune: Tune) -> None:
        super().__init__()
        self.network = network
        self.tune = tune
        own = _unwrapped(network)
        self._input: str | None = getattr(own, "main_input_name", None)
        self._options: dict[str, Any] = {"return_dict": True} if is_transformers(own) else {}
        self._padding: int | None = None
        if is_language(own):
            self._options["use_cache"] = False
        elif self._input == "input_ids":
            self._padding = own.config.pad_token_id
        learn_mask(network)

    def forward(self, inputs: Tensor | None = None, **named: Any) -> Tensor:
        """Logits: ``[B, classes]``, or ``[B, T, vocabulary]`` of a language model.

        Args:
            inputs: Pixels ``[B, C, H, W]`` or tokens ``[B, T]``.
            **named: Tensors by their names in transformers: ``pixel_values`` or ``input_ids``, and
                ``attention_mask`` (``[B, T]``, 0 for padding).
        """
        positional = []
        if inputs is not None and self._input is None:
            positional = [inputs]
        elif inputs is not None:
            named[str(self._input)] = inputs
        if self._padding is not None and "input_ids" in named and "attention_mask" not in named:
            named["attention_mask"] = _mask(named["input_ids"], self._padding)
        named = with_own_mask(self.network, named)
        output = self.network(*positional, **named, **self._options)
        logits: Tensor = getattr(output, "logits", output)
        return logits

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the weights (with LoRA, only the adapter and the classifier) for ``load``.

        The format is that of transformers' (or peft's) ``save_pretrained``.
        """
        network: Any = self.network
        if not hasattr(network, "save_pretrained"):
            raise TypeError(
                f"{type(network).__name__} is not a network from transformers. Save its "
                "state_dict() with torch.save."
            )
        options = {"save_embedding_layers": False} if self.tune == "lora" else {}
        with quiet(bars=False):
            network.save_pretrained(os.fspath(folder), **options)


def load(
    name: str | os.PathLike[str],
    *,
    task: Task,
    classes: int | None = None,
    tune: Tune = "full",
    dropout: float | None = None,
    lora_rank: int = 8,
    lora_alpha: float = 16.0,
    lora_targets: str = ATTENTION,
) -> FineTuned:
    """A pretrained network, ready for fine-tuning, in training mode and float32.

    If the number of classes differs from the stored one, the classifier is new, with random
    weights.

    Args:
        name: A name on the hub, such as ``"google/vit-base-patch16-224-in21k"``; or a folder
            written by ``save_pretrained`` or ``FineTuned.save``. A folder with a LoRA adapter is
            loaded with the arguments it was created with.
        task: ``"image"`` or ``"text"`` for a classifier, ``"language"`` for a language model.
        classes: The number of classes; by default as stored.
        tune: ``"full"``, ``"last"``, ``"bias"`` or ``"lora"``.
        dropout: All dropout probabilities; by default as stored.
        lora_rank: The rank of LoRA's updates.
        lora_alpha: The updates are multiplied by ``lora_alpha / lora_rank``.
        lora_targets: A regular expression for the full names of the layers LoRA acts on.

    Raises:
        ImportError: If transformers is not installed, or peft for LoRA.
        OSError: If there is no such folder, or the hub does not have it or cannot be reached.
        ValueError: If an argument makes no sense, or the network is not for the task.
    """
    _check(task, classes, tune, dropout)
    where, is_local = place(name)
    adapter = None
    if is_local and Path(where, _ADAPTER).is_file():
        if tune != "lora":
            raise ValueError(
                f"The folder {where} holds a LoRA adapter, but tune is {tune!r}. Load it with "
                "tune='lora'."
            )
        adapter = where
        where, is_local = place(_base_of(where))
    network = pretrained(where, is_local, task, classes, dropout)
    if adapter is not None:
        with quiet(bars=False):
            network = library("peft").PeftModel.from_pretrained(network, adapter, is_trainable=True)
        return FineTuned(network, "lora").train()
    return fine_tune(
        network,
        tune=tune,
        lora_rank=lora_rank,
        lora_alpha=lora_alpha,
        lora_dropout=dropout or 0.0,
        lora_targets=lora_targets,
    )


def fine_tune(
    network: nn.Module,
    *,
    tune: Tune = "full",
    lora_rank: int = 8,
    lora_alpha: float = 16.0,
    lora_dropout: float = 0.0,
    lora_targets: str = ATTENTION,
) -> FineTuned:
    """Prepares an existing network like ``load``; it is changed in place.

    Args:
        network: A network from transformers; or one that takes one tensor and returns its last
            layer from ``get_classifier()``, as those of timm do (such as CrossViT).
        tune: As for ``load``.
        lora_rank: As for ``load``.
        lora_alpha: As for ``load``.
        lora_dropout: The dropout before LoRA's updates.
        lora_targets: As for ``load``.
    """
    if tune not in get_args(Tune):
        raise ValueError(f"tune is {tune!r}; it must be one of {', '.join(get_args(Tune))}.")
    if tune == "lora":
        adapted = _with_lora(network, lora_rank, lora_alpha, lora_dropout, lora_targets)
        return FineTuned(adapted, tune).train()
    if tune == "last" and is_language(network):
        _untie(network)
    last = {
        id(p)
        for name in head(network)
        if tune == "last" or not is_language(network)
        for p in network.get_submodule(name).parameters()
    }
    for name, parameter in network.named_parameters():
        is_bias = tune == "bias" and name.rsplit(".", 1)[-1] == "bias"
        parameter.requires_grad_(tune == "full" or is_bias or id(parameter) in last)
    return FineTuned(network, tune).train()


def language_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Each record's mean loss over its own tokens, ``[B]``: a loss of output and target.

    Position t predicts the label at t + 1. Labels of -100 do not count, so a record's loss does not
    depend on its padding; a record without any other label has loss zero.

    Args:
        logits: ``[B, T, vocabulary]``.
        labels: ``[B, T]``: the tokens themselves, -100 where they do not count.
    """
    following = labels[:, 1:]
    losses = F.cross_entropy(
        logits[:, :-1].mT, following, ignore_index=IGNORED, reduction="none"
    )  # zero where ignored
    counts = (following != IGNORED).sum(1)
    return losses.sum(1) / counts.clamp(min=1)


def language_labels(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """The labels for ``language_loss``: the tokens, and -100 where the mask is 0; ``[B, T]``."""
    return input_ids.masked_fill(attention_mask == 0, IGNORED)


def _check(task: str, classes: int | None, tune: str, dropout: float | None) -> None:
    if task not in get_args(Task):
        raise ValueError(f"task is {task!r}; it must be one of {', '.join(get_args(Task))}.")
    if tune not in get_args(Tune):
        raise ValueError(f"tune is {tune!r}; it must be one of {', '.join(get_args(Tune))}.")
    if task == "language" and classes is not None:
        raise ValueError(
            f"classes is {classes}, but a language model predicts the tokens of its vocabulary. "
            "Leave classes out, or give task='text' for a classifier."
        )
    if classes is not None:
        check_count("classes", classes)
    if dropout is not None and not 0 <= dropout < 1:
        raise ValueError(
            f"dropout is {dropout}; it must be at least 0 and below 1, or None for the stored one."
        )


def _base_of(adapter: str) -> str:
    base: str | None = library("peft").PeftConfig.from_pretrained(adapter).base_model_name_or_path
    if not base:
        raise ValueError(
            f"The LoRA adapter in {adapter} does not say which network it belongs to, because that "
            "network was not loaded from anywhere. Save the network, load it with tune='lora', and "
            "train that."
        )
    return base


def _untie(network: Any) -> None:
    """Gives the output layer its own weights, if it shares those of the input embedding."""
    output, shared = network.get_output_embeddings(), network.get_input_embeddings()
    if output.weight is shared.weight:
        output.weight = nn.Parameter(output.weight.detach().clone())
        network.config.tie_word_embeddings = False


def _with_lora(
    network: nn.Module, rank: int, alpha: float, dropout: float, targets: str
) -> nn.Module:
    check_count("lora_rank", rank)
    chosen = [m for name, m in network.named_modules() if re.fullmatch(targets, name)]
    if not chosen:
        layers = sorted(
            name for name, m in network.named_modules() if getattr(m, "weight", None) is not None
        )
        raise ValueError(
            f"No layer of {type(network).__name__} has a name that matches lora_targets = "
            f"{targets!r}. Its layers are {', '.join(layers[:8])}{' ...' if layers[8:] else ''}."
        )
    peft = library("peft")
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=targets,
        modules_to_save=None if is_language(network) else head(network),
        fan_in_fan_out=all(type(module).__name__ == "Conv1D" for module in chosen),
    )
    adapted: nn.Module = peft.get_peft_model(network, config)
    return adapted


def _mask(tokens: Tensor, padding: int) -> Tensor:
    mask = tokens != padding
    # A text of only padding attends to its first token: attention to nothing would be NaN.
    first = torch.arange(tokens.shape[1], device=tokens.device) == 0
    return (mask | first).long()


def _unwrapped(network: Any) -> Any:
    """The transformers network inside peft's, or the network itself."""
    return network.get_base_model() if hasattr(network, "get_base_model") else network
