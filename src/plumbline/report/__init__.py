"""The page of a run or a comparison: one HTML file, readable without a network.

``write(folder)`` writes it; ``words(read(folder))`` is its verdict, for a terminal; ``figure`` and
``save`` write one of its figures to a file. What epsilon does not cover is marked on it.
"""

from plumbline.report.choosing import diagnosis
from plumbline.report.page import write
from plumbline.report.reading import Study, read
from plumbline.report.saving import figure, figure_names, save
from plumbline.report.section import Figure
from plumbline.report.verdict import words

__all__ = [
    "Figure",
    "Study",
    "diagnosis",
    "figure",
    "figure_names",
    "read",
    "save",
    "words",
    "write",
]
