"""An optimizer whose process, or machine, is killed in the middle of a run, the first time."""

import os
import signal
from pathlib import Path
from typing import Any

import torch


class Dying(torch.optim.SGD):
    """SGD that kills its process at a step, unless the file ``mark`` says that it has done so.

    With ``machine``, it kills its parent first: of a worker of Ray, the machine's own process.
    """

    def __init__(
        self, parameters: Any, lr: float, mark: str, at: int, machine: bool = False
    ) -> None:
        super().__init__(parameters, lr)
        self._mark, self._left, self._machine = Path(mark), at, machine

    def step(self, closure: Any = None) -> Any:
        self._left -= 1
        if self._left == 0 and not self._mark.exists():
            self._mark.touch()
            if self._machine:
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(closure)
