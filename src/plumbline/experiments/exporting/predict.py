"""Predicts with the model in this folder. It needs torch and numpy, and not Plumbline.

    python predict.py new.csv > scored.csv
    python predict.py - < rows.jsonl > scored.jsonl

There is one line for every row: the class and the probability of each, or the number. In Python,
with this folder on the path: ``predict.Model().predict(frame)`` takes a pandas DataFrame.
"""

from __future__ import annotations

import copy
import csv
import hashlib
import importlib
import itertools
import json
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from plumbline.data.json_rows import PREDICTION, PROBABILITY, Entry, answers, entry
from plumbline.data.table_cells import encode, separator_of, texts_of

SETTINGS, ENCODING, WEIGHTS, MANIFEST = "model.json", "encoding.json", "model.pt", "manifest.json"

LAYERS = {
    "Dropout": ("p",),
    "ELU": ("alpha",),
    "GELU": ("approximate",),
    "Identity": (),
    "LayerNorm": ("normalized_shape", "eps", "elementwise_affine"),
    "LeakyReLU": ("negative_slope",),
    "Linear": ("in_features", "out_features"),
    "ReLU": (),
    "SELU": (),
    "SiLU": (),
    "Sigmoid": (),
    "Softplus": ("beta", "threshold"),
    "Tanh": (),
}
"""The layers of torch.nn that a network is described by, with what each is built with."""


class Model:
    """An exported model.

    Args:
        folder: Where it is.
    """

    def __init__(self, folder: Path = Path(__file__).parent) -> None:
        hashes = json.loads((folder / MANIFEST).read_bytes())["sha256"]
        for name in (SETTINGS, ENCODING, WEIGHTS):
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != hashes[name]:
                raise ValueError(f"{folder / name} is not the file that was exported.")
        settings = json.loads((folder / SETTINGS).read_bytes())
        self.encoding = json.loads((folder / ENCODING).read_bytes())
        self.columns = {column["name"]: column for column in self.encoding["columns"]}
        self.classes, self.threshold = settings["classes"], settings["threshold"]
        self.network = build(settings["network"])
        self.network.load_state_dict(torch.load(folder / WEIGHTS, weights_only=True))
        self.network.eval()

    def predict(self, rows: Mapping[str, Iterable[Any]]) -> Tensor:
        """The probability of each class, ``[n, classes]``; of a number, that itself, ``[n]``.

        Args:
            rows: A DataFrame, or cells by column. Missing cells are filled as in training, and
                columns that the model was not trained on are not looked at.
        """
        if absent := [repr(name) for name in self.columns if name not in rows]:
            raise ValueError(f"There is no column {', '.join(absent)}, which the model needs.")
        known = self.encoding
        form = {"decimal": known["form"]["decimal"], "missing": known["missing_values"]}
        cells = {
            name: texts_of(one, list(rows[name]), **form) for name, one in self.columns.items()
        }
        gaps = set(known["missing_values"])
        x = torch.from_numpy(encode(known["columns"], cells, gaps, flagged=known["flagged"]))
        with torch.no_grad():
            outputs: Tensor = self.network(x).double()
        if known["target_range"] is None:
            return outputs.softmax(1)
        low, high = map(float, known["target_range"])
        return outputs.flatten() * ((high - low) / 2 or 1.0) + (low + high) / 2

    def decide(self, predicted: Tensor) -> list[str]:
        """What ``predict`` gave as text: classes, by the threshold if there is one; or numbers."""
        if not self.classes:
            return [f"{value:.6g}" for value in predicted.tolist()]
        places = predicted.argmax(1)
        if self.threshold is not None:
            places = (predicted[:, 1] >= self.threshold).long()
        return [self.classes[place] for place in places.tolist()]

    def entries(self, rows: Mapping[str, Iterable[Any]]) -> list[Entry]:
        """What is said of each row."""
        predicted = self.predict(rows)
        said = zip(self.decide(predicted), predicted.tolist(), strict=True)
        return [entry(text, value, self.classes) for text, value in said]


def build(network: Mapping[str, Any]) -> nn.Module:
    """The network that is described, with weights of no meaning.

    Args:
        network: ``{"layers": {name: description}}`` for one after the other, ``{"layer": "Linear",
            "options": {...}}`` for one of torch.nn, or ``{"reference": "package.module:attribute",
            "options": {...}}`` for somebody's own network.
    """
    if "reference" not in network:
        return _layers(network)
    module, _, attribute = network["reference"].partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)
    except (AttributeError, ImportError) as error:
        raise ImportError(
            f"The network is {network['reference']!r}, which is not in this folder and cannot be "
            f"imported ({error}). Install its package, or put it on PYTHONPATH."
        ) from error
    if isinstance(found, nn.Module):
        return copy.deepcopy(found)
    built: nn.Module = found(**network["options"])
    return built


def _layers(network: Mapping[str, Any]) -> nn.Module:
    """Layers of torch.nn. A reference within them was checked by nobody, and is not followed."""
    if "layers" in network:
        parts = [(name, _layers(part)) for name, part in network["layers"].items()]
        return nn.Sequential(OrderedDict(parts))
    if network.get("layer") not in LAYERS:
        raise ValueError(f"There is no layer called {network.get('layer')!r}.")
    layer: nn.Module = getattr(nn, network["layer"])(**network["options"])
    return layer


def main() -> None:
    """Reads rows, and writes what the model says of each."""
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    try:
        model = Model()
        if sys.argv[1] == "-":
            for said in answers(sys.stdin.buffer, list(model.columns), model.entries):
                print(*map(json.dumps, said), sep="\n", flush=True)
        else:
            with open(sys.stdout.fileno(), "w", encoding="utf-8", newline="", closefd=False) as out:
                csv.writer(out, lineterminator="\n").writerows(_scored(model, Path(sys.argv[1])))
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"predict.py: {error}")


def _scored(model: Model, path: Path) -> Iterator[list[Any]]:
    """The rows of a csv file, the first of which names the columns, with what is said of each."""
    form = model.encoding["form"]
    encoding = "utf-8-sig" if form["encoding"].lower() == "utf-8" else form["encoding"]
    with path.open(encoding=encoding, newline="") as stream:
        separator = form["separator"] or separator_of(stream.readline())
        stream.seek(0)
        lines = csv.reader(stream, skipinitialspace=True, delimiter=separator)
        names = [name.strip() for name in next(lines, [])]
        added = [PREDICTION, *(f"{PROBABILITY}{name}" for name in model.classes)]
        if taken := [name for name in added if name in names]:
            raise ValueError(f"{path} has a column {taken[0]!r} already; rename it.")
        yield [*names, *added]
        rows = (row or [""] for row in lines) if len(names) == 1 else filter(None, lines)
        while piece := list(itertools.islice(rows, 10_000)):
            if any(len(row) != len(names) for row in piece):
                raise ValueError(f"{path} has rows of more or fewer cells than its first row.")
            columns = dict(zip(names, zip(*piece, strict=True), strict=True))
            for row, said in zip(piece, model.entries(columns), strict=True):
                yield [*row, *said.values()]


if __name__ == "__main__":
    main()
