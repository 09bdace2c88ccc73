"""docs/reproductions.md: every reproduction that has been made here, with its verdicts.

`python -m benchmarks.reproductions [NAME[:SIZE] ...]` makes those named (what is finished in
the folder of runs is not repeated), keeps each as benchmarks/results/reproductions/NAME.md, and
writes the page from all that are kept.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from plumbline.experiments.reproducing import reproduce

ROOT = Path(__file__).parents[1]
KEPT = Path(__file__).parent / "results" / "reproductions"
HEAD = """# Reproductions

The papers' tables and figures, made with the recipes in `recipes/papers`, the published numbers
beside ours. A row is *reproduced* when all of its values lie within the tolerance of the published
file, *reproduced in direction only* when they lie on the published side of the reference row. A
claim that holds at the paper's settings and no longer when every method is tuned alike is
*explained by tuning*. This page is written by `python -m benchmarks.reproductions`.

"""


def main() -> None:
    """Makes, keeps, writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="such as 004-table-4:paper; quick unless said")
    parser.add_argument("--out", default="runs", help="where runs are kept")
    options = parser.parse_args()
    console = Console()
    KEPT.mkdir(parents=True, exist_ok=True)
    for given in options.names:
        name, _, size = given.partition(":")
        chosen: Any = size or "quick"
        with console.status(name) as status:
            found = reproduce(
                name,
                chosen,
                options.out,
                on_progress=lambda p, s=status, n=name: s.update(
                    f"{n}: {p.done} of {p.total} runs"
                ),
            )
        (KEPT / f"{name}.md").write_text(str(found), encoding="utf-8")
        console.print(str(found), highlight=False, soft_wrap=True)
    pages = [path.read_text(encoding="utf-8") for path in sorted(KEPT.glob("*.md"))]
    (ROOT / "docs" / "reproductions.md").write_text(HEAD + "\n".join(pages), encoding="utf-8")


if __name__ == "__main__":
    main()
