"""Pretrained networks of transformers: where they are, what they contain, which part is the head.

Used by ``fine_tuning``. Nothing here imports transformers before it is needed.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

Task = Literal["image", "text", "language"]

_AUTO: dict[Task, str] = {
    "image": "AutoModelForImageClassification",
    "text": "AutoModelForSequenceClassification",
    "language": "AutoModelForCausalLM",
}


def place(name: str | os.PathLike[str]) -> tuple[str, bool]:
    """Where the weights are: a folder's absolute path, or a name on the hub; and which of the two.

    Absolute, because an adapter remembers the folder of the network that it belongs to.
    """
    text = os.fspath(name)
    folder = Path(text).expanduser()
    if folder.is_dir():
        return str(folder.resolve()), True
    if not isinstance(name, str) or text.startswith((".", "~", os.sep)) or text.count("/") > 1:
        raise FileNotFoundError(
            f"The folder {folder} does not exist. Give a folder that save_pretrained wrote, or "
            "a name on the hub, such as 'google/vit-base-patch16-224-in21k'."
        )
    return text, False


def pretrained(
    where: str, is_local: bool, task: Task, classes: int | None, dropout: float | None
) -> nn.Module:
    """The network at a ``place``, in float32, with a new head if ``classes`` differs.

    Raises:
        OSError: If there is none, or the hub cannot be reached.
        ValueError: If it is not for the task.
    """
    transformers = library("transformers")
    try:
        with quiet(bars=not is_local):
            config = transformers.AutoConfig.from_pretrained(where, local_files_only=is_local)
    except (OSError, ValueError) as error:
        raise _cannot(where, is_local, error) from error
    if classes is not None:
        config.num_labels = classes
    if dropout is not None:
        for name, value in config.to_dict().items():
            if "drop" in name and type(value) in (int, float):
                setattr(config, name, dropout)
    auto = getattr(transformers, _AUTO[task])
    if type(config) not in auto._model_mapping:
        raise ValueError(
            f"{where} is of the kind {config.model_type!r}, for which transformers has no model of "
            f"the task {task!r}. Choose another task ({', '.join(get_args(Task))}) or network."
        )
    try:
        with quiet(bars=not is_local):
            network, report = auto.from_pretrained(
                where,
                config=config,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                local_files_only=is_local,
            )
    except OSError as error:
        raise _cannot(where, is_local, error) from error
    found: nn.Module = network
    _warn_of_new_weights(found, report, where)
    return found


def head(network: nn.Module) -> list[str]:
    """The names of the modules after the pretrained network: the last layer.

    In transformers, everything that is not part of the network's ``base_model``; in timm, what
    ``get_classifier()`` returns.
    """
    if is_transformers(network):
        prefix = getattr(network, "base_model_prefix", "")
        children = [name for name, child in network.named_children() if list(child.parameters())]
        if prefix in children and len(children) > 1:
            return [name for name in children if name != prefix]
    for inner in (network, *network.children()):
        if callable(classifier := getattr(inner, "get_classifier", None)):
            found = classifier()
            return [name for name, module in network.named_modules() if module is found]
    raise ValueError(
        f"{type(network).__name__} does not say which layer is its last. Give a classifier or a "
        "language model from transformers, or a network with get_classifier(), as in timm."
    )


def is_transformers(network: nn.Module) -> bool:
    """Whether it is a transformers network."""
    return hasattr(network, "base_model_prefix") and hasattr(network, "config")


def is_language(network: Any) -> bool:
    """Whether it is a language model: its last layer returns tokens."""
    if not is_transformers(network):
        return False
    return getattr(network, "get_output_embeddings", lambda: None)() is not None


def library(name: str) -> Any:
    """The library transformers or peft; the error says how to install them."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"Fine-tuning needs {name}, which cannot be imported. Install it with "
            "`pip install 'plumbline[transformers]'`."
        ) from error


@contextmanager
def quiet(*, bars: bool) -> Iterator[None]:
    """Silences transformers' reports, which we replace, and perhaps its progress bars."""
    logging = library("transformers").utils.logging
    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not bars:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def _warn_of_new_weights(network: nn.Module, report: Mapping[str, Any], where: str) -> None:
    """Checks that only a new classifier has new weights."""
    heads = tuple(f"{name}." for name in head(network))
    fresh = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
    strange = sorted(name for name in fresh if not name.startswith(heads))
    if strange:
        warnings.warn(
            f"{where} has no weights for {strange[0]!r} ({len(strange)} besides the last layer): "
            "they are random, and not pretrained. Train them too (tune='full'), or load a network "
            "of the kind that was stored.",
            stacklevel=4,
        )


def _cannot(where: str, is_local: bool, error: Exception) -> OSError:
    reason = (str(error).strip() or repr(error)).splitlines()[0].rstrip(".")
    kind = "The folder" if is_local else "The hub's"
    return OSError(
        f"{kind} {where} could not be loaded ({reason}). Give a folder that save_pretrained wrote, "
        "or the name of a network on the hub, which needs a network connection unless it was "
        "downloaded before."
    )
