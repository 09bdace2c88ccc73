from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plumbline.mechanism.random_source import SecureSource, SeededSource
from plumbline.mechanism.release import CyclicSampling, PoissonSampling
from plumbline.sampling import (
    FixedSampler,
    Parts,
    PoissonSampler,
    UserSampler,
    chunks,
    group_by_user,
)

RECORDS, STEPS, RATE = 300, 4000, 0.1


@pytest.fixture(scope="module")
def batches() -> np.ndarray:
    """Who took part: [STEPS, RECORDS], 0 or 1."""
    sampler = PoissonSampler(RECORDS, RATE, SeededSource(11))
    taken = np.zeros((STEPS, RECORDS))
    for step in range(STEPS):
        taken[step, sampler.indices(step).numpy()] = 1
    return taken


def test_every_record_takes_part_at_the_rate(batches: np.ndarray) -> None:
    deviation = (batches.mean(0) - RATE) / (RATE * (1 - RATE) / STEPS) ** 0.5
    assert np.abs(deviation).max() < 4.5
    assert abs((deviation**2).mean() - 1) < 4 * (2 / RECORDS) ** 0.5


def test_every_pair_takes_part_together_at_the_rate_squared(batches: np.ndarray) -> None:
    together = (batches.T @ batches / STEPS)[np.triu_indices(RECORDS, 1)]
    variance = RATE**2 * (1 - RATE**2) / STEPS
    deviation = (together - RATE**2) / variance**0.5
    assert np.abs(deviation).max() < 6
    # Each record's own luck is in all of its pairs, so the mean varies more than alone.
    assert abs(deviation.mean()) < 0.5
    assert abs((deviation**2).mean() - 1) < 0.1


def test_steps_are_independent(batches: np.ndarray) -> None:
    both = (batches[1:] * batches[:-1]).mean()
    assert abs(both - RATE**2) < 5 * RATE / (STEPS * RECORDS) ** 0.5


def test_batch_sizes_vary_as_they_should(batches: np.ndarray) -> None:
    sizes = batches.sum(1)
    expected = RECORDS * RATE * (1 - RATE)
    assert abs(sizes.var() / expected - 1) < 5 * (2 / STEPS) ** 0.5


def test_indices_are_sorted_int64_and_repeatable() -> None:
    sampler = PoissonSampler(10_000, 0.05, SeededSource(1))
    members = sampler.indices(3)
    assert members.dtype == torch.int64
    assert torch.equal(members, members.unique())
    assert torch.equal(members, sampler.indices(3))
    assert not torch.equal(members, sampler.indices(4))
    assert not torch.equal(members, PoissonSampler(10_000, 0.05, SeededSource(2)).indices(3))


def test_a_seed_samples_the_same_for_ever() -> None:
    # If this fails, every seeded run of an earlier version can no longer be repeated.
    assert PoissonSampler(20, 0.25, SeededSource(0)).indices(0).tolist() == [
        2,
        3,
        7,
        11,
        12,
        15,
        17,
    ]


def test_more_records_leave_the_others_where_they_were() -> None:
    few = PoissonSampler(500, 0.3, SeededSource(5)).indices(2)
    many = PoissonSampler(900, 0.3, SeededSource(5)).indices(2)
    assert torch.equal(many[many < 500], few)


def test_a_secure_sampler_agrees_with_itself_and_with_no_other() -> None:
    sampler = PoissonSampler(1000, 0.5, SecureSource())
    assert torch.equal(sampler.indices(0), sampler.indices(0))
    assert not torch.equal(PoissonSampler(1000, 0.5, SecureSource()).indices(0), sampler.indices(0))


class Words:
    """A source whose words are given: the first 16 bits of all, or the last 48 of one."""

    secure = False

    def __init__(self, *words: int) -> None:
        self.words = [int(word) for word in words]

    def stream(self, domain: str, step: int, *record: int) -> "Bytes":
        if record:
            return Bytes((self.words[record[0]] % 2**48).to_bytes(6, "little"))
        return Bytes(b"".join((word >> 48).to_bytes(2, "little") for word in self.words))


class Bytes:
    def __init__(self, given: bytes) -> None:
        self.given = given

    def bytes(self, n: int) -> bytes:
        assert n <= len(self.given)
        return self.given[:n]


@pytest.mark.parametrize("rate", [0.5, 0.1, 1 / 3, 1e-3, 2.0**-60 * 1.75, 1 - 2**-53])
def test_the_implemented_rate_is_the_accounted_one_rounded_down(rate: float) -> None:
    threshold = Fraction(rate) * 2**64 // 1
    words = Words(0, threshold - 1, threshold, threshold + 1, 2**64 - 1)
    sampler = PoissonSampler(5, rate, words)  # type: ignore[arg-type]
    assert sampler.indices(0).tolist() == [0, 1]
    assert 0 <= Fraction(rate) - Fraction(int(threshold), 2**64) < Fraction(1, 2**64)
    assert sampler.event() == PoissonSampling(rate=rate)


