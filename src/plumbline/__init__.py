"""Plumbline trains PyTorch models with differential privacy and shows what clipping does.

Names are loaded when they are first used, so that reading a ledger does not wait for torch's
optimizers and the accountants.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from plumbline import gradients, methods
    from plumbline.mechanism.calibration import Budget
    from plumbline.mechanism.ledger import Ledger
    from plumbline.private_training import make_private
    from plumbline.training import Private, PublicData, batch_loss, suggest_fixes

__all__ = [
    "Budget",
    "Ledger",
    "Private",
    "PublicData",
    "batch_loss",
    "gradients",
    "make_private",
    "methods",
    "suggest_fixes",
]

_WHERE = {
    "Budget": "mechanism.calibration",
    "Ledger": "mechanism.ledger",
    "Private": "training",
    "PublicData": "training",
    "batch_loss": "training",
    "make_private": "private_training",
    "suggest_fixes": "training",
}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"plumbline.{_WHERE[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"plumbline.{name}")
    raise AttributeError(f"module 'plumbline' has no attribute {name!r}")
