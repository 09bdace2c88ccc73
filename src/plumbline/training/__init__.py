"""Private training in the user's own loop: ``make_private`` and its accounted step."""

from plumbline.training.batches import PrivateBatch
from plumbline.training.checkpoint import CheckpointMismatch, resume, save
from plumbline.training.checkpoint_file import CheckpointError
from plumbline.training.distributed import RankFailed, RankLost, RanksDisagree
from plumbline.training.fitting import Callback, StepInfo, StopFitting
from plumbline.training.fixes import Fix, fixes, suggest_fixes
from plumbline.training.losses import BatchLoss, batch_loss
from plumbline.training.making import make_private
from plumbline.training.private import BatchRefused, BudgetSpent, Private
from plumbline.training.public import PublicData

__all__ = [
    "BatchLoss",
    "BatchRefused",
    "BudgetSpent",
    "Callback",
    "CheckpointError",
    "CheckpointMismatch",
    "Fix",
    "Private",
    "PrivateBatch",
    "PublicData",
    "RankFailed",
    "RankLost",
    "RanksDisagree",
    "StepInfo",
    "StopFitting",
    "batch_loss",
    "fixes",
    "make_private",
    "resume",
    "save",
    "suggest_fixes",
]
