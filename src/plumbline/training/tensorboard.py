"""A callback that logs a run to TensorBoard, where the extra ``tensorboard`` is installed.

By itself it writes epsilon and the learning rate only: what costs no privacy. Whoever adds metrics
with ``add`` says with their name what they are computed from.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plumbline.training.fitting import StepInfo
    from plumbline.training.private import Private


class TensorBoard:
    """Writes scalars along a run: ``private.fit([TensorBoard("runs/one")])``.

    Args:
        folder: Where its event files go.
        every: How many steps lie between two points.
        first: The steps done so far, for a run that goes on: later points of an earlier session
            are dropped.

    Raises:
        ImportError: Naming the extra, if TensorBoard is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str], *, every: int = 10, first: int = 0) -> None:
        if every < 1:
            raise ValueError(f"every is {every}; it must be at least 1.")
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "Logging to TensorBoard needs the package: pip install 'plumbline[tensorboard]'."
            ) from error
        writer: Any = SummaryWriter
        self._writer = writer(os.fspath(folder), purge_step=first + 1 if first else None)
        self._every = every

    def after_step(self, private: Private, info: StepInfo) -> None:
        """Writes a point where one is due."""
        if info.step % self._every and info.step != info.steps:
            return
        values = {"learning rate": float(private.optimizer.param_groups[0]["lr"])}
        if math.isfinite(info.epsilon):
            values["epsilon"] = info.epsilon
        self.add(info.step, values)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Writes further values, such as metrics of held-out records."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Writes what is left."""
        self._writer.close()
