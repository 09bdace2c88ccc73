"""The pictures of pages in the documentation: what a reader of each guide will see.

`python -m docs.figures.pages` follows the guide on tables with the practice table of
`examples/patients.py`, and compares the methods of the demo; then it opens the pages in chromium
and writes the pictures into `docs/images`. What is finished in its folder is read, not made again.
Half an hour on two cores the first time; `--folder` says where the runs are kept.

Noise is drawn anew by every run, so that other pictures have other numbers.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from PIL import Image

from tests.report.browsing import browser, open_page, picture

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
RUN = "runs/patients/Global-Adapt-*"
COMMANDS = (
    "python examples/patients.py",
    "plumbline train --data patients.csv --schema examples/patients.schema.toml "
    "--target readmitted --sensitive sex --drop patient,cost",
    f"plumbline diagnose {RUN}",
    f"plumbline compare {RUN} --epsilon 0.5,1,3,8 --trials 3 --out comparison",
    "plumbline compare demo",
)
"""What is run; all but the last is in the guide on tables, and `tests/test_docs.py` looks there."""
COLOURS = 96  # of a picture, so that it stays small
WIDTH = 1280


def main() -> None:
    """Makes what is missing, and takes the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "pages")
    folder = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(ROOT / "examples")
    for command in COMMANDS:
        run(command, folder)
    (one,) = folder.glob(f"{RUN}/report.html")
    compared = folder / "comparison" / "patients" / "report.html"
    demo = folder / "runs" / "demo" / "report.html"
    with browser() as driver:
        take(driver, one, "run-page", ["#verdict"], height=1000)
        take(driver, one, "run-groups", ["#learned .table"])
        take(driver, one, "run-statement", ["#statement"], height=760)
        take(driver, compared, "comparison-page", ["#verdict"], height=1110)
        take(driver, compared, "comparison-epsilons", ["#epsilons .table", "#epsilons .caption"])
        take(driver, demo, "page", ["#verdict"], height=900)
        take(driver, demo, "demo-bending", ["figure:has(#bending-vectors-full)"])


def run(command: str, folder: Path) -> None:
    """A command as a reader gives it, in a folder; what it finds finished it does not repeat."""
    print(f"$ {command}", flush=True)
    words = [word for one in shlex.split(command) for word in expanded(one, folder)]
    program = {"python": [sys.executable], "plumbline": [sys.executable, "-m", "plumbline"]}
    # Charged to a ledger of its own, not to the user's.
    own = {f"PLUMBLINE_{name}": str(folder / name.lower()) for name in ("STATE", "CONFIG")}
    environment = {**os.environ, "COLUMNS": "100", **own}
    subprocess.run([*program[words[0]], *words[1:]], cwd=folder, env=environment, check=True)


def expanded(word: str, folder: Path) -> list[str]:
    """A word as the shell expands it."""
    found = sorted(str(path.relative_to(folder)) for path in folder.glob(word) if "*" in word)
    return found or [word]


def take(driver: Any, page: Path, name: str, parts: list[str], height: int | None = None) -> None:
    """A picture of parts of a page that stand below each other, cut off at a height."""
    open_page(driver, page, width=WIDTH)
    boxes = [
        driver.execute_script(
            "const box = document.querySelector(arguments[0]).getBoundingClientRect();"
            "return [box.left, box.top + scrollY, box.right, box.bottom + scrollY];",
            part,
        )
        for part in parts
    ]
    left, top = min(box[0] for box in boxes) - 16, min(box[1] for box in boxes) - 4
    right, bottom = max(box[2] for box in boxes) + 16, max(box[3] for box in boxes) + 12
    tall = bottom - top if height is None else min(height, bottom - top)
    taken = picture(driver, {"x": left, "y": top, "width": right - left, "height": tall})
    small = Image.open(io.BytesIO(taken)).convert("RGB").quantize(COLOURS)
    small.save(IMAGES / f"{name}.png", optimize=True)
    print(f"{name}.png: {(IMAGES / f'{name}.png').stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main()
