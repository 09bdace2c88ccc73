"""What a recipe sweeps is drawn: lines for each setting, a map of two."""

from pathlib import Path

import pytest

from plumbline.experiments.sweeps import swept_rows
from plumbline.report.page import page
from plumbline.report.reading import Study, read
from plumbline.report.section import Figure, Tabs
from plumbline.report.sections import sweep
from tests.report.made import comparison

ROWS = [{"name": "dpsgd"}, {"name": "dp_sat", "settings": {"clip": 0.5}}]
SWEPT = swept_rows(ROWS, {"radius": [0.01, 0.1], "learning_rate": [0.5, 1.0]})
REACHED = {
    "dpsgd, learning rate 0.5": 0.7,
    "dpsgd, learning rate 1": 0.75,
    "dp_sat, radius 0.01, learning rate 0.5": 0.71,
    "dp_sat, radius 0.01, learning rate 1": 0.76,
    "dp_sat, radius 0.1, learning rate 0.5": 0.78,
    "dp_sat, radius 0.1, learning rate 1": 0.6,
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("sweep") / "c"
    return read(
        comparison(
            folder, methods=SWEPT, seeds=(0,), accuracy=REACHED, baseline=None, readings=False
        )
    )


def figures(study: Study) -> dict[str, Figure]:
    found = sweep.section(study)
    assert found is not None
    (tabs,) = found.parts
    assert isinstance(tabs, Tabs)
    made = {}
    for title, (figure,) in tabs.panels.items():
        assert isinstance(figure, Figure)
        made[title] = figure
    return made


def test_lines_have_the_best_over_what_else_was_swept(study: Study) -> None:
    made = figures(study)
    assert list(made) == ["learning rate", "radius", "dp_sat: radius and learning rate"]
    (radius,) = made["radius"].traces
    assert (radius["x"], radius["y"]) == ([0.01, 0.1], pytest.approx([76.0, 78.0]))
    rates = {trace["legendgroup"]: trace["y"] for trace in made["learning rate"].traces}
    assert rates["dpsgd"] == pytest.approx([70.0, 75.0])
    assert rates["dp_sat"] == pytest.approx([78.0, 76.0])


def test_two_settings_are_a_map(study: Study) -> None:
    (heat,) = figures(study)["dp_sat: radius and learning rate"].traces
    assert (heat["x"], heat["y"]) == (["0.01", "0.1"], ["0.5", "1"])
    assert heat["z"] == [pytest.approx([71.0, 78.0]), pytest.approx([76.0, 60.0])]


def test_the_page_shows_it_where_there_is_a_sweep(study: Study, tmp_path: Path) -> None:
    found = sweep.section(study)
    assert found is not None
    assert 'id="sweep"' in page(study)
    report = Path(__file__).parents[2] / "docs" / "report.md"
    assert f"\n## {found.title}\n" in report.read_text(encoding="utf-8")
    assert sweep.section(read(comparison(tmp_path / "c", readings=False))) is None
