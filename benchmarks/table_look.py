"""One look at a large table: `plumbline data look` on a million rows x 100 columns.

`python -m benchmarks.table_look` writes a csv file with columns of every kind, looks at it in a
process of its own, and prints the seconds and that process's peak memory. The marks are a minute
and 1 GB.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.own_process import taken

RECORDS, COLUMNS = 1_000_000, 100
SECONDS_MARK, BYTES_MARK = 60.0, 1_000_000_000
_BLOCK = 20_000  # rows that are written at a time, each of them drawn anew

KINDS: dict[str, tuple[int, Callable[[random.Random, int], str]]] = {
    "number": (50, lambda draw, row: f"{draw.random() * 1000:.3f}"),
    "whole": (15, lambda draw, row: str(draw.randrange(1000))),
    "gaps": (10, lambda draw, row: f"{draw.random():.4f}" if draw.random() > 0.2 else ""),
    "category": (10, lambda draw, row: draw.choice(("north", "south", "east", "west"))),
    "boolean": (4, lambda draw, row: draw.choice(("yes", "no"))),
    "date": (4, lambda draw, row: f"20{draw.randrange(10, 25)}-0{draw.randrange(1, 10)}-15"),
    "code": (3, lambda draw, row: f"{draw.choice('ABCDE')}{draw.randrange(100_000)}"),
    "id": (2, lambda draw, row: f"P{row:09d}"),
    "text": (2, lambda draw, row: f"note {draw.random():.3f} since {draw.randrange(10**6)} days"),
}
"""Of a hundred columns, how many are of each kind, and how their cells are drawn."""


def write_table(path: Path, records: int) -> Path:
    """A csv file with columns of every kind, of which no row is like another."""
    draw = random.Random(0)
    columns = [(f"{kind}{k}", make) for kind, (n, make) in KINDS.items() for k in range(n)]
    with path.open("w", encoding="ascii") as stream:
        stream.write(",".join(name for name, _ in columns) + "\n")
        for start in range(0, records, _BLOCK):
            rows = range(start, min(start + _BLOCK, records))
            stream.writelines(
                ",".join(make(draw, row) for _, make in columns) + "\n" for row in rows
            )
    return path


def look(table: Path) -> dict[str, float]:
    """Looks at a table in a process of its own."""
    command = [sys.executable, "-m", "plumbline", "data", "look", str(table), "--json"]
    command += ["--target", "boolean0", "--sensitive", "category0"]
    out = table.with_suffix(".json")
    took = taken(command, out)
    found = json.loads(out.read_text(encoding="utf-8"))
    return {
        "rows": found["rows"],
        "columns": len(found["columns"]),
        "seconds": took.seconds,
        "processor seconds": took.processor_seconds,
        "peak bytes": took.peak_bytes,
    }


def main() -> None:
    """Prints what a look takes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--records", type=int, default=RECORDS)
    with tempfile.TemporaryDirectory() as folder:
        table = write_table(Path(folder) / "table.csv", parser.parse_args().records)
        size = table.stat().st_size / 1e6
        found = look(table)
    print(
        f"{found['rows']:,} rows x {found['columns']} columns, {size:,.0f} MB: "
        f"{found['seconds']:.1f} s ({found['processor seconds']:.1f} s of processor time; mark "
        f"{SECONDS_MARK:.0f}), {found['peak bytes'] / 1e6:,.0f} MB at most (mark "
        f"{BYTES_MARK / 1e6:,.0f})"
    )


if __name__ == "__main__":
    main()
