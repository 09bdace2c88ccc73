"""Plumbline trains PyTorch models with differential privacy and shows what clipping does.

Public names are imported when they are first used, so that reading a ledger does not wait for
torch's optimizers and the accountants.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors read: the same names as in _MODULES
    __version__: str
    from plumbline import auditing as auditing
    from plumbline import augmentations as augmentations
    from plumbline import clipping as clipping
    from plumbline import data as data
    from plumbline import diagnostics as diagnostics
    from plumbline import evaluation as evaluation
    from plumbline import experiments as experiments
    from plumbline import fairness as fairness
    from plumbline import gradients as gradients
    from plumbline import instruments as instruments
    from plumbline import mechanism as mechanism
    from plumbline import methods as methods
    from plumbline import models as models
    from plumbline import noise as noise
    from plumbline import report as report
    from plumbline.instruments import compare as compare
    from plumbline.instruments import diagnose as diagnose
    from plumbline.instruments import export as export
    from plumbline.instruments import load as load
    from plumbline.instruments import train as train
    from plumbline.instruments import tune as tune
    from plumbline.mechanism.calibration import Budget as Budget
    from plumbline.mechanism.ledger import Ledger as Ledger
    from plumbline.private_training import make_private as make_private
    from plumbline.training import Private as Private
    from plumbline.training import PublicData as PublicData
    from plumbline.training import batch_loss as batch_loss
    from plumbline.training import suggest_fixes as suggest_fixes

_MODULES = {
    "Budget": "plumbline.mechanism.calibration",
    "Ledger": "plumbline.mechanism.ledger",
    "Private": "plumbline.training",
    "PublicData": "plumbline.training",
    "auditing": "plumbline",
    "augmentations": "plumbline",
    "batch_loss": "plumbline.training",
    "clipping": "plumbline",
    "compare": "plumbline.instruments",
    "data": "plumbline",
    "diagnose": "plumbline.instruments",
    "diagnostics": "plumbline",
    "evaluation": "plumbline",
    "export": "plumbline.instruments",
    "experiments": "plumbline",
    "fairness": "plumbline",
    "gradients": "plumbline",
    "instruments": "plumbline",
    "load": "plumbline.instruments",
    "make_private": "plumbline.private_training",
    "mechanism": "plumbline",
    "methods": "plumbline",
    "models": "plumbline",
    "noise": "plumbline",
    "report": "plumbline",
    "suggest_fixes": "plumbline.training",
    "train": "plumbline.instruments",
    "tune": "plumbline.instruments",
}
"""The module that each public name is imported from. Add a name here and above."""

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name == "__version__":  # pyproject.toml has the number, and an installation its copy
        from importlib.metadata import version

        return version(__name__)
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'plumbline' has no attribute {name!r}")
    if module == __name__:
        return importlib.import_module(f"plumbline.{name}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", *(name for name in globals() if name.startswith("__"))])
