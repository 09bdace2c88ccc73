import pytest

from plumbline.cli.app import console
from plumbline.methods import METHODS
from tests.cli.calling import Called


@pytest.mark.parametrize("width", [80, 140])
def test_every_method_is_listed(call: Called, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(console, "width", width)
    assert call("methods") == 0
    assert all(f"{name} " in call.out for name in METHODS)
    assert ("keeps" in call.out) == (width > 100)
    assert call("methods", "--json") == 0
    assert {row["name"] for row in call.json} == set(METHODS)


def test_one_method_has_its_settings(call: Called) -> None:
    assert call("methods", "global-adapt") == 0
    assert "count_noise" in call.out
    assert call("methods", "global-adapt", "--json") == 0
    assert call.json["settings"]["initial"] == 50.0
    assert call("methods", "batch_clipping") == 0
    assert "must be given" in call.out
    assert call("methods", "batch_clipping", "--json") == 0
