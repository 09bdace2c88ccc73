"""A network that cannot take the data is told before anything runs."""

from pathlib import Path
from typing import Any

import pytest

from plumbline.experiments import RecipeError, compare, running
from plumbline.experiments.compatibility import check_fits, pairs
from plumbline.experiments.run_spec import RunSpec
from tests.experiments.small import fields, recipe, spec

LINEAR = {"name": "adult-linear"}


def test_a_network_for_other_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of a later row: the rows before it are not run in vain."""
    monkeypatch.setattr(running, "_made", lambda *_: pytest.fail("a run was started"))
    rows = [{"name": "dpsgd"}, {"name": "dpsgd", "label": "linear", "model": LINEAR}]
    with pytest.raises(RecipeError) as refused:
        compare(recipe(methods=rows), tmp_path, workers=1)
    words = str(refused.value)
    assert "'adult-linear' cannot take the data set 'adult': a record has the shape [98]" in words
    assert "It takes: 150-2, [B, features] to logits" in words
    assert "features: int = 150" in words
    assert "'steps'" in words


@pytest.mark.parametrize(
    ("part", "options"), [("model", {"widths": 1}), ("data", {"scalling": "steps"})]
)
def test_an_option_that_is_not_there(part: str, options: dict[str, Any]) -> None:
    changed = {**fields()[part], "options": options}
    with pytest.raises(RecipeError, match=next(iter(options))):
        check_fits(spec(**{part: changed}))


def test_what_fits_is_asked_once_for_all_runs() -> None:
    one = recipe(data={"name": "adult", "options": {"scaling": "steps"}}, model=LINEAR)
    specs = [RunSpec(one, method, seed) for seed in one.seeds for method in one.methods]
    (asked,) = pairs(specs).values()
    check_fits(asked)
