"""Per-record gradients, without building them: the algebra that everything else builds on.

``capture`` runs a model once forward and once backward and returns ``PerSampleGradients``, on which
norms, weighted sums, inner products, combinations and pools are cheap. This package knows nothing
about privacy.
"""

from plumbline.gradients.allocator import release_memory
from plumbline.gradients.capturing import Isolation, Loss, Perturbation, capture
from plumbline.gradients.errors import (
    CaptureError,
    EscapedParameterError,
    LossError,
    RecordsMixError,
    UnsupportedModelError,
)
from plumbline.gradients.explain import Explanation, explain
from plumbline.gradients.hessian import hvp
from plumbline.gradients.jitter import jitter
from plumbline.gradients.kernels import KERNELS
from plumbline.gradients.layers import register_all
from plumbline.gradients.layers.batch_norm import own_statistics
from plumbline.gradients.one_record import each_record
from plumbline.gradients.per_sample import PerSampleGradients

register_all()
combine = PerSampleGradients.combine

__all__ = [
    "KERNELS",
    "CaptureError",
    "EscapedParameterError",
    "Explanation",
    "Isolation",
    "Loss",
    "LossError",
    "PerSampleGradients",
    "Perturbation",
    "RecordsMixError",
    "UnsupportedModelError",
    "capture",
    "combine",
    "each_record",
    "explain",
    "hvp",
    "jitter",
    "own_statistics",
    "release_memory",
]