def test_rate_one_takes_everyone_and_tiny_rates_nearly_nobody() -> None:
    everyone = PoissonSampler(5, 1.0, Words(*[2**64 - 1] * 5))  # type: ignore[arg-type]
    assert everyone.indices(0).tolist() == [0, 1, 2, 3, 4]
    empty = PoissonSampler(5, 1e-9, SeededSource(0)).indices(0)
    assert empty.shape == (0,)
    assert empty.dtype == torch.int64


def test_a_stored_position_is_taken_up_bit_identically() -> None:
    first = PoissonSampler(400, 0.1, SeededSource(9))
    first.step = 7
    second = PoissonSampler(400, 0.1, SeededSource(9))
    second.load_state_dict(first.state_dict())
    assert second.step == 7
    assert all(torch.equal(first.indices(step), second.indices(step)) for step in range(7, 20))


def test_the_state_is_a_position_and_nothing_secret() -> None:
    sampler = PoissonSampler(400, 0.1, SecureSource())
    sampler.step = 1
    assert sampler.state_dict() == {"kind": "poisson", "step": 1, "records": 400, "rate": 0.1}


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        pytest.param(
            PoissonSampler(401, 0.1, SeededSource(0)), "records is 401 here and 400", id="records"
        ),
        pytest.param(
            PoissonSampler(400, 0.2, SeededSource(0)), "rate is 0.2 here and 0.1", id="rate"
        ),
        pytest.param(
            UserSampler(range(400), 0.1, SeededSource(0)), "kind is 'poisson_users'", id="unit"
        ),
    ],
)
def test_another_samplers_state_is_refused(other: PoissonSampler, difference: str) -> None:
    state = PoissonSampler(400, 0.1, SeededSource(0)).state_dict()
    with pytest.raises(ValueError, match=difference):
        other.load_state_dict(state)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, float("nan"), True, 2.0**-65])
def test_an_impossible_rate_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate is"):
        PoissonSampler(10, rate, SeededSource(0))


@pytest.mark.parametrize("records", [0, -1, 2.0, True])
def test_an_impossible_number_of_records_is_refused(records: int) -> None:
    with pytest.raises(ValueError, match="records is"):
        PoissonSampler(records, 0.1, SeededSource(0))


def test_a_step_before_the_first_is_refused() -> None:
    with pytest.raises(ValueError, match="step is -1"):
        PoissonSampler(10, 0.1, SeededSource(0)).indices(-1)


# Without privacy.


def test_fixed_batches_are_shuffled_epochs() -> None:
    sampler = FixedSampler(23, 5, SeededSource(0))
    epochs = [torch.cat([sampler.indices(5 * n + k) for k in range(5)]) for n in range(2)]
    assert sampler.steps_per_epoch == 5
    for epoch in epochs:
        assert sorted(epoch.tolist()) == list(range(23))
    assert not torch.equal(*epochs)
    assert len(sampler.indices(4)) == 3
    assert sampler.event() is None


def test_a_fixed_batch_is_the_same_whichever_were_asked_for_before() -> None:
    one, two = (FixedSampler(23, 5, SeededSource(0)) for _ in range(2))
    for step in range(7):
        one.indices(step)
    assert torch.equal(one.indices(7), two.indices(7))


# Users.


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param(["eve", "bob", "eve", "ann", "bob", "eve"], id="strings"),
        pytest.param(torch.tensor([9, 5, 9, -2, 5, 9]), id="tensor"),
        pytest.param(np.array([9, 5, 9, 2, 5, 9], dtype=np.uint8), id="array"),
    ],
)
def test_records_are_grouped_by_user(ids: object) -> None:
    users = group_by_user(ids)  # type: ignore[arg-type]
    assert users.count == 3
    records, group = users.records_of(torch.tensor([2, 0]))
    assert records.tolist() == [0, 2, 5, 3]
    assert group.tolist() == [0, 0, 0, 1]
    records, group = users.records_of(torch.tensor([], dtype=torch.int64))
    assert records.tolist() == group.tolist() == []


@given(st.lists(st.integers(0, 8), min_size=1, max_size=40))
def test_every_record_belongs_to_its_user(ids: list[int]) -> None:
    users = group_by_user(ids)
    names = sorted(set(ids))
    records, group = users.records_of(torch.arange(users.count))
    assert sorted(records.tolist()) == list(range(len(ids)))
    assert [ids[r] for r in records.tolist()] == [names[g] for g in group.tolist()]


