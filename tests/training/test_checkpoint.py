import errno
import os
import resource
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map_only

import plumbline
from plumbline import Budget, Ledger
from plumbline.gradients.kernels import KERNELS
from plumbline.mechanism.ledger import LedgerDamaged, NoiseReuse
from plumbline.methods import Method
from plumbline.training import CheckpointError, CheckpointMismatch
from plumbline.training.checkpoint_content import sealed
from plumbline.training.checkpoint_file import PRIVATE_MARK
from tests.training.runs import BUDGET, RECORDS, STEPS, Run, charged, records, weights

REPEATABLE: dict[str, Any] = {"seed": 7, "deterministic": True}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.checkpoint"


def saved(path: Path, run: Run, steps: int = 5) -> None:
    private = run.train(run.make(), steps)
    private.save(path)


# A repeatable run goes on as if nothing had happened.


@pytest.mark.parametrize("kind", ["sgd", "adam", "adam and schedulers", "dropout"])
@pytest.mark.parametrize("stops", [(5,), (1, 4)], ids=["stopped-once", "stopped-twice"])
def test_a_repeatable_run_ends_with_the_same_bits(
    path: Path, kind: str, stops: tuple[int, ...]
) -> None:
    torch.manual_seed(1)
    whole = Run(kind, REPEATABLE)
    whole.train(whole.make())

    torch.manual_seed(1)
    part = Run(kind, REPEATABLE)
    saved(path, part, stops[0])
    for steps in (*stops[1:], STEPS):
        torch.manual_seed(99)  # the new process has another model and another generator
        part = Run(kind, REPEATABLE)
        private = part.train(part.resume(path), steps)
        private.save(path)

    assert private.steps_done == STEPS
    assert torch.equal(weights(part.model), weights(whole.model))
    ours, theirs = part.optimizer.state_dict(), whole.optimizer.state_dict()
    assert ours["param_groups"] == theirs["param_groups"]
    torch.testing.assert_close(ours["state"], theirs["state"], rtol=0, atol=0)
    for mine, other in zip(part.schedulers, whole.schedulers, strict=True):
        assert mine.state_dict() == other.state_dict()


