"""``fit``: the same training as the plain loop, with callbacks, a display, and a clean Ctrl-C."""

import dataclasses
import functools
import io
import random
import re
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import plumbline as pl
from plumbline.mechanism.accountant import EpsilonCurve
from plumbline.training import Callback, StepInfo, StopFitting
from plumbline.training.progress import amounts, duration, per_second
from plumbline.training.step_losses import BadRecords
from tests.training.small import budget, data, network, private, run, weights


def plain() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=80)


def terminal(width: int = 80) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, record=True, width=width)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def last_screen(console: Console) -> list[str]:
    """What the bars showed last, and what was written after them."""
    frames = console.export_text().split("steps ")  # nothing but control codes lies between them
    return [line.rstrip() for line in f"steps {frames[-1]}".splitlines()]


def forty(**settings: Any) -> pl.Private:
    return private(plan=budget(steps=40), **settings)


class TestTraining:
    def test_equals_the_plain_loop(self) -> None:
        looped, fitted = network(), network()
        run(private(looped))
        info = private(fitted).fit(progress=False)
        assert torch.equal(weights(looped), weights(fitted))
        assert info.step == info.steps == 4

    def test_takes_the_steps_that_remain(self) -> None:
        looped, fitted = network(), network()
        run(private(looped))
        mine = private(fitted)
        run(mine, 3)
        seen: list[int] = []
        mine.fit([lambda _, info: seen.append(info.step)], progress=False)
        assert seen == [4]
        assert torch.equal(weights(looped), weights(fitted))
        assert mine.fit(progress=False).step == 4

    @pytest.mark.parametrize("console", [plain, terminal])
    def test_watching_changes_nothing(self, console: Any) -> None:
        """With dropout, and a data set that draws random numbers of three generators."""

        class Augmented:
            def __len__(self) -> int:
                return 40

            def __getitem__(self, number: int) -> Any:
                x, y = data()
                factor = random.random() + float(np.random.rand()) + float(torch.rand(()))  # noqa: NPY002
                return x[number] * (1 + factor / 10), y[number]

        def trained(**watching: Any) -> torch.Tensor:
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 2))
            private(model, Augmented(), max_physical_batch=4).fit(**watching)
            return weights(model)

        metric = {"norm": lambda model: float(torch.rand(())) + float(weights(model).norm())}
        watched = trained(progress=console(), show=("epsilon", "loss"), metrics=metric)
        assert torch.equal(watched, trained(progress=False))


