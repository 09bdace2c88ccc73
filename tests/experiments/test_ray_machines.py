"""A Ray cluster of several machines, one of which is lost: its runs are made elsewhere, once.

The machines are Ray's own processes for them, all on this one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.experiments.test_ray_pool import require_made_once


@pytest.fixture
def address() -> Iterator[str]:
    """HOST:PORT of a head without a core and two machines with one each."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    machines = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        for _ in range(2):
            machines.add_node(num_cpus=1)
        yield machines.address
    finally:
        ray.shutdown()
        machines.shutdown()


@pytest.mark.slow
def test_a_lost_machine_s_run_is_neither_lost_nor_made_twice(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STATE", "CONFIG"):
        monkeypatch.setenv(f"PLUMBLINE_{name}", str(tmp_path / name))
    require_made_once(address, "secure", tmp_path, machine=True)
