"""By what factor each record's gradient is scaled, and the L2 bound that this proves."""

from plumbline.clipping.automatic import Automatic, Normalised
from plumbline.clipping.averaged import Averaged, GroupBatchNorm
from plumbline.clipping.base import Clipping, Program, RecordNorms
from plumbline.clipping.flat import Flat, Unclipped
from plumbline.clipping.global_scaling import Global, GlobalAdapt
from plumbline.clipping.groups import PerGroup
from plumbline.clipping.per_layer import PerLayer
from plumbline.clipping.quantile import QuantileAdaptive

CLIPPINGS: tuple[type[Clipping], ...] = (
    Flat,
    Normalised,
    Automatic,
    PerLayer,
    QuantileAdaptive,
    Global,
    GlobalAdapt,
    PerGroup,
    Averaged,
    GroupBatchNorm,
    Unclipped,
)
"""Every strategy: the contract tests, the benchmarks and the docs take them from here."""

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
]
