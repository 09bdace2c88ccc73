"""Export: a run's model as a folder that is safe to ship, and why it is."""

from plumbline.experiments.exporting.leaving import LEAVES, STAYS
from plumbline.experiments.exporting.safety import NotExported
from plumbline.experiments.exporting.writing import Export, export

__all__ = ["LEAVES", "STAYS", "Export", "NotExported", "export"]
