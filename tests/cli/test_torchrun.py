"""``torchrun -m plumbline train RECIPE``: one run, one voice, and a refusal of everything else."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from plumbline import Ledger
from plumbline.cli.app import aside, console
from plumbline.cli.torchrun import launched, processes
from plumbline.training.distributed import Ranks
from tests.cli.calling import Called, small_recipe
from tests.training.ranks import in_ranks, values


def environment(rank: int, count: int, port: str) -> dict[str, str]:
    """What torchrun tells a process."""
    return {
        "TORCHELASTIC_RUN_ID": "test",
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def test_processes_find_each_other_and_one_speaks(tmp_path: Path) -> None:
    port = free_port()

    def speak(rank: int) -> tuple[int, int, int, bool, bool]:
        os.environ.update(environment(rank, 2, port))
        with launched():
            ranks = Ranks.here()
            quiet = console.quiet and aside.quiet
        return processes(), ranks.rank, ranks.count, quiet, dist.is_initialized()

    assert values(in_ranks(2, speak, tmp_path, group=False)) == [
        (2, 0, 2, False, False),
        (2, 1, 2, True, False),
    ]


def test_alone_nothing_is_made() -> None:
    with launched():
        assert not dist.is_initialized()
        assert not console.quiet


@pytest.mark.parametrize(
    "command", [["tune", "--data", "my.csv", "--target", "y"], ["compare", "demo"]], ids=str
)
def test_other_commands_are_refused(
    command: list[str], call: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(0, 3, "1").items():
        monkeypatch.setenv(name, value)
    assert call(*command) == 2
    assert "torchrun has started 3 processes" in call.err
    assert "Leave torchrun out" in " ".join(call.err.split())


def torchrun(count: int, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """A command as a person gives it, in processes of its own."""
    told = environment(0, 1, "")
    names = {name: value for name, value in os.environ.items() if name not in told}
    launcher = ["torch.distributed.run", "--nproc-per-node", str(count)]
    command = [sys.executable, "-m", *launcher, f"--master-port={free_port()}", "-m", "plumbline"]
    return subprocess.Popen(
        [*command, "train", *arguments, "--json"],
        cwd=folder,
        env={**names, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out)  # one voice
    return found


def charged(folder: Path) -> int:
    return sum(count for _, count in Ledger.read(folder / "ledger").entries())


@pytest.mark.slow
def test_torchrun_trains_a_recipe(tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path)
    found = result(torchrun(2, tmp_path, str(recipe), "--method", "DPSGD"))
    assert found["steps"] == 8
    assert "2 processes" in found["statement"].replace("\n", " ")
    assert charged(tmp_path / found["folder"]) == 8


@pytest.mark.slow
def test_a_killed_rank_ends_torchrun_and_the_run_goes_on(tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path, steps=400)
    process = torchrun(2, tmp_path, str(recipe), "--method", "DPSGD")
    ledgers: list[Path] = []
    while not ledgers or charged(ledgers[0].parent) < 20:
        assert process.poll() is None
        time.sleep(0.1)
        ledgers = list(tmp_path.glob("runs/*/*/ledger"))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    _, err = process.communicate(timeout=600)
    assert process.returncode != 0
    before = charged(ledgers[0].parent)
    assert 20 <= before < 400, err
    # With another number of processes, steps since the last checkpoint are lost: how many there are
    # depends on when it was killed, and of too many it asks.
    found = result(torchrun(1, tmp_path, str(recipe), "--method", "DPSGD", "--accept-loss"))
    assert charged(tmp_path / found["folder"]) == 400
    assert found["steps"] <= 400
    assert "1 or 2 processes" in found["statement"].replace("\n", " ")
