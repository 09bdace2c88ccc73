"""A convolutional network on images: DP-SGD, then views and BAM on top, in one line each.

Uses the 8 x 8 digits that come with scikit-learn, so that it needs no download; with
``--data fashion-mnist`` and the files below ``PLUMBLINE_DATA`` it takes Fashion-MNIST. The network
is written with BatchNorm, as most are, and made over to GroupNorm first, because BatchNorm mixes
records. Neither method is tuned: this shows how to combine, not which is better. Takes about half a
minute on the digits.

    python examples/image_cnn.py [--data digits] [--steps 60] [--epsilon 4]
"""

import argparse

import torch
from torch import nn

import plumbline as pl
from plumbline import data
from plumbline.augmentations import Shift
from plumbline.clipping import Flat
from plumbline.evaluation import Bam, Views


def network() -> nn.Module:
    """Two convolutions with BatchNorm, as one would write them without privacy."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, 10),
    )


def main() -> None:
    """Trains with two methods at one budget."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="digits", choices=["digits", "fashion-mnist"])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--epsilon", type=float, default=4.0)
    options = parser.parse_args()

    images = data.load(options.data)
    x_test, y_test = images.test.fetch(torch.arange(len(images.test)))
    views = Views(Shift(1), count=4)
    methods = {
        "DP-SGD": pl.methods.dpsgd(clip=1.0),
        "BAM on 4 views": pl.methods.compose(
            evaluation=[Bam(radius=0.02), views], clipping=Flat(1.0), name="bam on views"
        ),
    }
    for title, method in methods.items():
        torch.manual_seed(0)
        model = pl.suggest_fixes(network(), tell=None)  # BatchNorm becomes GroupNorm
        private = pl.make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9),
            images.train,
            loss=nn.CrossEntropyLoss(reduction="none"),
            method=method,
            budget=pl.Budget(
                epsilon=options.epsilon,
                delta=1 / (20 * len(images.train)),
                steps=options.steps,
                expected_batch_size=len(images.train) // 5,
            ),
            max_physical_batch=256,  # memory: larger batches come in chunks, with the same result
        )
        private.fit(progress=False)
        with torch.no_grad():
            right = (model.eval()(x_test).argmax(1) == y_test).float().mean()
        print(
            f"{title}: test accuracy {right:.1%} at epsilon {private.epsilon():.2f}, noise "
            f"{private.plan.noise_multiplier:.2f}, {private.plan.steps} steps"
        )


if __name__ == "__main__":
    main()
