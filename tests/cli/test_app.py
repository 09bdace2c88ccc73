"""What all commands share: help, exit codes, errors in words, and what is imported."""

import re
import subprocess
import sys

import pytest

from plumbline import cli
from plumbline.cli.app import Stopped, app, console, show_statement
from plumbline.experiments import Recipe
from plumbline.experiments.recipes import find
from tests.cli.calling import Called

COMMANDS = (
    "compare", "train", "predict", "diagnose", "tune", "reproduce", "report", "budget", "methods",
    "ledger", "verify",
)  # fmt: skip


def test_help_lists_the_commands_in_order(call: Called) -> None:
    assert call("--help") == 0
    places = [call.out.index(f"│ {name} ") for name in (*COMMANDS, "audit", "data")]
    assert places == sorted(places)
    assert call() == 2
    assert "compare" in call.out


@pytest.mark.parametrize(
    "name", [*COMMANDS, "audit step", "audit run", "audit membership", "data list", "data get"]
)
def test_every_command_has_examples_and_json(call: Called, name: str) -> None:
    assert call(*name.split(), "--help") == 0
    assert f"plumbline {name}" in call.out.split("Examples")[1]
    assert "--json" in call.out


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"]])
def test_help_does_not_wait_for_torch(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from plumbline.cli import main\n"
        f"sys.argv = ['plumbline', *{arguments!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_version_is_the_package_s(call: Called) -> None:
    assert call("--version") == 0
    assert call.out.strip().startswith("0.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compar", "demo"], "No such command 'compar'. Did you mean 'compare'?"),
        (["nonsense"], "No such command 'nonsense'."),
        (["data", "lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["budget", "--recods", "3"], "Did you mean --records?"),
        (["train", "--sensitiv", "sex"], "Did you mean --sensitive?"),
        (["budget", "--records", "10"], "Missing option '--epsilon'."),
        (["budget", "--records", "ten", "--epsilon", "1"], "'--records'"),
        (["methods", "globl-adapt"], "no method 'globl-adapt'. Did you mean 'global_adapt'?"),
        (["data", "get", "mnits"], "no data set 'mnits'. Did you mean 'mnist'?"),
        (["compare", "nosuch.toml"], "There is no recipe file nosuch.toml"),
        (["compare", "dmo"], "Did you mean 'demo'?"),
        (["ledger", "nosuch"], "There is no ledger at nosuch"),
        (["report", "nosuch"], "There is no folder nosuch"),
        (["diagnose", "nosuch"], "'nosuch' is no folder, file or recipe. Give a run's folder"),
        (["train", "."], "'.' is a folder without a run. Give a run's folder"),
        (["diagnose", "demo", "--data", "my.csv"], "'demo' has its own data and target: leave out"),
        (["report", "."], "has no recipe.json"),
        (["reproduce"], "Which one?"),
        (["reproduce", "nosuch"], "no reproduction 'nosuch'"),
        (["compare", "demo", "--epsilon", "1,1"], "--epsilon is 1,1; give each once."),
        (["train", "demo", "--target", "x"], "--target describes a table, which --data names"),
        (["compare", "demo", "--workers", "0"], "--workers"),
    ],
)
def test_wrong_use_is_told_in_words(call: Called, arguments: list[str], message: str) -> None:
    assert call(*arguments) == 2
    assert message in call.err
    assert "Traceback" not in call.err
    assert call.err.startswith("plumbline: ")
    assert len(call.err.strip().splitlines()) == 1
    assert not call.out


def test_recipes_that_are_offered_are_there(call: Called) -> None:
    assert call("train") == 2
    (offered,) = re.findall(r"'plumbline train (\S+)'", call.err)
    assert find(offered)
    assert call("tune", "--help") == 0
    tuned, kept = (
        re.search(pattern, call.out)
        for pattern in (
            r"plumbline tune (\w\S+) --trials",
            r"plumbline compare runs/(\S+)/tuned\.toml",
        )
    )
    assert tuned
    assert kept
    assert Recipe.read(find(tuned[1])).name == kept[1]


def test_a_failure_has_another_code(call: Called) -> None:
    assert call("data", "get", "imagenet32") == 1
    assert "put them here" in call.err


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["plumbline", "compare", "nosuch.toml", "--debug"])
    with pytest.raises(ValueError, match="no recipe file"):
        cli.main()


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (Stopped("kept: all"), 130, "plumbline: kept: all"),
        (KeyboardInterrupt(), 130, "plumbline: stopped."),
        (ZeroDivisionError("of what"), 1, "ZeroDivisionError: of what (--debug shows"),
        (OSError("no space"), 1, "plumbline: no space"),
        (ValueError("wrong"), 2, "plumbline: wrong"),
    ],
)
def test_how_a_command_ends(
    call: Called, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def methods() -> None:
        raise error

    command = next(one for one in app.registered_commands if one.callback.__name__ == "methods")  # type: ignore[union-attr]
    monkeypatch.setattr(command, "callback", methods)
    assert call("methods") == code
    assert message in call.err


def test_the_shell_is_told_how_to_complete(call: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    # Which shell it is, is looked up among this process's parents: there may be none.
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    assert call("--show-completion", "bash") == 0
    assert "_PLUMBLINE_COMPLETE" in call.out


def test_a_statement_is_filled_for_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "width", 40)
    start, end = "one two three four five six seven eight nine:", "ten eleven twelve thirteen"
    words = f"{start} {end}"
    show_statement(f"{start}\n{end}\n\nCovered:\n- {start}\n  {end}\n- b\n")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    assert " ".join(" ".join(lines).split()) == f"{words} Covered: - {words} - b"
    assert lines[lines.index("Covered:") + 2].startswith("  ")
    assert "nine: ten eleven twelve thirteen" in lines  # a colon at a line's end is no title
