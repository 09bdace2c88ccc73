"""The 1,797 handwritten digits of 8x8 pixels that come with scikit-learn: no download needed.

Half of the UCI data set "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak 1998).
"""

from __future__ import annotations

import torch

from plumbline.data.base import Constant, Split, Splits, dataset
from plumbline.data.encoding import split


@dataset("digits")
def digits(*, test_fraction: float = 0.2, seed: int = 0) -> Splits:
    """Small digits: x ``[n, 1, 8, 8]`` in [0, 1], y the digit; 1,438 training records.

    Args:
        test_fraction: The share of the records in the test part.
        seed: Decides which records are for training.
    """
    from sklearn.datasets import load_digits  # takes a second to import

    images, labels = load_digits(return_X_y=True)
    # The format defines pixels as counts from 0 to 16, whatever the images are.
    x = torch.from_numpy(images).float().view(-1, 1, 8, 8) / 16
    y = torch.from_numpy(labels).long()
    train, test = split(len(y), test_fraction, torch.Generator("cpu").manual_seed(seed))
    return Splits(
        "digits",
        Split(x[train], y[train]),
        Split(x[test], y[test]),
        classes=tuple(map(str, range(10))),
        constants=(Constant("the largest value 16 of a pixel, by which it is divided", "public"),),
    )
