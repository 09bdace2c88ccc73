"""The page of a run or a comparison: one HTML file, readable without a network.

``write(folder)`` writes it; ``words(read(folder))`` is its verdict, for a terminal. What epsilon
does not cover is marked on it.
"""

from plumbline.report.reading import Study, read
from plumbline.report.verdict import words
from plumbline.report.writing import write

__all__ = ["Study", "read", "words", "write"]
