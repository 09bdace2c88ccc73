"""A scikit-learn search whose cost is known: every fit is charged to one ledger.

Trains private classifiers on the bundled Adult data in a ``GridSearchCV``, with folds that each
record gets by itself, and prints what the chosen model costs alone, what the whole search costs,
and how the model does on records that took no part. The scores that choose, and the one that is
printed, are exact: epsilon does not cover them. Takes about half a minute.

    python examples/sklearn_search.py [--epochs 5] [--epsilon 1]
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from sklearn.model_selection import GridSearchCV, PredefinedSplit

import plumbline as pl
from plumbline import data
from plumbline.integrations.sklearn import PrivateClassifier


def main() -> None:
    """Searches, and says what that costs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=float, default=5.0)
    parser.add_argument("--epsilon", type=float, default=1.0)
    options = parser.parse_args()

    # Ranges stated in public, instead of z-scores, so that preprocessing costs no privacy.
    adult = data.load("adult", scaling="public")
    train, test = (
        tuple(part.numpy() for part in split.fetch(torch.arange(len(split))))
        for split in (adult.train, adult.test)
    )
    with tempfile.TemporaryDirectory() as folder:
        search = GridSearchCV(
            PrivateClassifier(
                classes=[0, 1],
                epsilon=options.epsilon,
                delta=1e-6,
                epochs=options.epochs,
                ledger=Path(folder) / "adult.ledger",
            ),
            {"method": [pl.methods.dpsgd(clip=1.0), pl.methods.automatic()]},
            cv=PredefinedSplit(np.random.default_rng().integers(2, size=len(train[1]))),
            error_score="raise",
        )
        search.fit(*train)
    best = search.best_estimator_
    print(f"chosen (by exact scores): {best.method.name}")
    print(f"the chosen model alone: epsilon {best.epsilon_:.2f}")
    print(best.total_)
    print(f"accuracy on the test part (not covered by epsilon): {search.score(*test):.1%}")


if __name__ == "__main__":
    main()
