"""A method, registered; one that is not; and a method that is made already."""

from __future__ import annotations

from outside_parts.rules import Soft
from plumbline.evaluation import Bam
from plumbline.methods import Method, compose, method
from plumbline.spaces import LogBetween


@method("our own notes, page 3", search={"radius": LogBetween(0.01, 0.1)})
def soft_bam(clip: float = 1.0, radius: float = 0.05) -> Method:
    """BAM with a clipping that has no corner."""
    return compose(evaluation=Bam(radius), clipping=Soft(clip), name="soft_bam")


def soft_sgd(clip: float = 1.0) -> Method:
    """DP-SGD with a clipping that has no corner."""
    return compose(clipping=Soft(clip), name="soft_sgd")


def not_a_method() -> Soft:
    """Forgets to compose."""
    return Soft()


MADE = soft_sgd(0.5)
