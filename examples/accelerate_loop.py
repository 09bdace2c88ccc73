"""A private loop under ``accelerate launch``: several processes make one run together.

Trains a logistic model on the bundled Adult data. ``Accelerator()`` sets up the processes, and
``make_private`` shares the records among them, so the model, the optimizer and the records are not
given to ``accelerator.prepare``. Only rank 0 has the ledger. The loader of the test records is
prepared as usual. Needs the extra ``accelerate``. Takes a few seconds.

    export ACCELERATE_USE_CPU=true  # two processes without a GPU
    accelerate launch --multi_gpu --num_processes 2 examples/accelerate_loop.py [--steps 100]
"""

import argparse
import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plumbline as pl
from plumbline import data


def main() -> None:
    """Trains on all processes, evaluates on all of them, and says what was spent."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--epsilon", type=float, default=1.0)
    options = parser.parse_args()

    accelerator = Accelerator()
    adult = data.load("adult", scaling="public")
    model = nn.Linear(len(adult.features), 2).to(accelerator.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    with tempfile.TemporaryDirectory() as folder:
        first = accelerator.is_main_process
        ledger = pl.Ledger.open(Path(folder, "adult.ledger")) if first else None
        private = pl.make_private(
            model,
            optimizer,
            adult.train,
            loss=nn.CrossEntropyLoss(reduction="none"),
            method=pl.methods.dpsgd(clip=1.0),
            budget=pl.Budget(
                epsilon=options.epsilon, delta=1e-6, steps=options.steps, expected_batch_size=512
            ),
            ledger=ledger,
        )
        for batch in private:
            private.step(batch)
        if ledger is not None:
            accelerator.print(f"the ledger: {ledger.charged(private.run)} steps charged")
            ledger.close()

    tests = TensorDataset(*adult.test.fetch(torch.arange(len(adult.test))))
    loader = accelerator.prepare(DataLoader(tests, batch_size=1024))
    right = []
    for x, y in loader:
        with torch.no_grad():
            right.append(accelerator.gather_for_metrics(model(x).argmax(1) == y))
    accuracy = torch.cat(right).float().mean()
    accelerator.print(
        f"{accelerator.num_processes} processes: epsilon {private.epsilon():.2f}, "
        f"test accuracy {accuracy:.1%}"
    )
    accelerator.end_training()


if __name__ == "__main__":
    main()
