"""An optimizer whose process is killed in the middle of a run, the first time."""

import os
import signal
from pathlib import Path
from typing import Any

import torch


class Dying(torch.optim.SGD):
    """SGD that kills its process at a step, unless the file ``mark`` says that it has done so."""

    def __init__(self, parameters: Any, lr: float, mark: str, at: int) -> None:
        super().__init__(parameters, lr)
        self._mark, self._left = Path(mark), at

    def step(self, closure: Any = None) -> Any:
        self._left -= 1
        if self._left == 0 and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(closure)