class TestCallbacks:
    def test_objects_and_functions_are_called_in_order(self) -> None:
        calls: list[tuple[str, int]] = []

        class Mine:
            def after_step(self, private: pl.Private, info: StepInfo) -> None:
                assert private.steps_done == info.step
                calls.append(("object", info.step))

        def function(private: pl.Private, info: StepInfo) -> None:
            calls.append(("function", info.step))

        assert isinstance(Mine(), Callback)
        private().fit([Mine(), function], progress=False)
        assert calls == [(kind, step) for step in (1, 2, 3, 4) for kind in ("object", "function")]

    def test_the_info_is_frozen_and_holds_nothing_private(self) -> None:
        infos: list[StepInfo] = []
        mine = private()
        mine.fit([lambda _, info: infos.append(info)], progress=False)
        assert {field.name for field in dataclasses.fields(StepInfo)} == {
            "step",
            "steps",
            "spent",
            "delta",
        }
        for info in infos:
            assert isinstance(info.spent, functools.partial)
            assert isinstance(info.spent.func, EpsilonCurve)
            assert info.spent.args == (info.step,)
        with pytest.raises(dataclasses.FrozenInstanceError):
            infos[0].step = 3  # type: ignore[misc]
        spent = [info.epsilon for info in infos]
        assert spent == sorted(spent)
        assert spent[-1] == mine.epsilon()
        assert infos[0].steps == 4
        assert infos[0].delta == 1e-3

    def test_a_callback_can_change_the_learning_rate(self) -> None:
        def stand_still(private: pl.Private, _: StepInfo) -> None:
            private.optimizer.param_groups[0]["lr"] = 0.0

        one, other = network(), network()
        run(private(one), 1)
        private(other).fit([stand_still], progress=False)
        assert torch.equal(weights(one), weights(other))

    @pytest.mark.parametrize("console", [plain, terminal])
    def test_a_callback_can_stop_the_run(self, console: Any) -> None:
        def enough(_: pl.Private, info: StepInfo) -> None:
            if info.step == 2:
                raise StopFitting("good enough")

        mine, shown = private(), console()
        info = mine.fit([enough], progress=shown)
        assert info.step == mine.steps_done == 2
        assert "Stopped by a callback: good enough" in written(shown)
        assert mine.fit(progress=False).step == 4

    @pytest.mark.parametrize("console", [plain, terminal])
    def test_an_error_comes_through(self, console: Any) -> None:
        def fails(_: pl.Private, info: StepInfo) -> None:
            raise OSError("disk full")

        mine, shown = private(), console()
        with pytest.raises(OSError, match="disk full"):
            mine.fit([fails], progress=shown)
        assert mine.steps_done == 1
        hide, show = "\x1b[?25l", "\x1b[?25h"  # the cursor, while there are bars
        assert written(shown).count(hide) == written(shown).count(show) <= 1

    def test_what_cannot_be_called_is_refused(self) -> None:
        with pytest.raises(TypeError, match=r"of type int is neither a function.*after_step"):
            private().fit([3])  # type: ignore[list-item]


class TestLines:
    def test_a_line_for_every_twentieth(self) -> None:
        console = plain()
        forty().fit(progress=console)
        lines = written(console).splitlines()
        assert len(lines) == 20
        pattern = (
            r"step (\d+) of 40 \((\d+)%\); epsilon (\d+\.\d\d) of (\d+\.\d\d) at delta 0\.001; "
            r"[\d,.e+]+ records/s; (\d+:\d\d:\d\d left|took \d+:\d\d:\d\d)"
        )
        found = [re.fullmatch(pattern, line) for line in lines]
        assert all(found), written(console)
        assert [match and match[1] for match in found] == [str(step) for step in range(2, 41, 2)]
        assert found[-1]
        assert found[-1][2] == "100"
        assert found[-1][3] == found[-1][4]
        assert "took" in found[-1][5]

    @pytest.mark.parametrize(("steps", "most"), [(1, 1), (3, 3), (20, 20), (21, 11), (41, 14)])
    def test_short_runs_and_odd_numbers(self, steps: int, most: int) -> None:
        console = plain()
        private(plan=budget(steps=steps)).fit(progress=console)
        lines = written(console).splitlines()
        assert len(lines) == most
        assert lines[-1].startswith(f"step {steps} of {steps} (100%)")

    def test_no_control_codes(self) -> None:
        console = plain()
        forty().fit(progress=console, show=("epsilon", "loss"))
        assert "\x1b" not in written(console)
        assert "\r" not in written(console)

    def test_what_is_not_covered_is_shown_only_when_asked_and_marked(self) -> None:
        silent, asked = plain(), plain()
        metrics = {"accuracy": lambda _: 0.75}
        forty().fit(progress=silent)
        forty().fit(progress=asked, show=("epsilon", "loss"), metrics=metrics)
        assert "loss" not in written(silent)
        assert "covered" not in written(silent)
        for line in written(asked).splitlines():
            assert re.search(r"; not covered by epsilon: loss [\d.]+, accuracy 0\.75$", line)

    def test_epsilon_can_be_left_out(self) -> None:
        console = plain()
        private().fit(progress=console, show=())
        assert "epsilon" not in written(console)

    def test_the_loss_is_the_mean_over_the_batch_before_the_step(self) -> None:
        console = plain()
        model = network()
        mine = private(model, plan=budget(steps=1), max_physical_batch=3)
        x, y = data()
        indices = next(iter(mine)).indices
        expected = nn.functional.cross_entropy(model(x[indices]), y[indices]).item()
        mine.fit(progress=console, show=("loss",))
        assert f"not covered by epsilon: loss {expected:.4g}" in written(console)

    def test_an_empty_batch_and_bad_records_have_no_loss_to_show(self) -> None:
        x, y = data()
        console = plain()
        tiny = budget(expected_batch_size=None, sampling_rate=1e-6)
        private(plan=tiny).fit(progress=console, show=("loss",))
        assert "loss" not in written(console)
        x[::2] = float("nan")
        console = plain()
        with pytest.warns(BadRecords):
            private(dataset=(x, y)).fit(progress=console, show=("loss",))
        assert re.search(r"loss [\d.]+\n", written(console))
        assert "nan" not in written(console)

    def test_without_a_guarantee(self) -> None:
        console = plain()
        private(method=pl.methods.clipped_only(0.5)).fit(progress=console)
        assert "epsilon infinite: no privacy guarantee" in written(console)


