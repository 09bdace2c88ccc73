"""What the files of an export say: settings, weights, code, hashes."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from importlib import resources
from typing import Any

import torch
from torch import Tensor, nn

from plumbline.experiments.exporting.network import layers_of, reference_of
from plumbline.experiments.exporting.predict import build
from plumbline.experiments.exporting.safety import NotExported
from plumbline.experiments.files import VERSIONS, read_json
from plumbline.experiments.named_code import UnsafeCode, require_declared
from plumbline.experiments.verification import Verification
from plumbline.mechanism.rounding import rounded_up
from plumbline.results import to_json

FORMAT, KIND = 1, "plumbline export"
SCRIPT, ROWS = "predict.py", "rows"
_COPIED = ("json_rows.py", "table_cells.py", "table_dates.py")
"""The files of ``plumbline.data`` that predict.py needs; they need nothing else of Plumbline."""


def settings_of(found: Verification, model: nn.Module, *, threshold: bool) -> dict[str, Any]:
    """The content of model.json."""
    result, spec = found.claim.result, found.claim.spec
    assert result is not None
    assert found.epsilon is not None
    network = layers_of(model)
    if network is None:
        reference = reference_of(spec.model.name)
        if reference is None:
            raise NotExported(
                f"Not exported: the network of the run in {found.claim.folder} was given as a "
                "Python object of a class of your own, which nobody else could load. Put the class "
                "into a module, and name it as package.module:attribute."
            )
        try:
            require_declared("model", reference)
        except UnsafeCode as error:
            raise NotExported(f"Not exported: {error}") from error
        network = {"reference": reference, "options": result["model"]["options"]}
    return {
        "kind": KIND,
        "format": FORMAT,
        "method": spec.method.title,
        "epsilon": to_json(float(rounded_up(found.epsilon).replace(",", ""))),
        "delta": found.claim.budget.delta,
        "classes": list(result.get("classes", ())),
        "threshold": result.get("threshold") if threshold else None,
        "network": network,
        "versions": read_json(found.claim.folder / VERSIONS),
    }


def require_same(model: nn.Module, network: Mapping[str, Any], width: int | None) -> None:
    """Refuses a network that, built anew from its description, predicts otherwise."""
    built = build(network)
    built.load_state_dict(model.state_dict())
    if width is not None:
        x = torch.linspace(-1, 1, 4 * width).reshape(4, width)
        with torch.no_grad():
            same = torch.equal(built.eval()(x), model.eval()(x))
        if not same:
            raise NotExported("Not exported: the network, built anew, predicts otherwise.")


def weights_of(model: nn.Module) -> bytes:
    """The parameters and buffers, each by itself: a tensor that is a part of another stays one."""
    state = model.state_dict()
    if other := [name for name, value in state.items() if not isinstance(value, Tensor)]:
        raise NotExported(
            f"Not exported: the network keeps {', '.join(other)} with its weights, which is no "
            "tensor, and of which nobody knows whether epsilon covers it."
        )
    stream = io.BytesIO()
    torch.save({name: one.detach().cpu().clone() for name, one in state.items()}, stream)
    return stream.getvalue()


def standalone() -> dict[str, bytes]:
    """predict.py, and what it needs of Plumbline."""
    own = resources.files(__package__).joinpath(SCRIPT)
    sources = {
        f"{ROWS}/{name}": resources.files("plumbline.data").joinpath(name) for name in _COPIED
    }
    return {
        name: source.read_text("utf-8").replace("from plumbline.data.", f"from {ROWS}.").encode()
        for name, source in {SCRIPT: own, **sources}.items()
    }


def manifest_of(files: Mapping[str, bytes]) -> dict[str, Any]:
    """The content of manifest.json: the SHA-256 of each file."""
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
    return {"kind": KIND, "format": FORMAT, "sha256": hashes}
