"""Commands that ``torchrun`` has started several times over: one run, one voice.

``torchrun --nproc-per-node 2 -m plumbline train RECIPE`` starts two processes with the same command
line. They find each other through torchrun's environment, make the run together, and the first one
speaks; words of an error come from all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from datetime import timedelta

from plumbline.cli.app import WrongUse, aside, console

SECONDS = 600.0
"""After so long, a process that does not answer counts as dead."""


def processes() -> int:
    """How many processes torchrun has started for this command."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def refuse_several(what: str) -> None:
    """Refuses a command that each of several processes would carry out by itself."""
    if processes() > 1:
        raise WrongUse(
            f"torchrun has started {processes()} processes, and each would do {what} by itself. "
            "Only a run of a recipe can be shared: torchrun --nproc-per-node 2 -m plumbline train "
            "RECIPE. Leave torchrun out here."
        )


@contextmanager
def launched(seconds: float = SECONDS) -> Iterator[None]:
    """Inside, the processes of this command are one process group, and only the first one speaks.

    Networks of recipes are on the processor, where gloo moves their gradients.
    """
    if processes() == 1:
        yield
        return
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
    silent = dist.get_rank() != 0
    with open(os.devnull, "w") as nowhere:
        try:
            console.quiet = aside.quiet = silent
            with redirect_stdout(nowhere) if silent else nullcontext():
                yield
        finally:
            console.quiet = aside.quiet = False
            dist.destroy_process_group()
