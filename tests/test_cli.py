"""The command line: what it prints, its exit codes, and errors in words."""

import json
import sys
from pathlib import Path

import pytest

from plumbline import cli
from plumbline.mechanism.accountant import epsilon
from plumbline.mechanism.release import GaussianQuery, PoissonSampling, StepRelease
from plumbline.methods import REGISTRY


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["plumbline", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert isinstance(end.value.code, int)
    return end.value.code


def test_methods_lists_every_method(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "methods", "--json") == 0
    assert {row["name"] for row in json.loads(capsys.readouterr().out)} == set(REGISTRY)
    assert command(monkeypatch, "methods") == 0
    assert "dp_sat_momentum" in capsys.readouterr().out


def test_budget_gives_noise_that_meets_the_epsilon(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--records", "5000", "--batch", "250", "--epochs", "2", "--epsilon", "2"]
    assert command(monkeypatch, "budget", *options, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    noise = found["gradient"]["pld"]
    asked = GaussianQuery(name="gradient", sensitivity=1.0, noise_multiplier=noise)
    release = StepRelease(sampling=PoissonSampling(rate=0.05), queries=(asked,))
    spent = epsilon([(release, 40)], delta=1e-5)
    assert 1.98 < spent <= 2
    assert found["ascent gradient, gradient"]["pld"] == pytest.approx(noise * 2**0.5, rel=5e-3)
    listed = {name for row in found.values() for name in row["methods"]}
    guaranteed = {
        name
        for name, entry in REGISTRY.items()
        if entry.make(**entry.example()).unbounded_reason is None
    }
    assert listed == guaranteed


def test_data_list_says_what_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PLUMBLINE_DATA", str(tmp_path))
    assert command(monkeypatch, "data", "list", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["folder"] == str(tmp_path)
    assert found["data"]["mnist"] == {"files": 4, "there": 0}
    assert command(monkeypatch, "data", "list") == 0
    assert "bundled" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["data", "get", "mnits"], 2, "no data set 'mnits'. Did you mean 'mnist'?"),
        (["data", "get", "imagenet32"], 1, "put them here"),
        (["compare", "nosuch.toml"], 2, "nosuch.toml cannot be read: No such file"),
        (["nocommand"], 2, "No such command 'nocommand'"),
        (["budget", "--records", "ten"], 2, "'--records': Input should be a valid integer"),
        (["ledger", "nosuch"], 1, "nosuch"),
    ],
)
def test_errors_are_words_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.setenv("PLUMBLINE_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, *arguments) == code
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["plumbline", "compare", "nosuch.toml", "--debug"])
    with pytest.raises(ValueError, match="cannot be read"):
        cli.main()
