"""What is shown of a finished run: as many metrics as there is room for."""

import io

import pytest
import torch
from rich.console import Console

from plumbline.cli import run_summary
from plumbline.fairness import GroupReport, NumberOutcomes, Outcomes, evaluate
from plumbline.fairness.evaluating import IN_ORDER


def shown(monkeypatch: pytest.MonkeyPatch, report: GroupReport, width: int) -> str:
    stream = io.StringIO()
    monkeypatch.setattr(run_summary, "console", Console(file=stream, width=width))
    run_summary.console.print(run_summary.by_group(report, run_summary.fitting(report)))
    return stream.getvalue()


def two_classes() -> GroupReport:
    logits = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(300) % 2
    names = {0: "women", 1: "men"}
    groups = torch.arange(300) // 150
    return evaluate(Outcomes.from_logits(logits, labels), sensitive_features=groups, names=names)


def test_all_metrics_where_there_is_room_and_the_most_important_where_there_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wide = shown(monkeypatch, two_classes(), 160).splitlines()[0].split("  ")
    narrow = shown(monkeypatch, two_classes(), 50)
    assert {"accuracy", "baseline", "AUC", "macro F1"} <= {one.strip() for one in wide}
    assert "accuracy" in narrow
    assert "baseline" in narrow
    assert "macro" not in narrow
    assert max(map(len, narrow.splitlines())) <= 50


def test_what_the_table_has_no_room_for_is_told_in_a_line() -> None:
    (line,) = run_summary.others(two_classes(), ["accuracy", "baseline accuracy"])
    assert "accuracy 5" not in line.replace("balanced accuracy", "")
    for name in ("balanced accuracy", "AUC", "average precision", "loss", "calibration error"):
        assert f"{name} " in line
    (rest,) = run_summary.others(two_classes(), IN_ORDER[:-2])
    assert rest.startswith("Of all test records also: macro F1 0.")
    assert run_summary.others(two_classes(), IN_ORDER) == []


def test_numbers_are_shown_in_their_own_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = torch.linspace(0, 9000, 200, dtype=torch.float64)
    report = evaluate(
        NumberOutcomes(labels, labels + 500), sensitive_features=torch.zeros(200), names={0: "all"}
    )
    assert "500" in shown(monkeypatch, report, 100)
    assert "2,611" in shown(monkeypatch, report, 100)  # of the mean
