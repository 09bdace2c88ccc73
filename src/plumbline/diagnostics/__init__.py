"""What clipping did to the gradient: the papers' measurements as one instrument.

Everything here reads raw gradients of private records and is not covered by epsilon.
"""

from plumbline.diagnostics.ascent import (
    AscentDirections,
    adjacent_batches,
    ascent_directions,
    successive_cosines,
)
from plumbline.diagnostics.base import NOT_COVERED, Sample
from plumbline.diagnostics.bias import (
    Bias,
    BiasAtSize,
    ErrorParts,
    bias,
    bias_by_batch_size,
    error_parts,
)
from plumbline.diagnostics.curvature import (
    Density,
    Hessian,
    Operator,
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
    filter_normalised,
    interpolation,
    landscape,
)
from plumbline.diagnostics.look import DIAGNOSTICS, Diagnostic, Look, diagnostic
from plumbline.diagnostics.norms import NormDistribution, norms
from plumbline.diagnostics.probe import Probe, Reading, chosen
from plumbline.diagnostics.sampling_noise import (
    SamplingNoise,
    deviations,
    over_iterates,
    sampling_noise,
    under_averaging,
)
from plumbline.diagnostics.sharpness import (
    NoisyStep,
    descend_two_minima,
    estimated_sharpness,
    noise_bound,
    two_minima,
)
from plumbline.diagnostics.symmetry import Symmetry, projections, symmetry
from plumbline.diagnostics.through_method import sample_of
from plumbline.diagnostics.verdict import (
    Evidence,
    Finding,
    Verdict,
    causes,
    verdict,
)
from plumbline.results import Number, Undefined, to_json

__all__ = [
    "DIAGNOSTICS",
    "NOT_COVERED",
    "AscentDirections",
    "Bias",
    "BiasAtSize",
    "Density",
    "Diagnostic",
    "ErrorParts",
    "Evidence",
    "ExcessiveRisk",
    "Finding",
    "Hessian",
    "Landscape",
    "Look",
    "NoisyStep",
    "NormDistribution",
    "Number",
    "Operator",
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
    "adjacent_batches",
    "ascent_directions",
    "bias",
    "bias_by_batch_size",
    "causes",
    "chosen",
    "density",
    "descend_two_minima",
    "deviations",
    "diagnostic",
    "error_parts",
    "estimated_sharpness",
    "excessive_risk",
    "filter_normalised",
    "interpolation",
    "landscape",
    "noise_bound",
    "norms",
    "over_iterates",
    "projections",
    "risk_gap_bounds",
    "sample_of",
    "sampling_noise",
    "spectrum",
    "successive_cosines",
    "symmetry",
    "to_json",
    "trace",
    "two_minima",
    "under_averaging",
    "verdict",
]
