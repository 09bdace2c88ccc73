"""Studies: each makes the numbers of a kind of table or figure. A new kind is one file here."""

from plumbline.experiments.studies import (  # noqa: F401
    benchmark,
    clipping_examples,
    comparison,
    risk_bounds,
    symmetry_over_training,
    two_minima,
)
from plumbline.experiments.studies.base import STUDIES, Job, Measured, Measurements, study

__all__ = ["STUDIES", "Job", "Measured", "Measurements", "study"]
