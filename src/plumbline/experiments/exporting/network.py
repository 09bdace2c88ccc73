"""A network without the code that built it: layers of torch.nn, or where its own code is found.

A network of plain layers, one after the other, is described by their names and sizes, and anybody
with torch can build it (``predict.build``). Any other is named by ``package.module:attribute``, and
whoever uses it needs that package. A torch.export program has the network in it too; it is written
for other tools, and never read here, since torch unpickles it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from plumbline.experiments.exporting.predict import LAYERS
from plumbline.experiments.objects import is_object
from plumbline.models import MODELS
from plumbline.registry import MARK, UnknownPart, imported


class NoProgram(RuntimeError):
    """A network that torch.export cannot write, and why."""


def layers_of(model: nn.Module) -> dict[str, Any] | None:
    """The network as layers that ``predict.build`` builds; None if it has others, or hooks."""
    if model._forward_hooks or model._forward_pre_hooks:
        return None
    if type(model) is nn.Sequential:
        # Not named_children(), which leaves out a layer that is used twice.
        parts = {name: part and layers_of(part) for name, part in model._modules.items()}
        return {"layers": parts} if all(parts.values()) else None
    name = type(model).__name__
    if name not in LAYERS or type(model) is not getattr(nn, name):
        return None
    if any(one.dtype != torch.float32 for one in model.parameters()):
        return None
    options = {option: getattr(model, option) for option in LAYERS[name]}
    if "weight" in model._parameters and model.weight is not None:
        options["bias"] = model.bias is not None
    return {"layer": name, "options": options}


def reference_of(name: str) -> str | None:
    """Where a network's own code is found, ``package.module:attribute``; None for an object."""
    if is_object(name):
        return None
    if MARK in name:
        return name
    builder = MODELS.find(name)
    where = f"{builder.__module__}{MARK}{builder.__qualname__}"
    try:
        return where if imported(where) is builder else None
    except UnknownPart:
        return None


def program_of(model: nn.Module, features: int | None) -> bytes:
    """The network and its weights as a torch.export program, for any number of rows.

    Args:
        model: In evaluation mode.
        features: How many numbers a row has, if that is known.

    Raises:
        NoProgram: If torch cannot trace the network.
    """
    if features is None:
        raise NoProgram("the shape of a record is not known without the data")
    rows = torch.export.Dim("rows")
    try:
        with _quiet():
            made = torch.export.export(
                model, (torch.zeros(2, features),), dynamic_shapes=({0: rows},), strict=False
            )
            for node in made.graph.nodes:
                node.meta.pop("stack_trace", None)  # which names folders of this machine
            stream = io.BytesIO()
            torch.export.save(made, stream)
    except Exception as error:  # tracing somebody's own code can end in any way
        first = next(iter(str(error).splitlines()), "")
        raise NoProgram(f"torch.export fails with {type(error).__name__}: {first}"[:200]) from error
    return stream.getvalue()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps torch's remarks on its own tracing from the terminal."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)
