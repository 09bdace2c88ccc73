"""A figure in a file of its own: html always, images where plotly's exporter is there."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from plumbline import report
from plumbline.registry import UnknownPart
from plumbline.report.saving import light, saved
from tests.report.made import comparison


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> report.Study:
    return report.read(comparison(tmp_path_factory.mktemp("saving") / "c", tuning=True))


def test_every_figure_has_a_name_to_ask_for_it_by(study: report.Study) -> None:
    names = report.figure_names(study)
    assert len(names) == len(set(names)) > 30
    assert {"results-accuracy", "bending-bias", "norms-histogram-1"} <= set(names)
    for name in names:
        assert report.figure(study, name).name == name
    with pytest.raises(UnknownPart, match="no figure 'bending-bais'"):
        report.figure(study, "bending-bais")


def test_every_figure_can_be_drawn_in_light_colours(study: report.Study) -> None:
    for name in report.figure_names(study):
        text = json.dumps(light(report.figure(study, name)))
        assert not re.search(r'"@(text|muted|surface|raised|line|grid|c[1-7])', text), name


def test_a_figure_is_saved_as_a_page_that_needs_nothing_else(
    study: report.Study, tmp_path: Path
) -> None:
    path = report.save(report.figure(study, "bending-bias"), tmp_path / "bias.html")
    text = path.read_text(encoding="utf-8")
    assert "The bias along training" in text
    assert "<script src=" not in text
    assert '"#d55e00"' in text


def test_it_has_a_legend(study: report.Study) -> None:
    figure = report.figure(study, "spending-epsilon")
    drawn = light(figure)
    entries = [trace for trace in drawn["data"] if trace["showlegend"]]
    assert [one["name"] for one in entries] == [key.name for key in figure.keys]
    assert all(re.fullmatch("#[0-9a-f]{6}", one["line"]["color"]) for one in entries)
    assert drawn["layout"]["paper_bgcolor"] == "#ffffff"
    assert saved(figure)["names"] == [key.name for key in figure.keys]


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_images_need_the_exporter(
    study: report.Study, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = report.figure(study, "bending-bias")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="pip install kaleido"):
        report.save(figure, tmp_path / f"bias.{kind}")


def test_other_endings_are_refused(study: report.Study, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'bias\.pdf'; its name must end in \.html, \.svg"):
        report.save(report.figure(study, "bending-bias"), tmp_path / "bias.pdf")
