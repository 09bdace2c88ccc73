"""Plumbline trains PyTorch models with differential privacy and shows what clipping does."""

__version__ = "0.1.0.dev0"

from plumbline import gradients, methods
from plumbline.mechanism.calibration import Budget
from plumbline.mechanism.ledger import Ledger
from plumbline.training import (
    Private,
    PublicData,
    batch_loss,
    make_private,
    resume,
    suggest_fixes,
)

__all__ = [
    "Budget",
    "Ledger",
    "Private",
    "PublicData",
    "batch_loss",
    "gradients",
    "make_private",
    "methods",
    "resume",
    "suggest_fixes",
]
