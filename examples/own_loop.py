"""A plain PyTorch loop made private: your model, your optimizer, your schedule, your stopping.

Trains a logistic model on the bundled Adult data. The loop is the usual one; what is added is
``make_private`` before it and ``private.step(batch)`` in it. Every step is charged to a ledger on
disk before it is made, the run is saved half way and taken up again as after a crash, and the
guarantee is printed in words. Takes a few seconds.

    python examples/own_loop.py [--steps 200] [--epsilon 1]
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

import plumbline as pl
from plumbline import data


def main() -> None:
    """Trains, saves, resumes, and says what was spent."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--epsilon", type=float, default=1.0)
    options = parser.parse_args()

    # Ranges stated in public, instead of z-scores, so that preprocessing costs no privacy.
    adult = data.load("adult", scaling="public")
    x_test, y_test = adult.test.fetch(torch.arange(len(adult.test)))
    budget = pl.Budget(
        epsilon=options.epsilon, delta=1e-6, steps=options.steps, expected_batch_size=512
    )

    def parts() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model = nn.Linear(len(adult.features), 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
        return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, budget.steps)

    def accuracy(model: nn.Module) -> str:
        with torch.no_grad():
            return f"{(model(x_test).argmax(1) == y_test).float().mean():.1%}"

    settings: dict[str, Any] = {
        "loss": nn.CrossEntropyLoss(reduction="none"),  # one loss for each record
        "method": pl.methods.dpsgd(clip=1.0),
        "budget": budget,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        settings["checkpoint"] = path / "run.pt"
        model, optimizer, scheduler = parts()
        with pl.Ledger.open(path / "adult.ledger", limit=(3.0, 1e-6)) as ledger:
            kept = {"ledger": ledger, "schedulers": [scheduler]}
            private = pl.make_private(model, optimizer, adult.train, **kept, **settings)
            for batch in private:
                private.step(batch)
                if private.steps_done == options.steps // 2:
                    private.save()
                    break
        print(f"half way:  epsilon {private.epsilon():.2f}, test accuracy {accuracy(model)}")

        model, optimizer, scheduler = parts()  # as a new process would build them
        with pl.Ledger.open(path / "adult.ledger") as ledger:
            kept = {"ledger": ledger, "schedulers": [scheduler]}
            private = pl.make_private(model, optimizer, adult.train, **kept, **settings)
            for batch in private:
                private.step(batch)
            print(f"at the end: epsilon {private.epsilon():.2f}, test accuracy {accuracy(model)}")
            print(f"the ledger: {ledger.charged(private.run)} steps charged\n")
        print(private.statement())


if __name__ == "__main__":
    main()
