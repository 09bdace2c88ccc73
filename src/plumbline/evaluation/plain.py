"""Each record's gradient at the weights as they are."""

from __future__ import annotations

from plumbline.evaluation.base import Chunk, Evaluation
from plumbline.gradients import PerSampleGradients


class Plain(Evaluation):
    """The ordinary gradient."""

    def gradients(self, chunk: Chunk) -> PerSampleGradients:
        return chunk.capture()
