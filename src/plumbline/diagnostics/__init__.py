"""What clipping did to the gradient: the papers' measurements as one instrument.

Everything here reads raw gradients of private records and is not covered by epsilon.
"""

from plumbline.diagnostics.ascent import (
    AscentDirections,
    ascent_directions,
    successive_cosines,
)
from plumbline.diagnostics.base import (
    NOT_COVERED,
    Number,
    Sample,
    Undefined,
    plain,
)
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
from plumbline.diagnostics.curvature import (
    Density,
    Hessian,
    Spectrum,
    Trace,
    density,
    spectrum,
    trace,
)
from plumbline.diagnostics.excessive_risk import (
    ExcessiveRisk,
    RiskGapBounds,
    excessive_risk,
    risk_gap_bounds,
)
from plumbline.diagnostics.landscape import (
    Landscape,
    interpolation,
    landscape,
)
from plumbline.diagnostics.norms import (
    Norms,
    norms,
)
from plumbline.diagnostics.probe import (
    MEASUREMENTS,
    Probe,
    Reading,
)
from plumbline.diagnostics.sampling_noise import (
    ClippedBound,
    NormalisedBound,
    SamplingNoise,
    clipped_bound,
    normalised_bound,
    over_iterates,
    sampling_noise,
    under_averaging,
)
from plumbline.diagnostics.sharpness import (
    ClippingBound,
    NoisyStep,
    clipping_bound,
    descend_two_minima,
    estimated_sharpness,
    noise_bound,
    two_minima,
)
from plumbline.diagnostics.symmetry import (
    Convergence,
    MixtureBound,
    PerturbationBound,
    Symmetry,
    convergence,
    mixture_bound,
    perturbation_bound,
    projections,
    symmetry,
)
from plumbline.diagnostics.verdict import (
    Evidence,
    Finding,
    Verdict,
    causes,
    explained_by_rate,
    verdict,
)

__all__ = [
    "MEASUREMENTS",
    "NOT_COVERED",
    "AscentDirections",
    "Bias",
    "BiasAtSize",
    "ClippedBound",
    "ClippingBound",
    "Convergence",
    "Density",
    "ErrorParts",
    "Evidence",
    "ExcessiveRisk",
    "Finding",
    "Hessian",
    "Landscape",
    "MixtureBound",
    "NoisyStep",
    "NormalisedBound",
    "Norms",
    "Number",
    "PenaltyBound",
    "PerturbationBound",
    "Probe",
    "Reading",
    "RiskGapBounds",
    "Sample",
    "SamplingNoise",
    "Spectrum",
    "Symmetry",
    "Trace",
    "Undefined",
    "Verdict",
    "ascent_directions",
    "bias",
    "bias_by_batch_size",
    "causes",
    "clipped_bound",
    "clipping_bound",
    "convergence",
    "density",
    "descend_two_minima",
    "error_parts",
    "estimated_sharpness",
    "excessive_risk",
    "explained_by_rate",
    "interpolation",
    "landscape",
    "mixture_bound",
    "noise_bound",
    "normalised_bound",
    "norms",
    "over_iterates",
    "penalty_bound",
    "perturbation_bound",
    "plain",
    "projections",
    "risk_gap_bounds",
    "sampling_noise",
    "spectrum",
    "successive_cosines",
    "symmetry",
    "trace",
    "two_minima",
    "under_averaging",
    "verdict",
]
