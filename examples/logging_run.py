"""A run that is logged to two places, one of which fails: the run is not affected.

Trains a logistic model on the bundled Adult data. One logger writes a CSV file in which every
number is marked as covered by epsilon or not. The other is written here, in five lines, for a
server that goes away half way: it is warned of once, the steps that are paid for are made all the
same, and the CSV file is complete. Takes a few seconds.

    python examples/logging_run.py [--steps 100]
"""

import argparse
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

import plumbline as pl
from plumbline import data
from plumbline.training import CSVLogger, Logger


class Server(Logger):
    """Sends numbers to a server, which is gone after the first of them."""

    sent = 0

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Sends the numbers of a step."""
        if self.sent:
            raise ConnectionError("the server is gone")
        self.sent += 1


def main() -> None:
    """Trains with both, and shows what was written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()

    adult = data.load("adult", scaling="public")
    x_test, y_test = adult.test.fetch(torch.arange(len(adult.test)))
    model = nn.Linear(len(adult.features), 2)
    private = pl.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9),
        adult.train,
        loss=nn.CrossEntropyLoss(reduction="none"),
        method=pl.methods.dpsgd(clip=1.0),
        budget=pl.Budget(epsilon=1, delta=1e-6, steps=options.steps, expected_batch_size=512),
    )

    def accuracy(model: nn.Module) -> float:
        return float((model(x_test).argmax(1) == y_test).float().mean())

    every = max(1, options.steps // 4)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        path = Path(folder) / "log.csv"
        with CSVLogger(path, every=every) as kept, Server(every=every) as server:
            private.fit([kept, server], metrics={"test accuracy": accuracy}, progress=False)
        print(path.read_text())
    print(*(one.message for one in warned), sep="\n")
    print(f"{private.steps_done} of {options.steps} steps made")


if __name__ == "__main__":
    main()
