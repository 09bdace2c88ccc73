"""Load: a million records through a private run, and a ledger of 100,000 steps.

`python -m benchmarks.load` writes a table of 1,000,000 records x 100 features, trains on it with
`plumbline train` in a process of its own, and prints that process's peak memory; then it opens a
ledger with 100,000 charges. The marks are 1.5 GB and one second.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.own_process import taken
from plumbline.mechanism import ledger_format as lines
from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.release import GaussianQuery, PoissonSampling, StepRelease

RECORDS, FEATURES, STEPS = 1_000_000, 100, 100_000
BYTES_MARK, SECONDS_MARK = 1_500_000_000, 1.0
_BLOCK = 20_000  # records that are different; the table repeats them


def write_table(path: Path, records: int, features: int) -> Path:
    """A csv file of whole numbers and two classes, which a linear model can tell apart."""
    random = np.random.default_rng(0)
    numbers = random.integers(0, 1000, (min(records, _BLOCK), features))
    high = numbers[:, : max(1, features // 10)].mean(1) > 500
    rows = [
        ",".join(map(str, row)) + (",high\n" if label else ",low\n")
        for row, label in zip(numbers.tolist(), high.tolist(), strict=True)
    ]
    with path.open("w", encoding="ascii") as stream:
        stream.write(",".join(f"f{place}" for place in range(features)) + ",income\n")
        for start in range(0, records, len(rows)):
            stream.writelines(rows[: records - start])
    return path


def train(table: Path, folder: Path, batch: int, epochs: float) -> dict[str, float]:
    """Trains on a table in a process of its own; its peak memory, and the seconds."""
    command = [sys.executable, "-m", "plumbline", "train", "--from-data", "--data", str(table)]
    command += ["--target", "income", "--method", "dpsgd", "--batch", str(batch)]
    command += ["--epochs", str(epochs), "--epsilon", "3", "--out", str(folder), "--json"]
    found = taken(command)
    (kept,) = folder.rglob("result.json")  # in the folder of its one run
    result = json.loads(kept.read_text(encoding="utf-8"))
    return {
        "peak bytes": found.peak_bytes,
        "seconds": found.seconds,
        "steps": result["steps"],
        "epsilon": result["epsilon"],
        "accuracy": result["report"]["overall"]["accuracy"],
    }


def write_ledger(path: Path, steps: int) -> Path:
    """The ledger of a seeded run of so many steps: a line for each."""
    query = GaussianQuery(name="gradient", sensitivity=1.0, noise_multiplier=2.0)
    release = StepRelease(sampling=PoissonSampling(rate=0.01), queries=(query,)).to_dict()
    declared = {"session": "0" * 16, "pid": 1, "run": "long", "most": 1, "release": release}
    end = lines.Position(0, lines.GENESIS)
    with path.open("wb") as stream:
        for fields in (
            {"kind": "ledger", "format": lines.FORMAT, "id": "0" * 16, "limit": None},
            {"kind": "release", **declared},
            *(
                {
                    "kind": "charge",
                    "of": 0,
                    "step": step,
                    "count": 1,
                    "noise": [step, f"{step:032x}"],
                }
                for step in range(steps)
            ),
        ):
            line, end = lines.encode(fields, end)
            stream.write(line)
    return path


def open_ledger(path: Path, rounds: int = 5) -> dict[str, float]:
    """The seconds that opening takes, the fastest of some: others may be at work beside it."""
    times, processor = [], []
    for _ in range(rounds):
        start, busy = time.perf_counter(), time.process_time()
        with Ledger.open(path) as ledger:
            times.append(time.perf_counter() - start)
            processor.append(time.process_time() - busy)
            assert ledger.charged("long")
    return {"seconds": min(times), "processor seconds": min(processor)}


def main() -> None:
    """Prints the figures, as JSON too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--features", type=int, default=FEATURES)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=STEPS, help="of the ledger")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        table = write_table(root / "load.csv", arguments.records, arguments.features)
        found: dict[str, Any] = {
            "table bytes": table.stat().st_size,
            "run": train(table, root / "run", arguments.batch, arguments.epochs),
            "ledger": open_ledger(write_ledger(root / "ledger", arguments.steps)),
        }
    print(json.dumps(found, indent=2))
    peak, seconds = found["run"]["peak bytes"] / 1e9, found["ledger"]["seconds"]
    print(f"peak memory {peak:.2f} GB, of at most {BYTES_MARK / 1e9:g}")
    print(f"a ledger of {arguments.steps:,} steps opened in {seconds:.2f} s, of at most 1")


if __name__ == "__main__":
    main()
