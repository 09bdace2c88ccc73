"""Each record's gradient at the weights as they are."""

from __future__ import annotations

from plumbline.evaluation.base import Evaluation, evaluation


@evaluation
class Plain(Evaluation):
    """The ordinary gradient."""

    slot = "weights"
