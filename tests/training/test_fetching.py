"""Worker processes fetch the records of the next steps, and nothing else changes."""

import gc
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten
from torch.utils.data import get_worker_info

import plumbline as pl
from plumbline.clipping import Averaged, Flat
from plumbline.evaluation import DpSam
from plumbline.gradients.errors import RecordsMixError
from plumbline.methods import compose
from plumbline.record_errors import RecordError
from plumbline.training import WorkersFailed
from plumbline.training.records import records_of
from plumbline.training.stacking import UnequalRecords
from tests.training import small
from tests.training.ranks import in_ranks, values, warm
from tests.training.reading import Logged, Noisy, loader

USERS = (torch.arange(small.RECORDS) * 7) % 13


@pytest.fixture(autouse=True)
def _nobody_is_left() -> Iterator[None]:
    yield
    if multiprocessing.active_children():
        gc.collect()  # a run that a cycle holds ends its workers when it is found
    assert not multiprocessing.active_children()


def private(dataset: Any, **settings: Any) -> pl.Private:
    return small.private(small.network(), dataset, **settings)


def trained(dataset: Any, **settings: Any) -> Tensor:
    mine = private(dataset, **settings)
    small.run(mine)
    return small.weights(mine.model)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunks": {"max_physical_batch": 3},
    "users": {"user_ids": USERS, "plan": small.budget(expected_batch_size=4)},
    "two questions": {
        "method": compose(evaluation=(DpSam(0.05),), clipping=Flat(0.5), name="sam"),
        "max_physical_batch": 4,
    },
    "buckets": {"method": compose(clipping=Averaged(0.5, 3), name="buckets")},
    "hardly anyone": {"plan": small.budget(expected_batch_size=1)},
}


@pytest.mark.parametrize("case", CASES)
def test_the_same_bits_with_workers(case: str) -> None:
    expected = trained(Noisy(), **CASES[case])
    assert torch.equal(trained(loader(Noisy(), 2), **CASES[case]), expected)


def test_the_same_bits_with_any_number_of_workers() -> None:
    expected = trained(loader(Noisy(), 0))
    assert torch.equal(trained(Noisy()), expected)
    for settings in ({"num_workers": 1, "prefetch_factor": 1}, {"num_workers": 8}):
        assert torch.equal(trained(loader(Noisy(), **settings)), expected)


def test_the_users_random_numbers_are_left_alone() -> None:
    def after(workers: int) -> tuple[float, float]:
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        trained(loader(Noisy(), workers))
        return float(torch.rand(())), np.random.rand()  # noqa: NPY002

    assert after(2) == after(0)


