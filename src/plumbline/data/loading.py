"""Data sets by name or reference: ``load``."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from plumbline.data.base import DATASETS, Splits
from plumbline.data.own import as_splits
from plumbline.registry import MARK, check_options, options_of

CONVERSION = frozenset(options_of(as_splits)) - {"data"}
"""The options of ``as_splits``."""


def load(reference: str, **options: Any) -> Splits:
    """A data set by name or reference, with the options of its loader.

    Args:
        reference: A registered name, such as "adult"; or ``"package.module:attribute"`` of a
            function that returns a data set, or of the data set itself, in any form that
            ``as_splits`` takes.
        options: What the function is called with. Options of ``as_splits`` that the function does
            not have go there (``target``, ``test_fraction``, ``seed``, ...).
    """
    what = f"The data set {reference!r}"
    found = loader = DATASETS.find(reference)
    later = options
    if callable(loader) and not isinstance(loader, Dataset):
        later = {
            k: v for k, v in options.items() if k in CONVERSION and k not in options_of(loader)
        }
        own = {name: value for name, value in options.items() if name not in later}
        check_options(what, loader, own)
        found = loader(**own)
    if isinstance(found, Splits):
        if later:  # it has no use for them
            check_options(what, loader if callable(loader) else lambda: None, options)
        return found
    check_options(what, as_splits, {"data": found, **later})
    return as_splits(found, **{"name": reference.rpartition(MARK)[2], **later})
