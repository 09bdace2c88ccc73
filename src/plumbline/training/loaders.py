"""What ``make_private`` takes from a ``torch.utils.data.DataLoader``, and what it replaces.

The data set, the collate function and the worker processes are the loader's. Which records are in a
batch is not: batches are drawn as the accounting assumes, so a sampler of one's own is refused, and
the run says what took the place of batch size and order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from plumbline.mechanism.calibration import Budget
from plumbline.training.worker_stream import WorkerSettings


def without_loader(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``make_private``, with a data loader replaced by what it consists of.

    Where the budget states neither a batch size nor a sampling rate, the loader's batch size
    becomes the expected one.

    Raises:
        ValueError: If the loader chooses the records of a batch in a way that is not accounted for,
            or has a setting that is given a second time.
    """
    loader, budget = given["dataset"], given["budget"]
    if not isinstance(loader, DataLoader):
        return dict(given)
    refuse_own_batches(loader)
    collate = given["collate"]
    if loader.collate_fn is not default_collate:
        if collate is not None:
            raise ValueError(
                "collate is given beside a data loader that has a collate_fn. Give one of the two."
            )
        collate = loader.collate_fn
    stated = isinstance(budget, Budget) and (budget.expected_batch_size or budget.sampling_rate)
    if isinstance(budget, Budget) and not stated:
        if given["user_ids"] is not None:
            raise ValueError(
                "The batch size of the data loader counts records, and user_ids makes users the "
                "unit: give the budget an expected_batch_size, in users."
            )
        budget = dataclasses.replace(budget, expected_batch_size=loader.batch_size)
    same = (
        isinstance(budget, Budget)
        and budget.expected_batch_size == loader.batch_size
        and given["user_ids"] is None
    )
    return {
        **given,
        "dataset": loader.dataset,
        "collate": collate,
        "budget": budget,
        "workers": _workers(loader),
        "replaced": (_replaced(loader, same),),
    }


def _workers(loader: DataLoader[Any]) -> WorkerSettings | None:
    if loader.num_workers == 0:
        return None
    names = (field.name for field in dataclasses.fields(WorkerSettings))
    return WorkerSettings(**{name: getattr(loader, name) for name in names})


def _replaced(loader: DataLoader[Any], same: bool) -> str:
    """What the accounting puts in the place of the loader's settings."""
    size = f"Of the data loader's settings, the batch size of {loader.batch_size:,} "
    if same:
        size += "is the expected one (of all processes together), around which batches vary"
    else:
        size += "is replaced by the one that the budget states"
    order = "shuffled" if isinstance(loader.sampler, RandomSampler) else "sequential"
    last = ", and drop_last has no meaning" if loader.drop_last else ""
    return (
        f"{size}; the {order} order is replaced by Poisson sampling, which draws every record by "
        f"itself in every step{last}."
    )


def refuse_own_batches(loader: DataLoader[Any]) -> None:
    """Refuses what decides about the records of a batch in another way than is accounted for.

    Raises:
        ValueError: With what to give instead.
    """
    if isinstance(loader.dataset, IterableDataset):
        return  # which is refused as such
    own = "which is not what is accounted for"
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise ValueError(
            f"{type(loader).__name__} makes batches in a way of its own, {own}. Give a plain "
            "torch.utils.data.DataLoader, or the data set; of a loader that accelerate or another "
            "library prepared, the one before."
        )
    if type(loader.sampler).__name__ == "DistributedSampler":
        raise ValueError(
            "The data loader has a DistributedSampler. Leave it out: the processes of a run draw "
            "each batch together and share its records by themselves."
        )
    sampler, batches = loader.sampler, loader.batch_sampler
    plain = (
        type(sampler) in (SequentialSampler, RandomSampler)
        and not getattr(sampler, "replacement", False)
        and len(sampler) == len(sampler.data_source) == len(loader.dataset)  # type: ignore[attr-defined, arg-type]
    )
    if not plain or (batches is not None and type(batches) is not BatchSampler):
        which = type(sampler if not plain else batches).__name__
        raise ValueError(
            f"The data loader has a sampler of its own, {which}, {own}: every record has to be "
            "drawn by itself, with the same probability in every step (Poisson sampling). Leave "
            "the sampler out. To count some records for less, give record_weights; to leave some "
            "out, a torch.utils.data.Subset."
        )
    if loader.batch_size is None:
        raise ValueError(
            "The data loader has batch_size=None or a batch_sampler: what an item of the data set "
            "is, one record or a batch of them, cannot be told. Give it the data set of single "
            "records, with a batch_size."
        )