def test_steps_that_are_made_again_are_not_charged_again(path: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    with Ledger.open(tmp_path / "ledger") as ledger:
        first = Run(settings={**REPEATABLE, "ledger": ledger})
        private = first.train(first.make(), 4)
        private.save(path)
        first.train(private, 5)  # lost
    with Ledger.open(tmp_path / "ledger") as ledger:
        again = Run(settings={**REPEATABLE, "ledger": ledger})
        private = again.resume(path)
        assert (private.steps_done, private.charged, len(private)) == (4, 9, 8)
        again.train(private, 5)
        assert torch.equal(weights(again.model), weights(first.model))
        assert private.charged == 9
        again.train(private)
    assert charged(tmp_path / "ledger") == STEPS
    assert "lost" not in private.statement()


def test_noise_that_was_used_is_refused_with_other_inputs(path: Path, tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger") as ledger:
        run = Run(settings={**REPEATABLE, "ledger": ledger})
        private = run.train(run.make(), 4)
        private.save(path)
        run.train(private, 2)
        inputs, labels = records()
        other = Run(settings={**REPEATABLE, "ledger": ledger, "dataset": (2 * inputs, labels)})
        private = other.resume(path)
        before = weights(other.model)
        with pytest.raises(NoiseReuse, match="already used its noise at position 4"):
            other.train(private)
        assert torch.equal(weights(other.model), before)
        assert private.charged == 6


def test_noise_at_another_scale_counts_as_other_inputs(tmp_path: Path) -> None:
    """Nothing is clipped at either bound: the sums are equal, and only the noise's scale differs.

    Two answers would reveal the sum exactly.
    """
    with Ledger.open(tmp_path / "ledger") as ledger:
        for place, clip in enumerate((1e3, 2e3)):
            torch.manual_seed(1)
            method = plumbline.methods.dpsgd(clip=clip)
            run = Run(settings={**REPEATABLE, "ledger": ledger, "method": method})
            if place == 0:
                run.train(run.make(), 1)
            else:
                with pytest.raises(NoiseReuse, match="seed of its own"):
                    run.make()


def test_the_kernels_of_a_resumed_run_are_those_of_a_new_one(path: Path) -> None:
    run = Run(settings=REPEATABLE)
    run.train(run.make(), 2).save(path)
    KERNELS.forget()
    KERNELS.run(("a shape",), {"one": lambda: 1, "other": lambda: 2})
    Run(settings=REPEATABLE).resume(path)
    assert not KERNELS.measure
    assert KERNELS.run(("a shape",), {"one": lambda: 1, "other": lambda: 2}) == 1


# A secure run: fresh randomness, and never less charged.


def test_a_checkpoint_does_not_tell_how_large_a_user_is(path: Path) -> None:
    """As many users, all of them in every step: the first has more records, and others less."""
    told = []
    for size, others in ((3, 93), (65, 31), (65, 62)):
        users = [0] * size + [1 + number % 31 for number in range(others)]
        budget = replace(BUDGET, steps=3, expected_batch_size=32)
        settings = {
            "deterministic": True,
            "user_ids": users,
            "budget": budget,
            "dataset": records(len(users)),
        }
        saved(path, Run(settings=settings), 3)
        stored = torch.load(path, weights_only=True)
        random = {name: stored.pop(name) for name in ("token", "run", "digest")}
        assert all(random.values())
        told.append(repr(tree_map_only(torch.Tensor, lambda value: value.shape, stored)))
    assert told[0] == told[1] == told[2]


def test_a_secure_run_goes_on_with_fresh_randomness(path: Path) -> None:
    torch.manual_seed(1)
    saved(path, Run())
    ends, batches = [], []
    for name in "ab":
        run = Run()
        private = run.resume(shutil.copy(path, path.with_name(name)))
        batches.append(torch.cat([batch.indices for batch in [next(iter(private))]]))
        run.train(private)
        ends.append(weights(run.model))
    assert not torch.equal(*ends)
    assert batches[0].tolist() != batches[1].tolist()


def test_what_a_secure_run_lost_stays_charged(path: Path, tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger") as ledger:
        run = Run(settings={"ledger": ledger})
        private = run.train(run.make(), 5)
        private.save(path)
        run.train(private, 3)  # lost
    with Ledger.open(tmp_path / "ledger") as ledger:
        run = Run(settings={"ledger": ledger})
        private = run.resume(path)
        assert (private.steps_done, private.charged, len(private)) == (8, 8, 4)
        assert private.epsilon(exact=True) == ledger.epsilon(BUDGET.delta)
        run.train(private)
        assert (private.steps_done, private.charged, len(private)) == (STEPS, STEPS, 0)
        assert (private.made, private.lost) == (9, 3)
        assert private.epsilon() == private.plan.epsilon
        assert "3 of the 12 planned steps were charged" in " ".join(private.statement().split())
    assert charged(tmp_path / "ledger") == STEPS


@pytest.mark.parametrize("seed", [None, 7])
def test_a_checkpoint_restored_from_a_backup_is_noticed(
    path: Path, tmp_path: Path, seed: int | None
) -> None:
    with Ledger.open(tmp_path / "ledger") as ledger:
        run = Run(settings={"ledger": ledger, "seed": seed})
        private = run.train(run.make(), 3)
        private.save(path)
        backup = path.read_bytes()
        run.train(private, 4)
        private.save(path)
        later = path.read_bytes()
        run.train(private, 1)  # lost in a crash
    crashed, restored = tmp_path / "crashed", tmp_path / "restored"
    crashed.write_bytes(later)
    restored.write_bytes(backup)
    for place, noticed in ((crashed, False), (restored, True)):
        with Ledger.open(tmp_path / "ledger") as ledger:
            again = Run(settings={"ledger": ledger, "seed": seed}).resume(place)
            words = " ".join(again.statement().split())
            assert again.charged == 8
            assert again.stop - again.steps_done == STEPS - 8
            assert ("knows of a later one, of step 7: the folder was restored" in words) == noticed


def test_a_repeatable_run_may_go_back_to_an_older_checkpoint(path: Path, tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger") as ledger:
        run = Run(settings={"ledger": ledger, **REPEATABLE})
        private = run.train(run.make(), 3)
        private.save(path)
        backup = path.read_bytes()
        run.train(private, 4)
        private.save(path)
    path.write_bytes(backup)
    with Ledger.open(tmp_path / "ledger") as ledger:
        again = Run(settings={"ledger": ledger, **REPEATABLE}).resume(path)
        assert "restored" not in again.statement()
        assert again.stop == STEPS


def test_two_runs_from_one_checkpoint_do_not_spend_twice(path: Path, tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger") as ledger:
        first = Run(settings={"ledger": ledger})
        one = first.train(first.make(), 6)
        one.save(path)
        second = Run(settings={"ledger": ledger})
        two = second.resume(path)
        first.train(one)
        with pytest.raises(plumbline.mechanism.ledger.BudgetExceeded, match="12 of its 12 steps"):
            second.train(two)
    assert charged(tmp_path / "ledger") == STEPS


def test_without_a_ledger_the_statement_warns_of_what_it_cannot_know(path: Path) -> None:
    saved(path, Run())
    run = Run()
    private = run.resume(path)
    assert len(private) == STEPS - 5
    assert private.charged == 5
    assert "has no ledger" in private.statement()
    run.train(private)
    private.save(path)
    assert "has no ledger" in Run().resume(path).statement()


def test_no_key_and_no_seed_is_stored(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[bytes] = []
    entropy = os.urandom

    def watched(size: int) -> bytes:
        keys.append(entropy(size))
        return keys[-1]

    monkeypatch.setattr(os, "urandom", watched)
    run = Run()
    private = run.train(run.make(), 5)
    used = list(keys)
    private.save(path)
    content = path.read_bytes()
    assert used
    assert not [key for key in used if key in content or key.hex().encode() in content]
    saved(path, Run(settings={"seed": 123456789012345}))
    assert b"123456789012345" not in path.read_bytes()
    assert 123456789012345 not in torch.load(path, weights_only=True)["settings"].values()


def test_a_seed_alone_never_uses_the_number_of_a_step_twice(path: Path, tmp_path: Path) -> None:
    batches, ends = [], []
    for _ in range(3):
        with Ledger.open(tmp_path / "ledger") as ledger:
            run = Run(settings={"seed": 7, "ledger": ledger})
            there = path.exists()
            private = run.make(checkpoint=path)
            if not there:
                run.train(private, 4)
                private.save()
            batches.append(next(iter(private)).indices.tolist())
            run.train(private, 2)
            ends.append(weights(run.model))
    assert private.attempt == 0
    assert (private.steps_done, private.made, private.charged) == (10, 10, 10)
    assert len({tuple(batch) for batch in batches}) == 3
    assert not torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[1], ends[2])


def test_a_seed_alone_without_a_ledger_never_repeats_its_noise(path: Path) -> None:
    saved(path, Run(settings={"seed": 7}))
    attempts = {Run(settings={"seed": 7}).resume(path).attempt for _ in range(5)}
    assert len(attempts) == 5
    assert min(attempts) >= 1


def test_a_new_attempt_draws_other_batches_and_other_noise(path: Path) -> None:
    """Two answers about one batch would cost more than two steps."""
    saved(path, Run(settings={"seed": 7}))
    attempts = [Run(settings={"seed": 7}).resume(path) for _ in range(3)]
    batches = {tuple(next(iter(one)).indices.tolist()) for one in attempts}
    noise = {one._noise.stream("noise", one.steps_done).bytes(8) for one in attempts}
    assert len(batches) == len(noise) == 3


# What may not change.

CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "data": ({"dataset": records(RECORDS - 1)}, "number of records is 95 here and 96 in the"),
    "method": (
        {"method": plumbline.methods.clipped_only()},
        "method.name is 'clipped_only' here and 'dpsgd' in the checkpoint",
    ),
    "clip": (
        {"method": plumbline.methods.dpsgd(clip=2.0)},
        "method.clipping.clip is 2.0 here and 1.0 in the checkpoint",
    ),
    "steps": (
        {"budget": replace(BUDGET, steps=STEPS + 1)},
        "budget.steps is 13 here and 12 in the checkpoint",
    ),
    "noise": (
        {"budget": replace(BUDGET, noise_multiplier=0.9)},
        r"budget.noise_multiplier is 0.9 here and 1.0 in the checkpoint",
    ),
    "epsilon": (
        {"budget": replace(BUDGET, noise_multiplier=None, epsilon=3.0)},
        "budget.epsilon is 3.0 here and None in the checkpoint",
    ),
    "delta": (
        {"budget": replace(BUDGET, delta=1e-4)},
        "budget.delta is 0.0001 here and 0.001 in the checkpoint",
    ),
    "relation": (
        {"relation": "replace_one"},
        "relation is 'replace_one' here and 'add_remove' in the checkpoint",
    ),
    "accountant": (
        {"accountant": "rdp"},
        "accountant is 'rdp' here and 'pld' in the checkpoint",
    ),
    "no seed": ({"seed": None}, "a seed given is False here and True in the checkpoint"),
    "another seed": ({"seed": 8}, "the seed is 8 here and another one in the checkpoint"),
    "deterministic": (
        {"deterministic": False},
        "deterministic is False here and True in the checkpoint",
    ),
    "chunks": ({"max_physical_batch": 4}, "max_physical_batch is 4 here and None in the"),
    "users": (
        {"user_ids": [number // 2 for number in range(RECORDS)]},
        "the unit of privacy is 'user' here and 'record' in the checkpoint",
    ),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=list(CHANGES))
def test_a_change_is_refused_and_named(path: Path, change: dict[str, Any], message: str) -> None:
    saved(path, Run(settings=REPEATABLE))
    run = Run(settings={**REPEATABLE, **change})
    before = weights(run.model)
    with pytest.raises(CheckpointMismatch, match=message):
        run.resume(path)
    assert torch.equal(weights(run.model), before)


def test_another_optimizer_or_other_schedulers_are_refused_and_named(path: Path) -> None:
    saved(path, Run("sgd"))
    with pytest.raises(CheckpointMismatch, match="the optimizer is 'Adam' here and 'SGD'"):
        Run("adam").resume(path)
    saved(path, Run("adam"))
    message = "'CosineAnnealingLR, MultiStepLR' here and 'none' in the checkpoint"
    with pytest.raises(CheckpointMismatch, match=message):
        Run("adam and schedulers").resume(path)


def test_a_run_with_a_ledger_needs_it_to_go_on(path: Path, tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger") as ledger:
        saved(path, Run(settings={"ledger": ledger}))
    with pytest.raises(CheckpointMismatch, match="a ledger given is False here and True"):
        Run().resume(path)
    with (
        Ledger.open(tmp_path / "another") as ledger,
        pytest.raises(LedgerDamaged, match="the checkpoint has seen"),
    ):
        Run(settings={"ledger": ledger}).resume(path)


def test_a_ledger_that_lost_its_tail_is_refused(path: Path, tmp_path: Path) -> None:
    place = tmp_path / "ledger"
    with Ledger.open(place) as ledger:
        run = Run(settings={"ledger": ledger})
        private = run.train(run.make(), 2)
        early = place.read_bytes()
        run.train(private, 2)
        private.save(path)
    place.write_bytes(early)
    with Ledger.open(place) as ledger, pytest.raises(LedgerDamaged, match="it is missing"):
        Run(settings={"ledger": ledger}).resume(path)


def test_what_may_change_may(path: Path) -> None:
    saved(path, Run(settings={"budget": Budget(epsilon=3, delta=1e-3, steps=8, sampling_rate=0.1)}))
    same = Budget(epsilon=3.0, delta=1e-3, steps=8, sampling_rate=0.1)
    run = Run(settings={"budget": same, "max_physical_batch": 4})
    private = run.train(run.resume(path))
    assert private.epsilon(exact=True) == private.plan.epsilon <= 3


def test_users_are_resumed(path: Path) -> None:
    settings = {**REPEATABLE, "user_ids": [number // 3 for number in range(RECORDS)]}
    budget = replace(BUDGET, expected_batch_size=8)
    torch.manual_seed(1)
    whole = Run(settings={**settings, "budget": budget})
    whole.train(whole.make())
    torch.manual_seed(1)
    saved(path, Run(settings={**settings, "budget": budget}))
    part = Run(settings={**settings, "budget": budget})
    part.train(part.resume(path))
    assert torch.equal(weights(part.model), weights(whole.model))


# The file.


@pytest.mark.parametrize("kind", ["sgd", "adam and schedulers", "dropout"])
@pytest.mark.parametrize("settings", [{}, REPEATABLE], ids=["secure", "repeatable"])
def test_it_loads_as_weights_only(path: Path, kind: str, settings: dict[str, Any]) -> None:
    run = Run(kind, settings)
    saved(path, run)
    content = torch.load(path, weights_only=True)
    other = Run(kind).model
    other.load_state_dict(content["model"])
    assert torch.equal(weights(other), weights(run.model))
    assert content["plan"]["steps"] == STEPS
    assert (content["random"] is None) == (not settings)


def test_an_unknown_format_is_refused(path: Path) -> None:
    saved(path, Run())
    content = torch.load(path, weights_only=True)
    torch.save({**content, "format": 99}, path)
    with pytest.raises(CheckpointError, match="format 99, and this version of Plumbline reads 1"):
        Run().resume(path)


def test_what_is_not_a_checkpoint_is_refused(path: Path) -> None:
    path.mkdir()
    with pytest.raises(CheckpointError, match="Give the path of a file"):
        Run().resume(path)
    path.rmdir()
    torch.save(Run().model.state_dict(), path)
    with pytest.raises(CheckpointError, match="does not say what was spent"):
        Run().resume(path)
    saved(path, Run())
    whole = path.read_bytes()
    for damaged in (b"", b"something else", whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="not a checkpoint, or is damaged"):
            Run().resume(path)


def test_what_weights_only_would_refuse_is_not_written(path: Path) -> None:
    run = Run()
    saved(path, run)
    before = path.read_bytes()
    private = run.resume(path)
    run.optimizer.param_groups[0]["lr"] = np.float64(0.1)
    with pytest.raises(CheckpointError, match="numpy"):
        private.save(path)
    assert path.read_bytes() == before


def too_large() -> Callable[[], None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_cannot_be_written_leaves_the_earlier_one(path: Path) -> None:
    run = Run()
    saved(path, run)
    before = path.read_bytes()
    private = run.train(run.resume(path), 1)
    restore = too_large()
    try:
        with pytest.raises(CheckpointError, match="Raise the limit on file sizes"):
            private.save(path)
    finally:
        restore()
    assert path.read_bytes() == before
    assert not Path(f"{path}.tmp").exists()
    copy = shutil.copy(path, path.with_name("copy"))
    assert Run().resume(copy).steps_done == 5
    private.save(path)
    assert Run().resume(path).steps_done == 6


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS], ids=["full", "read-only"])
def test_every_call_that_fails_leaves_the_earlier_one(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    run = Run()
    saved(path, run)
    before = path.read_bytes()
    private = run.train(run.resume(path), 1)

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        advice = "Free some space" if number == errno.ENOSPC else "a folder that you may write to"
        with pytest.raises(CheckpointError, match=f"is unchanged. .*{advice}"):
            private.save(path)
    assert path.read_bytes() == before
    assert not Path(f"{path}.tmp").exists()


def test_a_wrong_path_is_an_error_that_says_so(path: Path, tmp_path: Path) -> None:
    run = Run()
    private = run.train(run.make(), 1)
    private.save(path)
    for wrong, advice in (
        (path / "below-a-file", "a part of it is a file"),
        (tmp_path / "missing" / "run", "create its folder"),
        (tmp_path, "not of a folder"),
    ):
        with pytest.raises(CheckpointError, match=advice):
            private.save(wrong)
    assert os.listdir(tmp_path) == [path.name]


# State of single records.


class Remembering(Method):
    """DP-SGD that keeps something of every record, as DP-GD does."""

    momenta = torch.zeros(RECORDS)

    def __init__(self, keeps: bool = True) -> None:
        plain = plumbline.methods.dpsgd()
        super().__init__("remembering", plain.evaluation, plain.clipping)
        self._keeps = keeps

    def step(self, batch: Any) -> Any:
        self.momenta = self.momenta.clone()
        self.momenta[batch.indices] += 1
        return super().step(batch)

    def private_state_dict(self) -> dict[str, Any]:
        return {"momenta": self.momenta} if self._keeps else {}

    def load_private_state_dict(self, state: dict[str, Any]) -> None:
        self.momenta = state["momenta"]


def momenta(private: plumbline.Private) -> torch.Tensor:
    return private.method.momenta.clone()  # type: ignore[attr-defined,no-any-return]


def test_state_of_single_records_is_kept_apart_and_marked(path: Path) -> None:
    run = Run(settings={"method": Remembering()})
    private = run.train(run.make(), 5)
    private.save(path)
    partner = Path(f"{path}.PRIVATE")
    assert partner.read_bytes().startswith(PRIVATE_MARK)
    assert partner.stat().st_mode & 0o777 == 0o600
    assert b"momenta" not in path.read_bytes()
    assert not path.read_bytes().startswith(PRIVATE_MARK)
    resumed = Run(settings={"method": Remembering()}).resume(path)
    assert torch.equal(momenta(resumed), momenta(private))
    partner.unlink()
    with pytest.raises(CheckpointError, match="Copy the two files together"):
        Run(settings={"method": Remembering()}).resume(path)


@pytest.mark.parametrize("calls", [0, 1, 2], ids=["state", "checkpoint", "name"])
def test_a_crash_between_the_two_files_leaves_a_pair(
    path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    run = Run(settings={"method": Remembering()})
    private = run.train(run.make(), 3)
    private.save(path)
    at = {3: momenta(private)}
    run.train(private, 3)
    at[6] = momenta(private)
    left = calls
    rename = os.replace

    def crash(source: Any, target: Any) -> None:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            private.save(path)
    resumed = Run(settings={"method": Remembering()}).resume(path)
    assert resumed.steps_done == (6 if calls == 2 else 3)
    assert torch.equal(momenta(resumed), at[resumed.steps_done])


def test_stale_state_of_single_records_does_not_stay(path: Path) -> None:
    run = Run(settings={"method": Remembering()})
    run.train(run.make(), 1).save(path)
    run = Run(settings={"method": Remembering(keeps=False)})
    run.train(run.make(), 1).save(path)
    assert not Path(f"{path}.tmp").exists()


def test_a_number_that_no_position_can_be_is_refused_by_name(path: Path) -> None:
    saved(path, Run())
    content = torch.load(path, weights_only=True)
    del content["digest"]
    content["sampler"]["step"] = float("inf")
    torch.save(sealed(content), path)
    with pytest.raises(CheckpointError, match=f"The states in the checkpoint {path} do not fit"):
        Run().resume(path)
