"""Loggers: what they write, how it is marked, and that they cannot cost a run."""

import csv
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from plumbline.training import CSVLogger, Logger, LoggingFailed, MLflowLogger, TensorBoardLogger
from plumbline.training.step_losses import NotCovered, StepLosses
from tests.training.small import budget, private

STEPS = 5


class Kept(Logger):
    """Keeps what it is given."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.points: list[tuple[int, str, float]] = []
        self.ended = 0

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.points += [(step, name, value) for name, value in values.items()]

    def end(self) -> None:
        self.ended += 1

    def steps(self, name: str) -> list[int]:
        return [step for step, other, _ in self.points if other == name]


def fitted(*callbacks: Any, **settings: Any) -> Any:
    run = private(plan=budget(steps=STEPS))
    return run.fit(callbacks, progress=False, **settings)


def test_everything_is_marked() -> None:
    log = Kept(every=2)
    fitted(log, show=["epsilon", "loss"], metrics={"of weights": lambda model: 0.5})
    log.log(STEPS, covered={"size": 3}, not_covered={"held out/loss": 0.25})
    names = {name for _, name, _ in log.points}
    assert names == {
        "covered/epsilon",
        "covered/learning rate",
        "covered/size",
        "not covered/loss",
        "not covered/of weights",
        "not covered/held out/loss",
    }
    for name in ("covered/epsilon", "not covered/loss", "not covered/of weights"):
        assert log.steps(name) == [2, 4, 5]
    spent = [value for _, name, value in log.points if name == "covered/epsilon"]
    assert spent == sorted(spent)
    assert (5, "covered/learning rate", 0.5) in log.points


def test_the_loss_of_a_step_is_never_written_as_covered() -> None:
    log, run = Kept(every=1), private(plan=budget(steps=STEPS))
    batch = next(iter(run))
    loss = run.step(batch)
    log.log(1, covered={"loss": loss, "size": 3})
    assert log.points == [(1, "not covered/loss", float(loss)), (1, "covered/size", 3.0)]


def test_a_loss_that_is_not_of_the_step_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    log, found = Kept(every=1), iter([1.0, math.nan, 1.0, 1.0, 1.0])
    monkeypatch.setattr(StepLosses, "mean", property(lambda self: NotCovered(next(found))))
    fitted(log, show=["loss"])
    assert log.steps("not covered/loss") == [1, 3, 4, 5]  # the second batch was empty


def test_without_a_guarantee_there_is_no_epsilon() -> None:
    log = Kept(every=1)
    private(plan=budget(noise_multiplier=0.0)).fit([log], progress=False)
    assert log.steps("covered/learning rate") == [1, 2, 3, 4]
    assert log.steps("covered/epsilon") == []


def test_a_logger_is_a_class_with_one_method() -> None:
    class Shortest(Logger):
        seen: list[int] = []  # noqa: RUF012

        def __init__(self) -> None:
            """Without the base class's."""

        def write(self, step: int, values: Mapping[str, float]) -> None:
            self.seen.append(step)

    fitted(Shortest())
    assert Shortest.seen == [5]


@pytest.mark.parametrize("fails", ["write", "end"])
def test_a_logger_that_fails_does_not_cost_the_run(fails: str) -> None:
    class Failing(Kept):
        tried = 0

        def write(self, step: int, values: Mapping[str, float]) -> None:
            if fails == "write":
                self.tried += 1
                raise OSError("No space left on device")

        def end(self) -> None:
            raise ConnectionError("the server is gone")

    failing, after = Failing(every=1), Kept(every=1)
    message = "Failing failed .*(No space|is gone).*goes on without it"
    with pytest.warns(LoggingFailed, match=message) as warned, failing:
        info = fitted(failing, after)
    assert len(warned) == 1
    assert info.step == info.steps == STEPS
    assert failing.tried == (fails == "write")  # and not again
    assert after.steps("covered/epsilon") == [1, 2, 3, 4, 5]


