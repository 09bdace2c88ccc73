"""``write``: the page of a folder, in one file."""

from __future__ import annotations

import os
from pathlib import Path

from plumbline import durable
from plumbline.report.page import page
from plumbline.report.reading import read

FILE = "report.html"


def write(folder: str | os.PathLike[str], path: str | os.PathLike[str] | None = None) -> Path:
    """Writes the page of a comparison or a run.

    Args:
        folder: As ``compare`` or ``run`` left it behind.
        path: Where to; ``report.html`` in the folder by default.

    Returns:
        Where it was written.

    Raises:
        ValueError: If there is no finished run in the folder.
    """
    text = page(read(folder))
    target = Path(folder) / FILE if path is None else Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    durable.write(target, text.encode("utf-8"))
    return target
