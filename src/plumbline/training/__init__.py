"""Private training: what the user gave (``Setup``), the run (``start``) and its accounted step."""

from plumbline.training.batches import PrivateBatch
from plumbline.training.checkpoint import CheckpointMismatch
from plumbline.training.checkpoint_file import CheckpointError
from plumbline.training.distributed import RankFailed, RankLost, RanksDisagree
from plumbline.training.fitting import Callback, StepInfo, StopFitting
from plumbline.training.fixes import Fix, fixes, suggest_fixes
from plumbline.training.loggers import (
    CSVLogger,
    Logger,
    LoggingFailed,
    MLflowLogger,
    TensorBoardLogger,
)
from plumbline.training.looping import BatchRefused, RunFinished
from plumbline.training.losses import BatchLoss, batch_loss
from plumbline.training.parameters import WeightsMoved
from plumbline.training.private import BudgetSpent, Private
from plumbline.training.public import PublicData
from plumbline.training.session import start
from plumbline.training.setup import Setup
from plumbline.training.step_losses import BadRecords, NotCovered
from plumbline.training.worker_stream import WorkersFailed

__all__ = [
    "BadRecords",
    "BatchLoss",
    "BatchRefused",
    "BudgetSpent",
    "CSVLogger",
    "Callback",
    "CheckpointError",
    "CheckpointMismatch",
    "Fix",
    "Logger",
    "LoggingFailed",
    "MLflowLogger",
    "NotCovered",
    "Private",
    "PrivateBatch",
    "PublicData",
    "RankFailed",
    "RankLost",
    "RanksDisagree",
    "RunFinished",
    "Setup",
    "StepInfo",
    "StopFitting",
    "TensorBoardLogger",
    "WeightsMoved",
    "WorkersFailed",
    "batch_loss",
    "fixes",
    "start",
    "suggest_fixes",
]
