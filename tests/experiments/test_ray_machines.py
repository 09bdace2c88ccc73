"""A Ray cluster of several machines, one of which is lost: its runs are made elsewhere, once.

The machines are Ray's own processes for them, all on this one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.experiments.patient_ray import patient_cluster
from tests.experiments.test_ray_pool import require_made_once


@pytest.mark.slow
def test_a_lost_machine_s_run_is_neither_lost_nor_made_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STATE", "CONFIG"):
        monkeypatch.setenv(f"PLUMBLINE_{name}", str(tmp_path / name))
    with patient_cluster(0, 1, 1) as address:  # the head makes no run
        require_made_once(address, "secure", tmp_path, machine=True)
