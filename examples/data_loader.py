"""A data loader made private: its worker processes, its collate function, epoch by epoch.

Trains a small network on images that are read one by one and shifted at random, as from a disk. The
loader is the usual one; what is accounted replaces its batch size by an expected one and its order
by Poisson sampling, and the run says so. Two processes fetch the records of the next steps while
this one trains, and the weights are those of a run without them. Takes a few seconds.

    python examples/data_loader.py [--epochs 3] [--workers 2]
"""

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import plumbline as pl
from plumbline import data


class Shifted(Dataset[tuple[Tensor, Tensor]]):
    """Images that are shifted by a pixel at most, each time in another way."""

    def __init__(self, split: data.Split) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        image, label = self.split[number]
        # torch's global generator is set for this record and step, in whichever process this runs.
        down, right = torch.randint(-1, 2, (2,)).tolist()
        return image.roll((down, right), (-2, -1)), label


def train(dataset: Dataset[tuple[Tensor, Tensor]], epochs: int, workers: int) -> nn.Module:
    """Trains in so many worker processes, and prints how far it is."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    private = pl.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=2.0),
        DataLoader(dataset, batch_size=128, shuffle=True, num_workers=workers),
        loss=nn.CrossEntropyLoss(reduction="none"),
        method=pl.methods.dpsgd(clip=1.0),
        budget=pl.Budget(epsilon=8, delta=1e-5, epochs=epochs),
        seed=0,  # so that two runs can be compared; leave both out of a run that is to be private
        deterministic=True,
    )
    print(f"{workers} workers. {private.warnings[0]}")
    for epoch in range(private.epochs):
        for batch in private.epoch(epoch):
            loss = private.step(batch)
        print(f"epoch {epoch}: epsilon {private.epsilon():.2f}, last loss {loss:.3f}")
    return model


def main() -> None:
    """Trains with and without workers, and compares the weights."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    digits = data.load("digits")
    models = [
        train(Shifted(digits.train), options.epochs, workers) for workers in (options.workers, 0)
    ]
    weights = [torch.cat([p.flatten() for p in model.parameters()]) for model in models]
    print(f"the same weights: {torch.equal(*weights)}")
    x_test, y_test = digits.test.fetch(torch.arange(len(digits.test)))
    with torch.no_grad():
        print(f"test accuracy {(models[0](x_test).argmax(1) == y_test).float().mean():.1%}")


if __name__ == "__main__":
    main()
