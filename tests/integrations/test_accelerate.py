"""Plain loops under accelerate: one run by several processes, and no prepared parts in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plumbline as pl

accelerate = pytest.importorskip("accelerate")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def accelerator() -> Iterator[Any]:
    yield accelerate.Accelerator(cpu=True)
    accelerate.state.GradientState._reset_state()
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def test_an_optimizer_that_accelerate_prepared_is_refused_before_any_charge(
    accelerator: Any, tmp_path: Path
) -> None:
    model = nn.Linear(2, 2)
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    settings: dict[str, Any] = {
        "loss": nn.CrossEntropyLoss(reduction="none"),
        "method": pl.methods.dpsgd(clip=1.0),
        "budget": pl.Budget(noise_multiplier=1, delta=1e-3, steps=2, expected_batch_size=4),
    }
    records = torch.zeros(8, 2), torch.zeros(8).long()
    with pl.Ledger.open(tmp_path / "ledger") as ledger:
        with pytest.raises(ValueError, match=r"leave it and the model out of accelerator\.prepare"):
            pl.make_private(model, optimizer, records, ledger=ledger, **settings)
        private = pl.make_private(model, optimizer.optimizer, records, ledger=ledger, **settings)
        assert ledger.charged(private.run) == 0


def test_a_scheduler_that_accelerate_prepared_is_refused(accelerator: Any) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 1))
    with pytest.raises(ValueError, match="steps it once for each process"):
        pl.make_private(
            model,
            optimizer,
            (torch.zeros(8, 2), torch.zeros(8).long()),
            loss=nn.CrossEntropyLoss(reduction="none"),
            method=pl.methods.dpsgd(clip=1.0),
            budget=pl.Budget(noise_multiplier=1, delta=1e-3, steps=2, expected_batch_size=4),
            schedulers=[scheduler],
        )


@pytest.mark.slow
def test_two_processes_that_accelerate_starts_make_one_run() -> None:
    """``--cpu`` alone starts one process without MPI, whatever ``--num_processes`` says."""
    launch = "launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "accelerate.commands.accelerate_cli", *launch.split()),
            *("--dynamo_backend", "no", "--main_process_port", "0"),
            *(str(ROOT / "examples" / "accelerate_loop.py"), "--steps", "4"),
        ],
        env={**os.environ, "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the ledger: 4 steps charged") == 1
    assert re.search(r"^2 processes: epsilon 1\.00, test accuracy [\d.]+%$", done.stdout, re.M)