def wait_until(holds: Callable[[], bool]) -> None:
    """Waits; a test that waits for a minute has failed."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_several_processes_fetch_ahead_and_this_one_fetches_nothing(tmp_path: Path) -> None:
    dataset = Logged(tmp_path / "log")
    mine = private(loader(dataset, 3), plan=small.budget(expected_batch_size=20))
    loop = iter(mine)
    first = next(loop)
    mine.step(first)
    # Nobody has asked for the second batch.
    second = {*mine._batch(1).indices.tolist()}
    wait_until(lambda: second <= {number for _, _, number in dataset.reads()})
    loop.close()
    small.run(mine)
    processes = {process for _, process, _ in dataset.reads()}
    assert len(processes) == 3
    assert os.getpid() not in processes


def test_what_workers_have_fetched_is_asked_for_in_any_order_and_beside_other_records() -> None:
    mine, plain = (private(one) for one in (loader(Noisy()), Noisy()))
    batch = mine.draw()
    others = torch.tensor(
        [number for number in range(small.RECORDS) if number not in batch.indices]
    )
    for wanted in (batch.indices.flip(0), torch.cat([others[:3], batch.indices[2:4], others[3:]])):
        found = mine.fetch(wanted, 0)
        for one, expected in zip(found, plain.fetch(wanted, 0), strict=True):
            assert torch.equal(one, expected)
    mine.close()


class OfAllKinds(Noisy):
    """Small and large, nested, of types that NumPy does not have, and not tensors."""

    def __getitem__(self, number: int) -> Any:
        x, y = super().__getitem__(number)
        return {
            "half": x.bfloat16(),
            "large": x.repeat(2000),
            "pair": [number % 2 == 0, (1j * x, y)],
            "unit": "mm",
        }


def mine_collate(rows: list[Any]) -> Any:
    (row,) = rows
    unit = row.pop("unit")
    return {**torch.utils.data.default_collate([row]), "unit": unit}


def test_records_of_all_kinds_arrive_as_they_are() -> None:
    mine, plain = (
        private(loader(OfAllKinds(), count, collate_fn=mine_collate)) for count in (2, 0)
    )
    numbers = mine.draw().indices
    found, expected = (tree_flatten(one.fetch(numbers)) for one in (mine, plain))
    assert found[1] == expected[1]
    for leaf, other in zip(found[0], expected[0], strict=True):
        assert torch.equal(leaf, other) if isinstance(leaf, Tensor) else leaf == other == "mm"
        assert getattr(leaf, "dtype", None) == getattr(other, "dtype", None)
    mine.close()


def test_a_pass_does_not_see_what_another_wrote() -> None:
    mine = private(loader(Noisy(), 1))
    batch = mine.draw()
    first = mine.fetch(batch.indices)[0]
    kept = first.clone()
    first.zero_()
    assert torch.equal(mine.fetch(batch.indices)[0], kept)
    mine.close()


def test_after_a_break_the_same_batch_is_there(tmp_path: Path) -> None:
    dataset = Logged(tmp_path / "log")
    mine = private(loader(dataset))
    mine.fetch(next(iter(mine)).indices)
    assert torch.equal(trained(Noisy()), (small.run(mine), small.weights(mine.model))[1])
    asked = sum(len(mine._batch(step)) for step in range(4))
    assert len(dataset.reads()) < 2 * asked


class ReadByWorkers(Noisy):
    """Can be read where a worker has opened it."""

    opened = False

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if not self.opened:
            raise OSError("it is closed")
        return super().__getitem__(number)


def opening(worker: int) -> None:
    info: Any = get_worker_info()
    assert info.id == worker
    assert info.num_workers == 2
    info.dataset.opened = True


def test_the_users_own_start_of_a_worker_finds_the_users_data_set() -> None:
    given = loader(ReadByWorkers(), worker_init_fn=opening)
    assert torch.equal(trained(given), trained(Noisy()))


def failing(worker: int) -> None:
    raise LookupError("no such disk")


def test_a_worker_that_cannot_start() -> None:
    mine = private(loader(Noisy(), worker_init_fn=failing))
    with pytest.raises(LookupError, match="no such disk"):
        small.run(mine)
    assert mine.charged == 0


class Unreadable(Noisy):
    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if number == 17:
            raise ValueError(f"{float(self.x[number, 0])} is not allowed")
        return super().__getitem__(number)


def test_a_record_that_cannot_be_read_is_named_and_nothing_is_charged() -> None:
    mine = private(loader(Unreadable()), plan=small.budget(expected_batch_size=small.RECORDS))
    with pytest.raises(RecordError, match=r"^Record 17 of the data set .* ValueError") as told:
        small.run(mine)
    assert f"{float(small.data()[0][17, 0]):.3f}" not in str(told.value)
    assert "Traceback" not in str(told.value)
    assert mine.charged == 0
    assert not multiprocessing.active_children()


class Ragged(Noisy):
    """One record is longer, in a piece of its own."""

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(number)
        return (torch.zeros(7) if number == 39 else x), y


def test_records_that_do_not_fit_together_are_refused_also_from_different_workers() -> None:
    everyone = small.budget(expected_batch_size=small.RECORDS)
    for given in (loader(Ragged()), loader(Ragged(), 8), Ragged()):
        with pytest.raises(UnequalRecords, match=r"pad_to=\{'0': 128\}"):
            small.run(private(given, plan=everyone))


class OtherInEveryProcess(Noisy):
    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(number)
        return x + os.getpid(), y


class Remembers(Noisy):
    last = torch.zeros(6)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(number)
        mixed, self.last = (x + self.last) / 2, x
        return mixed, y


class Holds(Noisy):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        torch.rand(1, generator=self.generator)
        return super().__getitem__(number)


@pytest.mark.parametrize("kind", [OtherInEveryProcess, Remembers, Holds])
def test_what_a_data_set_keeps_in_a_worker_is_refused_before_anything_is_charged(
    kind: type[Noisy],
) -> None:
    # Eight workers, so that hardly any record is read again by the process that read it first.
    mine = private(loader(kind(), 8), plan=small.budget(expected_batch_size=small.RECORDS))
    with pytest.raises(RecordsMixError, match=r"(fetched twice|drawn from).* anew for each record"):
        small.run(mine)
    assert mine.charged == 0


RNG = np.random.default_rng(0)


class GlobalGenerator(Noisy):
    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        RNG.random()
        return super().__getitem__(number)


def test_generators_are_found_again_in_a_process_that_is_given_a_copy() -> None:
    for kind in (Holds, GlobalGenerator):
        records = pickle.loads(pickle.dumps(records_of(kind())))
        with pytest.raises(RecordsMixError, match="drawn from"):
            records.fetch(torch.tensor([1]), "key")


class Dies(Noisy):
    """Kills the process that reads record 17, once."""

    def __init__(self, grave: Path) -> None:
        super().__init__()
        self.grave = grave

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if number == 17 and not self.grave.exists():
            self.grave.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(number)


def test_a_worker_that_dies(tmp_path: Path) -> None:
    everyone = small.budget(expected_batch_size=small.RECORDS)
    mine = private(loader(Dies(tmp_path / "grave"), timeout=2), plan=everyone)
    with pytest.raises(WorkersFailed, match=r"step 0 were not fetched.*Nothing was charged"):
        small.run(mine)
    assert mine.charged == 0
    assert not multiprocessing.active_children()
    # And a new loop goes on, with new workers.
    patient = private(loader(Dies(tmp_path / "grave")), plan=everyone)
    small.run(patient)
    assert torch.equal(small.weights(patient.model), trained(Noisy(), plan=everyone))


def test_the_death_of_a_worker_is_noticed_when_it_is_waited_for() -> None:
    """Before that, no error comes from nowhere: the step may be at work on the weights."""
    mine = private(loader(Noisy()))
    mine.step(mine.draw())
    for worker in multiprocessing.active_children():
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(WorkersFailed, match="Nothing was charged"):
        small.run(mine)
    assert mine.charged == mine.steps_done
    small.run(mine)
    assert mine.made == 4


def test_an_error_in_a_step_ends_the_workers_and_a_new_loop_starts_others() -> None:
    mine = private(loader(Noisy()))
    mine.fetch(next(iter(mine)).indices)
    with pytest.raises(pl.training.BatchRefused):
        mine.step(mine._batch(0))
    assert not multiprocessing.active_children()
    small.run(mine)
    assert torch.equal(small.weights(mine.model), trained(Noisy()))


def test_ctrl_c_does_not_end_workers() -> None:
    mine = private(loader(Noisy()))
    for batch in mine:
        mine.step(batch)
        for worker in multiprocessing.active_children():
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGINT)
    assert mine.steps_done == 4


def test_workers_end_with_the_run_and_when_it_goes_away() -> None:
    mine = private(loader(Noisy(), persistent_workers=True))
    for batch in mine:
        assert multiprocessing.active_children()
        mine.step(batch)
    assert not multiprocessing.active_children()
    forgotten = private(loader(Noisy()))
    forgotten.step(next(iter(forgotten)))
    assert multiprocessing.active_children()
    del forgotten
    gc.collect()
    assert not multiprocessing.active_children()


def test_rows_of_tensors_need_no_workers() -> None:
    mine = private(loader(torch.utils.data.TensorDataset(*small.data())))
    mine.step(next(iter(mine)))
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_workers_that_are_not_forked() -> None:
    given = loader(ReadByWorkers(), worker_init_fn=opening, multiprocessing_context="spawn")
    assert torch.equal(trained(given), trained(Noisy()))


def test_each_rank_fetches_its_own_share(tmp_path: Path) -> None:
    warm()

    def work(rank: int) -> tuple[Tensor, int, list[tuple[int, int, int]], int]:
        dataset = Logged(tmp_path / f"log {rank}")
        mine = private(loader(dataset), plan=small.budget(expected_batch_size=20))
        share = sum(len(chunk) for step in range(4) for chunk in mine._own_chunks(step))
        small.run(mine)
        return small.weights(mine.model), share, dataset.reads(), os.getpid()

    def plainly(rank: int) -> Tensor:
        return trained(Noisy(), plan=small.budget(expected_batch_size=20))

    expected = values(in_ranks(2, plainly, tmp_path))
    for rank, (weights, share, reads, process) in enumerate(values(in_ranks(2, work, tmp_path))):
        assert torch.equal(weights, expected[rank])
        # Before the first step, ranks compare the order of their records: 64 reads of their own.
        of_workers = [parent for parent, reader, _ in reads if reader != process]
        assert len(reads) - len(of_workers) == 64
        assert set(of_workers) == {process}
        # Six for each test of records read twice.
        assert share <= len(of_workers) <= share + 4 * 6