def test_every_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="every is 0"):
        Kept(every=0)


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    with CSVLogger(path, every=2) as log:
        fitted(log, metrics={"a, b": lambda model: math.inf})
    header, *lines = rows(path)
    assert header == ["step", "name", "value"]
    assert ["4", "not covered/a, b", "inf"] in lines
    assert [row[0] for row in lines if row[1] == "covered/epsilon"] == ["2", "4", "5"]


def test_a_csv_file_is_gone_on_with_and_steps_that_come_again_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    first = CSVLogger(path)
    for step in (1, 2, 3, 4):
        first.log(step, covered={"x": step})
    path.write_text(path.read_text() + "5,torn")  # as by a kill
    again = CSVLogger(path)
    again.log(3, covered={"x": 30})
    again.log(4, covered={"x": 40})
    assert [row[::2] for row in rows(path)[1:]] == [
        ["1", "1.0"],
        ["2", "2.0"],
        ["3", "30.0"],
        ["4", "40.0"],
    ]


def test_another_csv_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("name,age\n")
    with pytest.raises(ValueError, match=r"people\.csv is there, and is not a log"):
        CSVLogger(tmp_path / "people.csv")
    with pytest.raises(OSError, match="No such file"):
        CSVLogger(tmp_path / "nowhere" / "log.csv")
    assert (tmp_path / "people.csv").read_text() == "name,age\n"


class Writer:
    """TensorBoard's, which only remembers."""

    made: list["Writer"]

    def __init__(self, folder: str, purge_step: int | None = None) -> None:
        self.folder, self.purge_step, self.closed = folder, purge_step, False
        self.points: list[tuple[str, float, int]] = []
        Writer.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.points.append((name, value, step))

    def close(self) -> None:
        self.closed = True


def test_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    Writer.made = []
    with TensorBoardLogger("somewhere", every=2) as log:
        fitted(log)
    (made,) = Writer.made
    assert (made.folder, made.purge_step, made.closed) == ("somewhere", 2, True)
    assert [step for name, _, step in made.points if name == "covered/epsilon"] == [2, 4, 5]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboards_own_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for first in (2, 4):  # the second goes on from the fourth step
        with TensorBoardLogger(tmp_path) as log:
            for step in range(first, 6, 2):
                log.log(step, not_covered={"loss": first + step / 10})
    read: Any = EventAccumulator(str(tmp_path))
    read.Reload()
    found = {point.step: point.value for point in read.Scalars("not covered/loss")}
    assert found == {2: pytest.approx(2.2), 4: pytest.approx(4.4)}


def test_mlflow_by_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("mlflow")
    module.MlflowClient = client = MagicMock()
    module.entities = SimpleNamespace(Metric=lambda *given: given)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    client.return_value.search_runs.return_value = []
    with MLflowLogger("people", run="one", every=3) as log:
        fitted(log)
    calls = client.return_value.log_batch.call_args_list
    assert [(call.kwargs["metrics"][1][0], call.kwargs["metrics"][1][3]) for call in calls] == [
        ("covered/epsilon", 3),
        ("covered/epsilon", 5),
    ]
    client.return_value.set_terminated.assert_called_once_with(log.run_id)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_mlflow(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with MLflowLogger("people", run="one", name="first", uri=store, every=2) as log:
        fitted(log, metrics={"held out/loss": lambda model: 0.25})
    again = MLflowLogger("people", run="one", uri=store)
    assert again.run_id == log.run_id != MLflowLogger("people", uri=store).run_id
    client = mlflow.MlflowClient(store)
    run = client.get_run(log.run_id)
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert run.data.metrics["not covered/held out/loss"] == 0.25
    spent = client.get_metric_history(log.run_id, "covered/epsilon")
    assert [point.step for point in spent] == [2, 4, 5]


@pytest.mark.parametrize(
    ("module", "make", "extra"),
    [
        ("torch.utils.tensorboard", lambda: TensorBoardLogger("somewhere"), "tensorboard"),
        ("mlflow", MLflowLogger, "mlflow"),
    ],
)
def test_the_extra_is_named(
    module: str, make: Any, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"plumbline\[{extra}\]"):
        make()
