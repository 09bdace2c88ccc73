"""Data sets that are read record by record, for tests of who reads them, and when."""

import os
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tests.training.small import RECORDS, data


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Adds noise from each of the three global generators to a record."""

    def __init__(self) -> None:
        self.x, self.y = data()

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        noise = random.random() + np.random.rand() + torch.rand(6)  # noqa: NPY002
        return self.x[number] + noise, self.y[number]


class Logged(Noisy):
    """Writes down which process reads which record."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self.log = log

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        line = f"{os.getppid()} {os.getpid()} {number}\n".encode()
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line)  # whole, since the file is opened to append
        os.close(descriptor)
        return super().__getitem__(number)

    def reads(self) -> list[tuple[int, int, int]]:
        """The parent process, the process and the record of each read."""
        if not self.log.exists():
            return []
        lines = self.log.read_text().splitlines()
        return [tuple(int(part) for part in line.split()) for line in lines]  # type: ignore[misc]


def loader(dataset: Any, num_workers: int = 2, **settings: Any) -> "DataLoader[Any]":
    """A loader of a user's, who does not mind to have more workers than cores."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        settings = {"batch_size": 10, "shuffle": True, **settings}
        return DataLoader(dataset, num_workers=num_workers, **settings)
