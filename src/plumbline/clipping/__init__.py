"""By what factor each record's gradient is scaled, and the L2 bound that this proves.

Every file of this folder is imported, and registers its clippings when it is (``@clipping``).
"""

from plumbline.clipping.automatic import Automatic, Normalised
from plumbline.clipping.averaged import Averaged, GroupBatchNorm
from plumbline.clipping.base import CLIPPINGS, Clipping, RecordNorms, clipping
from plumbline.clipping.flat import Flat, Unclipped
from plumbline.clipping.global_scaling import Global, GlobalAdapt
from plumbline.clipping.groups import PerGroup
from plumbline.clipping.per_layer import PerLayer
from plumbline.clipping.quantile import QuantileAdaptive
from plumbline.mechanism.release import Program
from plumbline.registry import import_files

__all__ = [
    "CLIPPINGS",
    "Automatic",
    "Averaged",
    "Clipping",
    "Flat",
    "Global",
    "GlobalAdapt",
    "GroupBatchNorm",
    "Normalised",
    "PerGroup",
    "PerLayer",
    "Program",
    "QuantileAdaptive",
    "RecordNorms",
    "Unclipped",
    "clipping",
]

import_files(__name__, __path__)
