"""At which weights, and on which views, each record's gradient is taken."""

from plumbline.evaluation.base import Batch, Chunk, Evaluation
from plumbline.evaluation.plain import Plain

__all__ = ["Batch", "Chunk", "Evaluation", "Plain"]