def test_a_user_takes_part_with_all_records_or_none() -> None:
    ids = np.repeat(np.arange(50), np.arange(50) % 4 + 1)
    sampler = UserSampler(ids, 0.3, SeededSource(4))
    assert sampler.event() == PoissonSampling(rate=0.3)
    for step in range(5):
        users = sampler.indices(step)
        records, group = sampler.records_of(users)
        assert records.tolist() == np.flatnonzero(np.isin(ids, users.numpy())).tolist()
        assert users[group].tolist() == ids[records.numpy()].tolist()


@pytest.mark.parametrize("ids", [[], [[1, 2]], [1.5, 2.5], [None, 1]])
def test_users_that_cannot_be_told_apart_are_refused(ids: object) -> None:
    with pytest.raises(ValueError, match="give one integer or string for each record"):
        group_by_user(ids)  # type: ignore[arg-type]


# Chunks.


@given(n=st.integers(0, 50), most=st.integers(1, 20))
def test_chunks_are_the_batch_in_order(n: int, most: int) -> None:
    batch = torch.arange(n) * 3
    cut = chunks(batch, most)
    assert [i for chunk in cut for i in chunk.tolist()] == batch.tolist()
    assert len(cut) == -(-n // most)
    assert all(1 <= len(chunk) <= most for chunk in cut)


def test_without_a_limit_there_is_one_chunk() -> None:
    assert [c.tolist() for c in chunks(torch.arange(3), None)] == [[0, 1, 2]]
    assert chunks(torch.arange(0), None) == []


@given(sizes=st.lists(st.integers(1, 9), max_size=12), most=st.integers(1, 12))
def test_chunks_never_cut_a_group(sizes: list[int], most: int) -> None:
    group = torch.repeat_interleave(
        torch.arange(len(sizes)), torch.tensor(sizes, dtype=torch.int64)
    )
    cut = chunks(torch.arange(len(group)), most, group)
    assert [i for chunk in cut for i in chunk.tolist()] == list(range(len(group)))
    owners = [set(group[chunk].tolist()) for chunk in cut]
    assert sum(len(o) for o in owners) == len(sizes)
    for chunk, owner in zip(cut, owners, strict=True):
        assert len(chunk) <= most or len(owner) == 1


def test_a_chunk_holds_at_least_one_record() -> None:
    with pytest.raises(ValueError, match="max_physical_batch is 0"):
        chunks(torch.arange(3), 0)


# Cyclic sampling.


def cyclic(records: int = 200, rate: float = 0.5, key: int = 3) -> PoissonSampler:
    return PoissonSampler(records, rate, SeededSource(1), Parts(4, SeededSource(key)))


def test_a_record_takes_part_in_steps_of_its_part_alone() -> None:
    sampler = cyclic()
    part = Parts(4, SeededSource(3)).of(200)
    for step in range(40):
        members = sampler.indices(step).numpy()
        assert (part[members] == step % 4).all()
        assert len(members)
    assert sampler.event() == CyclicSampling(rate=0.5, parts=4)


def test_within_its_part_a_record_is_drawn_as_without_parts() -> None:
    sampler, plain = cyclic(), PoissonSampler(200, 0.5, SeededSource(1))
    part = torch.from_numpy(Parts(4, SeededSource(3)).of(200).astype(np.int64))
    for step in range(8):
        drawn = plain.indices(step)
        assert torch.equal(sampler.indices(step), drawn[part[drawn] == step % 4])


def test_one_more_record_leaves_the_parts_of_the_others_as_they_were() -> None:
    parts = Parts(4, SeededSource(3))
    assert (parts.of(201)[:200] == parts.of(200)).all()
    assert (Parts(4, SeededSource(4)).of(200) != parts.of(200)).any()


def test_parts_are_even_and_those_of_two_records_independent() -> None:
    part = Parts(4, SeededSource(3)).of(40_000)
    counts = np.bincount(part.astype(np.int64))
    assert np.abs(counts - 10_000).max() < 5 * (40_000 * 3 / 16) ** 0.5
    together = (part[1:] == part[:-1]).mean()
    assert abs(together - 0.25) < 5 * (3 / 16 / 40_000) ** 0.5


def test_parts_that_are_taken_whole_are_each_record_once_in_a_cycle() -> None:
    sampler = cyclic(rate=1.0)
    drawn = torch.cat([sampler.indices(step) for step in range(4)])
    assert torch.equal(drawn.sort().values, torch.arange(200))


def test_users_have_parts_too() -> None:
    ids = np.repeat(np.arange(50), 3)
    sampler = UserSampler(ids, 1.0, SeededSource(1), Parts(5, SeededSource(3)))
    part = Parts(5, SeededSource(3)).of(50)
    assert (part[sampler.indices(7).numpy()] == 2).all()
    assert sampler.state_dict()["parts"] == 5
    with pytest.raises(ValueError, match="parts is None here and 5 in the stored state"):
        UserSampler(ids, 1.0, SeededSource(1)).load_state_dict(sampler.state_dict())
