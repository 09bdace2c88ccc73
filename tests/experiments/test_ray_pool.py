"""Runs on a Ray cluster: the same bits as here, and a killed worker's run is neither lost nor
made twice. The fast tests have a stand-in for Ray that calls a task where it stands.
"""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plumbline.experiments import RunSpec, compare, ray_pool, run_result
from plumbline.experiments.charging import read_account
from plumbline.experiments.engines import workers_for
from plumbline.experiments.files import LEDGER
from plumbline.experiments.pool import Workers
from plumbline.experiments.ray_pool import ClusterError, RayWorkers, connect
from plumbline.experiments.recipe import RecipeError
from plumbline.experiments.reproducing import reproduce
from plumbline.instruments import compare as compare_data
from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.shared_ledger import SharedLedger
from tests.experiments import small_table
from tests.experiments.patient_ray import patient_cluster
from tests.experiments.small import recipe, spec
from tests.experiments.test_sharding import weights


class Lost(Exception):
    """Ray's error for a process that was lost once too often."""


class Failed(Lost):
    """Ray's error around that of a task."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


class StandIn(SimpleNamespace):
    """What is used of Ray: a task is called when its result is asked for."""

    def __init__(self) -> None:
        super().__init__(exceptions=SimpleNamespace(RayError=Lost, RayTaskError=Failed))
        self.cancelled: list[Any] = []
        self.before: Callable[[], None] = lambda: None

    def is_initialized(self) -> bool:
        return True

    def remote(self, max_retries: int) -> Callable[..., Any]:
        assert max_retries > 0
        return lambda task: SimpleNamespace(remote=lambda *given: _Reference(lambda: task(*given)))

    def wait(self, tasks: list[Any], num_returns: int, timeout: float) -> tuple[Any, Any]:
        return tasks[:num_returns], tasks[num_returns:]

    def get(self, task: Any) -> None:
        try:
            self.before()
            task.call()
        except Lost:
            raise
        except Exception as error:
            raise Failed(error) from error

    def cancel(self, task: Any, force: bool) -> None:
        assert force
        self.cancelled.append(task)


class _Reference:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = StandIn()
    monkeypatch.setitem(sys.modules, "ray", found)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(os.getcwd())
    for name in ("PLUMBLINE_STATE", "PLUMBLINE_CONFIG"):  # which a task sets; restored afterwards
        monkeypatch.setenv(name, os.environ.get(name, ""))
    return found


def specs(seeds: int = 2) -> list[RunSpec]:
    return [spec(seed=seed) for seed in range(seeds)]


def test_tasks_make_the_runs_and_are_counted(stand_in: StandIn, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    with RayWorkers("auto") as workers:
        there = workers.run(specs(), tmp_path / "there", lambda p: told.append((p.done, p.total)))
    assert told == [(0, 2), (1, 2), (2, 2)]
    assert [result.seed for result in there] == [0, 1]
    assert not list(tmp_path.rglob(".ray-*"))
    stand_in.before = lambda: pytest.fail("repeated")
    with RayWorkers("auto") as workers:
        assert workers.run(specs(), tmp_path / "there") == there


def test_an_error_of_a_run_is_its_own_and_ends_the_others(
    stand_in: StandIn, tmp_path: Path
) -> None:
    wrong = {"name": "sgd", "learning_rate": 0.1, "options": {"momentum": -1.0}}  # seen by torch
    failing = [spec(seed=seed, optimizer=wrong) for seed in range(3)]
    with pytest.raises(ValueError, match="momentum"), RayWorkers("auto") as workers:
        workers.run(failing, tmp_path)
    assert len(stand_in.cancelled) == 2


def test_a_run_that_is_lost_too_often_says_how_to_go_on(stand_in: StandIn, tmp_path: Path) -> None:
    def lose() -> None:
        raise Lost

    stand_in.before = lose
    with pytest.raises(ClusterError, match="same command again"), RayWorkers("auto") as workers:
        workers.run(specs(1), tmp_path)


def test_a_run_that_ended_there_is_never_made_here(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_pool, "_LAG_SECONDS", 0)
    monkeypatch.setattr(ray_pool, "_made_there", lambda *_: None)  # its files do not appear
    with pytest.raises(ClusterError, match="lags behind"), RayWorkers("auto") as workers:
        workers.run(specs(1), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_the_folder_makes_nothing(stand_in: StandIn, tmp_path: Path) -> None:
    def gone() -> None:
        for beacon in tmp_path.glob(".ray-*"):
            beacon.rename(tmp_path / "elsewhere")

    stand_in.before = gone
    with (
        pytest.raises(ClusterError, match=r"not the folder of .* Nothing of this run was charged"),
        RayWorkers("auto") as workers,
    ):
        workers.run(specs(1), tmp_path)
    assert not list(tmp_path.rglob("ledger*"))


def test_a_machine_that_locks_do_not_reach_makes_nothing(stand_in: StandIn, tmp_path: Path) -> None:
    def unlocked() -> None:  # another file of the same name, as a copy would be
        for beacon in tmp_path.glob(".ray-*"):
            beacon.rename(tmp_path / "original")
            beacon.touch()

    stand_in.before = unlocked
    with (
        pytest.raises(ClusterError, match="locks do not reach"),
        RayWorkers("auto") as workers,
    ):
        workers.run(specs(1), tmp_path)
    assert not list(tmp_path.rglob("ledger*"))


@pytest.mark.parametrize("other", ["torch", "source"])
def test_other_versions_make_nothing(
    other: str, stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {**ray_pool.same_bits(), other: "1"}
    stand_in.before = lambda: monkeypatch.setattr(ray_pool, "same_bits", lambda: there)
    with pytest.raises(ClusterError, match="other versions"), RayWorkers("auto") as workers:
        workers.run(specs(1), tmp_path)
    assert not list(tmp_path.rglob("ledger*"))


def test_a_commit_in_the_meantime_changes_no_bits(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in.before = lambda: monkeypatch.setattr(run_result, "commit", lambda: "0123456789")
    with RayWorkers("auto") as workers:
        assert len(workers.run(specs(1), tmp_path)) == 1


def test_where_runs_share_a_ledger_its_folder_is_shared_too(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "ledgers" / "all"
    seen: list[list[Path]] = []
    stand_in.before = lambda: seen.append([one.parent for one in tmp_path.rglob(".ray-*")])
    monkeypatch.setenv("PLUMBLINE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PLUMBLINE_CONFIG", str(tmp_path / "config"))
    with RayWorkers("auto") as workers:
        workers.run(specs(1), tmp_path / "runs", ledger=named)
        (done,) = specs(1)
        assert sum(count for _, count in SharedLedger.read(named).entries()) == 10
        table = tmp_path / "people.csv"
        table.write_text("age,married\n" + "".join(f"{n},{'ny'[n % 2]}\n" for n in range(20, 60)))
        monkeypatch.setattr(ray_pool, "table_source", lambda data: table)
        folders = ray_pool._shared_folders([done], tmp_path / "runs", None)
    assert set(seen[0]) == {tmp_path / "runs", tmp_path / "ledgers"}
    assert folders == [tmp_path / one for one in ("runs", "state", "config")]


def test_ray_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"plumbline\[ray\]"):
        connect("auto")


def test_an_address_that_does_not_answer_charges_nothing(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ClusterError, match=r"No Ray cluster answers .* Nothing was charged"):
        compare_data("demo", folder=tmp_path, ray=f"127.0.0.1:{port}")
    with pytest.raises(ValueError, match="HOST:PORT"):
        compare_data("demo", folder=tmp_path, ray="somewhere")
    assert list(tmp_path.iterdir()) == []


def test_a_process_has_one_cluster(stand_in: StandIn) -> None:
    with pytest.raises(ClusterError, match="connected to a cluster already"):
        connect("10.0.0.1:6379")


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    for given in ({"shard": "1/2"}, {"workers": 2}):
        with pytest.raises(RecipeError, match="leave out --shard and --workers"):
            workers_for(ray="auto", **given)  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="leave out --shard and --ray"):
        reproduce("002-table-4", folder=tmp_path, ray="auto")
    with pytest.raises(RecipeError, match="leave out --shard and --ray"):
        compare_data("demo", folder=tmp_path, ray="auto", private_selection=True)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of Ray on this machine, with two workers."""
    with patient_cluster(2) as address:
        yield address