class TestBars:
    def test_steps_epsilon_speed_and_time(self) -> None:
        console = terminal()
        mine = forty()
        mine.fit(progress=console)
        steps, epsilon = last_screen(console)
        assert re.search(r"40 of 40 took \d:\d\d:\d\d(, [\d,.e+]+ records/s)?$", steps)
        total = amounts(mine.plan.epsilon, mine.plan.epsilon)
        assert epsilon.startswith("epsilon ")
        assert epsilon.endswith(f"{total} at delta 0.001")

    @pytest.mark.parametrize("width", [60, 80, 200])
    def test_it_fits_the_terminal(self, width: int) -> None:
        console = terminal(width)
        forty().fit(progress=console, show=("epsilon", "loss"))
        screen = last_screen(console)
        assert max(map(len, screen)) <= width
        assert len(screen) == 3

    def test_what_is_not_covered_stands_below_and_says_so(self) -> None:
        silent, asked = terminal(), terminal()
        forty().fit(progress=silent)
        forty().fit(progress=asked, show=("epsilon", "loss"), metrics={"accuracy": lambda _: 0.5})
        assert "covered" not in silent.export_text()
        assert re.fullmatch(
            r"not covered by epsilon: loss [\d.]+, accuracy 0\.5", last_screen(asked)[-1]
        )

    def test_epsilon_can_be_left_out(self) -> None:
        console = terminal()
        private().fit(progress=console, show=())
        assert "epsilon" not in console.export_text()

    def test_without_a_guarantee(self) -> None:
        console = terminal()
        private(method=pl.methods.clipped_only(0.5)).fit(progress=console)
        assert last_screen(console)[1:] == ["epsilon infinite: no privacy guarantee"]

    def test_it_goes_on_where_the_run_stands(self) -> None:
        console = terminal()
        mine = private()
        run(mine, 3)
        mine.fit(progress=console)
        assert "4 of 4" in last_screen(console)[0]


class TestMetrics:
    def test_are_taken_about_twenty_times_in_evaluation_mode(self) -> None:
        model = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 2))
        model[0].eval()
        calls: list[tuple[bool, bool]] = []

        def metric(given: nn.Module) -> float:
            assert given is model
            calls.append((any(m.training for m in given.modules()), torch.is_grad_enabled()))
            return 0.0

        private(model, plan=budget(steps=40)).fit(progress=plain(), metrics={"metric": metric})
        assert calls == [(False, False)] * 20
        assert [m.training for m in model.modules()] == [True, False, True, True]

    def test_modes_are_put_back_when_a_metric_fails(self) -> None:
        model = network()

        def metric(_: nn.Module) -> float:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            private(model).fit(progress=plain(), metrics={"metric": metric})
        assert all(module.training for module in model.modules())
        assert torch.is_grad_enabled()

    def test_are_not_taken_when_nothing_is_shown(self) -> None:
        calls: list[int] = []
        private().fit(progress=False, metrics={"metric": lambda _: calls.append(1) or 0.0})
        assert calls == []


