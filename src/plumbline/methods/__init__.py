"""The papers' methods by name, and their free combination.

Every file of this folder is imported, and registers its methods when it is (``@method``).
"""

from plumbline.methods.base import Method
from plumbline.methods.baselines import (
    clipped_only,
    direction_only,
    gradient_norm_penalty,
    group_batchnorm,
    magnitude_only,
    nonprivate,
    nonprivate_sam,
)
from plumbline.methods.composing import compose
from plumbline.methods.fairlens import fairlens
from plumbline.methods.papers import (
    adaptive,
    automatic,
    averaged,
    bam,
    bam_exact,
    batch_clipping,
    dp_gd_momentum,
    dp_sam,
    dp_sat,
    dp_sat_momentum,
    dpsgd,
    dpsgd_f,
    global_adapt,
    global_scaling,
    inner_outer,
    normalised,
    per_layer,
    pre_clip_noise,
    self_augmented,
)
from plumbline.methods.registry import METHODS, Entry, find, method, table
from plumbline.registry import import_files

__all__ = [
    "METHODS",
    "Entry",
    "Method",
    "adaptive",
    "automatic",
    "averaged",
    "bam",
    "bam_exact",
    "batch_clipping",
    "clipped_only",
    "compose",
    "direction_only",
    "dp_gd_momentum",
    "dp_sam",
    "dp_sat",
    "dp_sat_momentum",
    "dpsgd",
    "dpsgd_f",
    "fairlens",
    "find",
    "global_adapt",
    "global_scaling",
    "gradient_norm_penalty",
    "group_batchnorm",
    "inner_outer",
    "magnitude_only",
    "method",
    "nonprivate",
    "nonprivate_sam",
    "normalised",
    "per_layer",
    "pre_clip_noise",
    "self_augmented",
    "table",
]

import_files(__name__, __path__)
