"""What clipping did to the gradient: the papers' measurements as one instrument.

Everything here reads raw gradients of private records and is not covered by epsilon.
"""

from plumbline.diagnostics.base import NOT_COVERED, Number, Sample, Undefined, plain
from plumbline.diagnostics.bias import (
    Bias,
    BiasAtSize,
    ErrorParts,
    PenaltyBound,
    bias,
    bias_by_batch_size,
    error_parts,
    penalty_bound,
)
from plumbline.diagnostics.norms import Norms, norms

__all__ = [
    "NOT_COVERED",
    "Bias",
    "BiasAtSize",
    "ErrorParts",
    "Norms",
    "Number",
    "PenaltyBound",
    "Sample",
    "Undefined",
    "bias",
    "bias_by_batch_size",
    "error_parts",
    "norms",
    "penalty_bound",
    "plain",
]
