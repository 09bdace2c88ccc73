"""The probe that a recipe asks for, with its files: readings along the run, and those of its end.

The first line of the file says that epsilon covers none of it. A run that goes on from a checkpoint
has every reading once.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from plumbline.data import Splits
from plumbline.diagnostics import NOT_COVERED, Probe, Reading
from plumbline.experiments.files import append_row, kept_rows, read_rows, write_bytes, write_json
from plumbline.experiments.run_spec import RunSpec
from plumbline.training import Private

DIAGNOSTICS, FINAL_FILE, START = "diagnostics.jsonl", "final.json", "start.pt"
AFTERWARDS = "diagnosed.jsonl"


def probe_of(spec: RunSpec, private: Private, splits: Splits, folder: Path) -> Probe:
    """The probe of a run, with what an earlier session has recorded.

    Rows beyond the checkpoint that the run goes on from are dropped: they will come again.
    """
    part = spec.recipe.probe
    if part is None:
        raise ValueError("The recipe has no part 'probe', and so nothing to measure.")

    def record(reading: Reading) -> None:
        row = reading.to_json()
        if reading.when == "along":
            append_row(folder / DIAGNOSTICS, row)
        else:
            write_json(folder / FINAL_FILE, {"label": NOT_COVERED, **row})

    probe = Probe(
        every=part.every,
        records=part.records,
        measure=part.measure,
        group_names=dict(enumerate(splits.groups)),
        seed=spec.seed,
        on_reading=record,
    )
    kept_rows(folder / DIAGNOSTICS, private.steps_done, head=[{"label": NOT_COVERED}])
    if probe.needs_start:
        _keep_start(probe, private, folder / START)
    return probe


def keep_reading(folder: Path, row: Mapping[str, Any]) -> None:
    """Keeps what was measured after a run in its folder, where its page finds it.

    In a file of its own: the run's manifest has the hashes of what was there when it ended.
    """
    for line in ({"label": NOT_COVERED}, row):
        append_row(folder / AFTERWARDS, line)


def readings_of(folder: Path) -> list[dict[str, Any]]:
    """What was measured along a run; or afterwards, if nothing was."""
    return read_rows(folder / DIAGNOSTICS) or read_rows(folder / AFTERWARDS)


def _keep_start(probe: Probe, private: Private, path: Path) -> None:
    """The first weights, also for a session that goes on later."""
    probe.begin(private)
    if probe.start is not None:
        content = BytesIO()
        torch.save(dict(probe.start), content)
        write_bytes(path, content.getvalue())
    elif path.is_file():
        stored: Any = torch.load(path, weights_only=True)
        probe.start = stored
