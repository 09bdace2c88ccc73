"""At which weights, and on which views, each record's gradient is taken.

Every file of this folder is imported, and registers its rules when it is (``@evaluation``).
"""

from plumbline.evaluation.base import (
    EVALUATIONS,
    Ask,
    Batch,
    Chunk,
    Evaluation,
    Rows,
    Slot,
    Update,
    evaluation,
)
from plumbline.evaluation.bias_aware import Bam, BamExact
from plumbline.evaluation.momentum import InnerMomentum, OuterMomentum, RecordMomentum
from plumbline.evaluation.perturbation import PreClipNoise
from plumbline.evaluation.plain import Plain
from plumbline.evaluation.public import BatchClipping, predict
from plumbline.evaluation.sharpness import DpSam, DpSat, DpSatMomentum, GradientNormPenalty
from plumbline.evaluation.views import Views
from plumbline.registry import import_files

__all__ = [
    "EVALUATIONS",
    "Ask",
    "Bam",
    "BamExact",
    "Batch",
    "BatchClipping",
    "Chunk",
    "DpSam",
    "DpSat",
    "DpSatMomentum",
    "Evaluation",
    "GradientNormPenalty",
    "InnerMomentum",
    "OuterMomentum",
    "Plain",
    "PreClipNoise",
    "RecordMomentum",
    "Rows",
    "Slot",
    "Update",
    "Views",
    "evaluation",
    "predict",
]

import_files(__name__, __path__)