class TestWhere:
    def test_standard_error_by_default(self, capsys: pytest.CaptureFixture[str]) -> None:
        private().fit()
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "step 4 of 4 (100%)" in captured.err

    def test_nowhere(self, capsys: pytest.CaptureFixture[str]) -> None:
        private().fit(progress=False)
        captured = capsys.readouterr()
        assert captured.out == captured.err == ""

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"show": ("los",)}, ValueError, "show has 'los'; what can be shown"),
            ({"show": "loss"}, TypeError, r"give a tuple of names, as in \('loss',\)"),
            ({"metrics": {"loss": lambda _: 0.0}}, ValueError, "name it otherwise"),
        ],
    )
    def test_arguments_are_checked(
        self, arguments: dict[str, Any], error: type[Exception], message: str
    ) -> None:
        mine = private()
        with pytest.raises(error, match=message):
            mine.fit(progress=False, **arguments)
        assert mine.steps_done == 0


@pytest.fixture
def default_handler() -> Iterator[None]:
    """As in an interactive session; a test worker may have another."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("default_handler")
class TestCtrlC:
    @pytest.mark.parametrize("console", [plain, terminal])
    def test_stops_after_the_step(self, console: Any) -> None:
        whole, stopped = network(), network()
        run(private(whole))
        mine, shown = private(stopped), console()
        original = mine.optimizer.step

        def pressed_in_the_middle(*args: Any, **kwargs: Any) -> Any:
            if mine.steps_done == 2:
                signal.raise_signal(signal.SIGINT)
            return original(*args, **kwargs)

        mine.optimizer.step = pressed_in_the_middle  # type: ignore[method-assign]
        info = mine.fit(progress=shown)
        assert info.step == mine.steps_done == mine.charged == 2
        assert "Stopped after the step, as asked. Call fit() to go on" in written(shown)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert mine.fit(progress=False).step == 4
        assert torch.equal(weights(whole), weights(stopped))

    def test_twice_interrupts_at_once(self) -> None:
        def twice(_: pl.Private, info: StepInfo) -> None:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

        mine = private()
        with pytest.raises(KeyboardInterrupt):
            mine.fit([twice], progress=plain())
        assert mine.steps_done == 1
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_in_the_last_step_the_run_is_complete(self) -> None:
        def at_the_end(_: pl.Private, info: StepInfo) -> None:
            if info.step == info.steps:
                signal.raise_signal(signal.SIGINT)

        console = plain()
        assert private().fit([at_the_end], progress=console).step == 4
        assert "Stopped" not in written(console)

    def test_a_handler_of_the_users_own_stays(self) -> None:
        pressed: list[int] = []
        signal.signal(signal.SIGINT, lambda *_: pressed.append(1))

        def press(_: pl.Private, info: StepInfo) -> None:
            signal.raise_signal(signal.SIGINT)

        assert private().fit([press], progress=False).step == 4
        assert len(pressed) == 4

    def test_another_thread_has_no_handlers(self) -> None:
        infos: list[StepInfo] = []
        mine = private()
        thread = threading.Thread(target=lambda: infos.append(mine.fit(progress=False)))
        thread.start()
        thread.join()
        assert [info.step for info in infos] == [4]


def test_numbers_in_words() -> None:
    assert amounts(2.401, 8) == "2.41 of 8.00"
    assert amounts(0.0, 3.0) == "0.00 of 3.00"
    assert amounts(3.0, 3.0) == "3.00 of 3.00"
    assert amounts(0.00121, 0.05) == "0.0013 of 0.0500"
    assert duration(None) == "-:--:--"
    assert duration(0.2) == "0:00:01"
    assert duration(3725) == "1:02:05"
    assert per_second(1234.5) == "1,234 records/s"
    assert per_second(0.25) == "0.25 records/s"
