"""Records that are waited for: how much sooner a run ends with worker processes.

`python -m benchmarks.fetching` makes ten steps of 200 records of a data set that waits 2 ms for
each, as for a disk, without workers and with eight; starting and ending them counts. The ratio is
to be at least five. What the machine does beside it matters: workers need their turns on a core.
"""

from __future__ import annotations

import sys
import time
import warnings

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import plumbline as pl

WAIT, RECORDS, BATCH, STEPS, WORKERS = 0.002, 2_000, 200, 10, 8
TARGET = 5.0


class Disk(Dataset[tuple[Tensor, int]]):
    """Waits before it gives a record, and augments it."""

    def __init__(self) -> None:
        self.x = torch.randn(RECORDS, 20, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        time.sleep(WAIT)
        x = self.x[number]
        return x + 0.1 * torch.randn(20), int(x[0] > 0)


def run(workers: int) -> tuple[float, Tensor]:
    """How long the steps take, in seconds, and the weights after them."""
    torch.manual_seed(0)
    model = nn.Linear(20, 2)
    private = pl.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        DataLoader(Disk(), batch_size=BATCH, shuffle=True, num_workers=workers),
        loss=nn.CrossEntropyLoss(reduction="none"),
        method=pl.methods.dpsgd(clip=1.0),
        budget=pl.Budget(noise_multiplier=1.0, delta=1e-5, steps=STEPS),
        seed=0,
        deterministic=True,
    )
    start = time.perf_counter()
    for batch in private:
        private.step(batch)
    took = time.perf_counter() - start
    return took, model.weight.detach()


def main() -> None:
    """Prints both times, and fails if the ratio is below the target."""
    warnings.filterwarnings("ignore", "This DataLoader will create")
    alone, expected = run(0)
    ahead, weights = run(WORKERS)
    same = "the same bits" if torch.equal(weights, expected) else "DIFFERENT WEIGHTS"
    print(f"{STEPS} steps of {BATCH} records that take {1000 * WAIT:g} ms each, {same}:")
    print(f"no workers {alone:.2f} s, {WORKERS} workers {ahead:.2f} s, {alone / ahead:.1f} times")
    if alone / ahead < TARGET or not torch.equal(weights, expected):
        sys.exit(f"The target is {TARGET:g} times, with the same bits.")


if __name__ == "__main__":
    main()