@pytest.mark.slow
def test_a_cluster_makes_the_same_bits(cluster: str, tmp_path: Path) -> None:
    one = recipe(seeds=[0])
    with RayWorkers(cluster) as workers:
        there = compare(one, tmp_path / "there", workers=workers)
    here = compare(one, tmp_path / "here", workers=1)
    assert [row.seeds for row in there.rows] == [row.seeds for row in here.rows]
    assert weights(tmp_path / "there", one) == weights(tmp_path / "here", one)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_a_killed_worker_s_run_is_neither_lost_nor_made_twice(
    cluster: str, noise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STATE", "CONFIG"):
        monkeypatch.setenv(f"PLUMBLINE_{name}", str(tmp_path / name))
    require_made_once(cluster, noise, tmp_path)


def require_made_once(address: str, noise: str, tmp_path: Path, **killed: Any) -> None:
    """Makes two runs on a cluster, the first to come to its eighth step being killed there."""
    mark, steps = tmp_path / "killed", 12
    dying = {"mark": str(mark), "at": 8, **killed}
    one = small_table.recipe(
        small_table.patients(tmp_path / "patients.csv"),
        seeds=[0, 1],
        noise=noise,
        optimizer={
            "name": "tests.experiments.dying:Dying",
            "learning_rate": 0.1,
            "options": dying,
        },
        budget={"epsilon": 3.0, "delta": 1e-5, "steps": steps, "expected_batch_size": 60},
    )
    both = [RunSpec(one, one.methods[0], seed) for seed in one.seeds]
    with RayWorkers(address) as workers:
        made = workers.run(both, tmp_path / "there")
    assert mark.exists()
    assert [result.steps for result in made] == [steps, steps]
    account = read_account(tmp_path / "there" / both[0].folder)
    assert account is not None
    table = SharedLedger.read(account.ledgers[0])
    assert table.path.is_relative_to(tmp_path / "STATE")
    for each in both:
        own = Ledger.read(tmp_path / "there" / each.folder / LEDGER)
        assert sum(count for _, count in own.entries()) == steps
        there = sum(count for _, count in table.entries(next(iter(own.runs()))))
        # Seeded runs have no journal: what the table was charged ahead is not given back.
        assert there == steps if noise == "secure" else there >= steps
    if noise == "seeded":
        with Workers(1) as workers:
            workers.run(both, tmp_path / "here")
        assert weights(tmp_path / "there", one) == weights(tmp_path / "here", one)
