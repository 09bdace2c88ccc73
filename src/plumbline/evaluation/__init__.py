"""At which weights, and on which views, each record's gradient is taken."""

from plumbline.evaluation.base import Ask, Batch, Chunk, Evaluation, Rows, Slot, Update
from plumbline.evaluation.bias_aware import Bam, BamExact
from plumbline.evaluation.momentum import InnerMomentum, OuterMomentum, RecordMomentum
from plumbline.evaluation.perturbation import PreClipNoise
from plumbline.evaluation.plain import Plain
from plumbline.evaluation.public import BatchClipping, predict
from plumbline.evaluation.sharpness import DpSam, DpSat, DpSatMomentum, GradientNormPenalty
from plumbline.evaluation.views import Views

EVALUATIONS: tuple[type[Evaluation], ...] = (
    Plain,
    DpSam,
    DpSat,
    DpSatMomentum,
    GradientNormPenalty,
    Bam,
    BamExact,
    InnerMomentum,
    RecordMomentum,
    OuterMomentum,
    Views,
    BatchClipping,
    PreClipNoise,
)
"""Every rule: the contract tests and the docs take them from here."""

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
    "predict",
]
