"""A run with worker processes is killed and resumed: the same batches, and the same bits."""

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plumbline import Ledger
from tests.mechanism.forked import in_child
from tests.training.reading import Noisy, loader
from tests.training.runs import BUDGET, STEPS, Run, charged, weights
from tests.training.small import RECORDS


def life(folder: Path, dataset: Any, report: int | None = None) -> Tensor:
    """Trains to the end, from the checkpoint if there is one, and reports each step."""
    torch.manual_seed(1)
    settings = {"seed": 3, "deterministic": True, "dataset": dataset}
    with Ledger.open(folder / "ledger") as ledger:
        run = Run("dropout", {**settings, "ledger": ledger})
        private = run.make(checkpoint=folder / "checkpoint")
        for batch in private:
            private.step(batch)
            if private.steps_done % 5 == 0:
                private.save()
            if report is not None:
                os.write(report, bytes([batch.step]))
    return weights(run.model)


def steps_until_killed(folder: Path, after: int) -> list[int]:
    """The steps that a child with two workers reported before it was killed."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        # A worker that outlives its parent for a moment does not keep the pipe open.
        life(folder, loader(Noisy(), worker_init_fn=lambda _: os.close(write_end)), write_end)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb", buffering=0) as pipe:
        steps = b""
        while len(steps) < after and (byte := pipe.read(1)):
            steps += byte
        os.kill(child, signal.SIGKILL)
        steps += pipe.read()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    return list(steps)


def test_a_killed_run_goes_on_at_once_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    BUDGET.resolve(RECORDS)  # here, so that no child has to compute epsilon
    Run("dropout")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    expected = in_child(lambda: life(whole, Noisy()))
    first = steps_until_killed(killed, after=2)
    assert first[:2] == [0, 1]
    # Its workers are still there, perhaps: they hold neither the ledger nor the checkpoint.
    second = steps_until_killed(killed, after=4)
    assert second == list(range(second[0], second[0] + len(second)))
    assert second[0] <= first[-1] + 1
    end = in_child(lambda: life(killed, loader(Noisy(), 3)))
    assert torch.equal(end, expected)
    assert charged(killed / "ledger") == charged(whole / "ledger") == STEPS
