"""A ``LightningModule`` trained in private by ``lightning.Trainer``: no download.

The module is a usual one, but for one line: ``training_step`` returns the losses of the records,
not their mean. ``PrivateStrategy`` makes the updates, with Poisson batches, clipping, noise and
accounting; the progress bar, validation and checkpoints are Lightning's. Needs the extra
``lightning``. Takes about ten seconds.

    python examples/lightning_module.py [--epochs 5] [--epsilon 4]
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plumbline as pl
from plumbline import data
from plumbline.integrations.lightning import PrivateStrategy


class Classifier(L.LightningModule):
    """A small network for 8 x 8 digits."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """One loss for each record."""
        x, y = batch
        return nn.functional.cross_entropy(self.network(x), y, reduction="none")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Logs the accuracy on test records, which epsilon does not cover."""
        x, y = batch
        self.log("accuracy", (self.network(x).argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """As usual."""
        return torch.optim.SGD(self.parameters(), lr=1.0, momentum=0.9)


def main() -> None:
    """Trains, and says what was spent."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--epsilon", type=float, default=4.0)
    options = parser.parse_args()

    digits = data.load("digits")
    parts = {
        name: TensorDataset(*part.fetch(torch.arange(len(part))))
        for name, part in (("train", digits.train), ("test", digits.test))
    }
    with tempfile.TemporaryDirectory() as folder:
        strategy = PrivateStrategy(
            method=pl.methods.dpsgd(clip=1.0),
            epsilon=options.epsilon,
            delta=5e-5,
            checkpoint=Path(folder, "run.pt"),  # a killed run goes on from here
        )
        trainer = L.Trainer(
            max_epochs=options.epochs,
            strategy=strategy,
            default_root_dir=folder,
            log_every_n_steps=1,
            logger=False,
        )
        trainer.fit(
            Classifier(),
            DataLoader(parts["train"], batch_size=150, shuffle=True),
            DataLoader(parts["test"], batch_size=500),
        )
        accuracy = float(trainer.callback_metrics["accuracy"])
        print(f"{trainer.global_step} steps, test accuracy {accuracy:.1%}\n")
        assert strategy.private is not None
        print(strategy.private.statement())


if __name__ == "__main__":
    main()
