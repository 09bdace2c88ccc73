"""Which files may leave with a model, which stay with the data, and why.

Guarantee: an export has the files of ``LEAVES`` and no others, whatever else lies in the folder of
the run. ``STAYS`` only says why; a file that it does not know stays as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

LEAVES = {
    "README.md": "the model card: what it is, what is guaranteed, how it is used",
    "statement.txt": "the guarantee in words, with what it rests on and does not cover",
    "model.pt": "the weights, which epsilon covers",
    "model.pt2": "the same with the network, as a torch.export program",
    "model.json": "the network's layers, the classes, and epsilon rounded up",
    "encoding.json": "how rows become numbers: declared, or found privately and paid for",
    "predict.py": "predicts with torch and numpy alone",
    "rows/": "what predict.py needs of Plumbline: how rows are read",
    "manifest.json": "the SHA-256 of each of these",
}
"""The files of an export, and what they are."""

STAYS = {
    "*.PRIVATE*": "state of single records, or digests of the data: no guarantee covers it",
    "*.journal": "what the last steps released, to go on from: of no use to others",
    "checkpoint.pt": "where the run goes on: of no use to others",
    "ledger": "what was charged, perhaps to other runs too; `plumbline verify` needs it",
    "account.json": "names the ledgers that the run shares with others: files of this machine",
    "result.json": "exact metrics of held-out records: epsilon does not cover them",
    "metrics.jsonl": "exact metrics along the run: epsilon does not cover them",
    "diagnos*.jsonl": "measured on exact gradients: epsilon does not cover it",
    "recipe.json": "names files of this machine, and the seed",
    "versions.json": "what the run was made with: in model.json",
    "manifest.json": "hashes of all of these, by which a guess of one can be tested",
    "log.csv": "exact metrics along the run: epsilon does not cover them",
    "tensorboard": "exact metrics along the run: epsilon does not cover them",
    "*.html": "a page of exact figures: epsilon does not cover them",
    "*.csv": "rows, or what is predicted of them",
    "*.parquet": "rows, or what is predicted of them",
    "*.jsonl": "rows, or what is predicted of them",
}
"""What stays, by pattern, and why."""


def listed(files: Iterable[str]) -> dict[str, str]:
    """Which entries of ``LEAVES`` files are, with what they are.

    Raises:
        ValueError: If one of the files is not on the list.
    """
    there = {f"{top}{mark}" for top, mark, _ in (name.partition("/") for name in files)}
    if other := there - LEAVES.keys():
        raise ValueError(f"{', '.join(sorted(other))} must not leave: it is not on the list.")
    return {name: why for name, why in LEAVES.items() if name in there}


def staying(run: Path) -> dict[str, str]:
    """What of a run's folder does not leave as it is, and why."""
    names = sorted(path.name for path in run.iterdir())
    return {name: _why(name) for name in names if name not in LEAVES or name in STAYS}


def _why(name: str) -> str:
    found = (why for pattern, why in STAYS.items() if fnmatch(name, pattern))
    return next(found, "not on the list of what may leave")
