"""plotly.js as pages have it: set up for the kinds of traces in use, whole where that is unsure."""

import re

import pytest
from plotly.offline import get_plotlyjs

from plumbline.report import bundle


def registered(text: str) -> list[str]:
    """What the bundle's one long list of modules has left."""
    found = re.findall(r"\.register\(\[((?:[\w$]+\(\),?)*)\]\)", text)
    return found[-1].replace("()", "").split(",") if found[-1] else []


def test_only_the_kinds_in_use_are_set_up() -> None:
    whole, made = get_plotlyjs(), bundle.plotly(["bar", "scatter", "contour"])
    everything = registered(whole)
    assert len(everything) > 40
    assert len(registered(made)) == 2
    assert set(registered(made)) < set(everything)
    # Nothing else differs.
    start = whole.index("register([" + everything[0])
    assert made[:start] == whole[:start]
    assert made.endswith(whole[whole.index("])", start) :])


def test_scatter_is_in_plotly_itself() -> None:
    assert registered(bundle.plotly(["scatter"])) == []


def test_a_kind_that_is_not_found_leaves_the_bundle_whole() -> None:
    assert bundle.plotly(["bar", "no-such-kind"]) == get_plotlyjs()


def test_another_build_of_plotly_is_left_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    other = "(function () { Plotly.registerAll(); })()"
    monkeypatch.setattr(bundle, "get_plotlyjs", lambda: other)
    bundle._modules.cache_clear()
    try:
        assert bundle.plotly(["bar"]) == other
    finally:
        bundle._modules.cache_clear()
