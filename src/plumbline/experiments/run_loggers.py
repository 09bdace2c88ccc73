"""The loggers of a run in a folder, by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from plumbline.experiments.files import LOG
from plumbline.training.loggers import CSVLogger, Logger, MLflowLogger, TensorBoardLogger

LOGGERS = ("csv", "tensorboard", "mlflow")


def check_log(names: Collection[str]) -> None:
    """Refuses loggers that there are not, before anything is spent.

    Raises:
        ValueError: If there is none of that name.
        ImportError: Naming the extra, if its package is not installed.
    """
    for name in names:
        if name not in LOGGERS:
            raise ValueError(f"log has {name!r}; there are {', '.join(LOGGERS)}.")
        if name != "csv" and find_spec(name) is None:
            raise ImportError(
                f"Logging to {name} needs a package: pip install 'plumbline[{name}]'."
            )


@contextmanager
def loggers_of(
    names: Collection[str], folder: Path, *, experiment: str, run: str
) -> Iterator[list[Logger]]:
    """The loggers, which end with the block.

    Args:
        names: Which ones.
        folder: The run's folder.
        experiment: The experiment's name.
        run: The run's id.
    """
    make: dict[str, Callable[[], Logger]] = {
        "csv": lambda: CSVLogger(folder / LOG),
        "tensorboard": lambda: TensorBoardLogger(folder / "tensorboard"),
        "mlflow": lambda: MLflowLogger(experiment, run=run, name=folder.name),
    }
    with ExitStack() as stack:
        yield [stack.enter_context(make[name]()) for name in dict.fromkeys(names)]
