"""Data sets by name, by reference or as they are: ``load``."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from plumbline.data.base import DATASETS, Splits
from plumbline.data.own import as_splits
from plumbline.data.table_files import is_frame
from plumbline.data.tables import table
from plumbline.registry import MARK, check_options, options_of

_SEED = "seed"


def load(what: Any, *, split_seed: int | None = None, **options: Any) -> Splits:
    """A data set, with the options of its loader.

    Args:
        what: A registered name, such as "adult"; ``"package.module:attribute"``; or an object. A
            function is called; what it returns, or the object itself, may have any form that
            ``as_splits`` takes, or be a pandas DataFrame.
        split_seed: Decides which records are held out, wherever no ``seed`` is given.
        options: What the function is called with. Those that it does not have go to ``as_splits``,
            or to ``table`` for a DataFrame (``target``, ``sensitive``, ``test_fraction``, ...).
    """
    named = isinstance(what, str)
    title = f"The data set {what!r}" if named else "The data"
    found = loader = DATASETS.find(what) if named else what
    seeded = {} if split_seed is None or _SEED in options else {_SEED: split_seed}
    later = options
    if callable(loader) and not isinstance(loader, Dataset):
        accepted = options_of(loader)
        shared = {*options_of(as_splits), *options_of(table)}
        later = {k: v for k, v in options.items() if k in shared and k not in accepted}
        own = {name: value for name, value in options.items() if name not in later}
        own |= seeded if _SEED in accepted else {}
        check_options(title, loader, own)
        found = loader(**own)
    if isinstance(found, Splits):
        if later:  # it has no use for them
            check_options(title, loader if callable(loader) else lambda: None, options)
        return found
    convert, name = (table, "path") if is_frame(found) else (as_splits, "data")
    label = {"name": what.rpartition(MARK)[2]} if named and convert is as_splits else {}
    check_options(title, convert, {name: found, **label, **seeded, **later})
    return convert(found, **{**label, **seeded, **later})
