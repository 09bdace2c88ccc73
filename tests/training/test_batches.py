"""A record by itself has the gradient that it has in company, to the last bit."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.gradients.one_record import batch_rows
from plumbline.training import batches
from tests.training import small

WIDTH, COMPANIONS = 96, 2


def network(norm: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(WIDTH, 33), norm, nn.Tanh(), nn.Linear(33, 2))


def plain() -> pl.Private:
    return small.private(network(nn.Identity()), records())


def accompanied() -> pl.Private:
    """Each record goes through BatchNorm together with public inputs."""
    public = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(4))
    method = pl.methods.batch_clipping(public=public, companions=COMPANIONS)
    return small.private(network(nn.BatchNorm1d(33)), records(), method=method)


def records() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(small.RECORDS, WIDTH, generator=generator), torch.arange(40) % 2


def gradients(private: pl.Private, units: list[int]) -> dict[str, Tensor]:
    (chunk,) = private.batch_of(torch.tensor(units)).chunks()
    return private.method.see(chunk).capture().materialise()


@pytest.mark.parametrize("make", [plain, accompanied])
def test_a_record_alone_has_the_gradient_that_it_has_beside_another(make: Any) -> None:
    private = make()
    alone, beside = gradients(private, [0]), gradients(private, [0, 1])
    for name, value in alone.items():
        assert torch.equal(value[0], beside[name][0]), name


@pytest.mark.parametrize(("make", "rows"), [(plain, 1), (accompanied, 1 + COMPANIONS)])
def test_a_single_record_is_never_run_by_itself(
    make: Any, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of one row are rounded differently from those of several, on some processors."""
    seen: list[int] = []
    capture = batches.capture

    def watched(model: Any, loss: Any, batch: Any, *rest: Any, **settings: Any) -> Any:
        seen.append(batch_rows(batch))
        return capture(model, loss, batch, *rest, **settings)

    monkeypatch.setattr(batches, "capture", watched)
    found = gradients(make(), [0])
    assert seen == [2 * rows]
    assert all(len(value) == 1 for value in found.values())


def buckets(private: pl.Private, records: list[int]) -> dict[int, int]:
    """Each record's bucket in a step on these records."""
    units = torch.tensor(records)
    batch: Any = private.method._bucketed(batches.PrivateBatch(0, units, units, private))
    return dict(zip(batch.indices.tolist(), batch.unit_ids[batch._unit].tolist(), strict=True))


def test_a_records_bucket_does_not_depend_on_the_others() -> None:
    """One record less would move all others, and the sum by many times what is declared."""
    private = small.private(method=pl.methods.averaged(size=2))
    everybody = list(range(20))
    whole = buckets(private, everybody)
    assert len(set(whole.values())) > 2
    for one in everybody:
        others = [record for record in everybody if record != one]
        assert buckets(private, others) == {record: whole[record] for record in others}
