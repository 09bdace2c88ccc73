"""A network that cannot take the data is told before anything runs."""

from pathlib import Path
from typing import Any

import pytest
import torch

from plumbline.experiments import RecipeError, compare, running
from plumbline.experiments.compatibility import check_fits, parts_of
from plumbline.experiments.run_spec import RunSpec
from plumbline.instruments import recipe_of
from tests.experiments.small import fields, recipe, spec

LINEAR = {"name": "linear"}
NARROW = {"name": "linear", "options": {"features": 150}}


def test_a_network_for_other_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of a later row: the rows before it are not run in vain."""
    monkeypatch.setattr(running, "_made", lambda *_: pytest.fail("a run was started"))
    rows = [{"name": "dpsgd"}, {"name": "dpsgd", "label": "linear", "model": NARROW}]
    with pytest.raises(RecipeError) as refused:
        compare(recipe(methods=rows), tmp_path, workers=1)
    words = str(refused.value)
    assert "'linear' cannot take the data 'adult': a record has the shape [98]" in words
    assert "The network's options: features, classes." in words
    assert "\n" not in words


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
    asked = {parts_of(spec): spec for spec in specs}
    assert len(asked) == len(one.methods)
    for first in asked.values():
        check_fits(first)


def test_a_method_that_needs_groups_is_told_so() -> None:
    x, y = torch.randn(40, 3), torch.randint(2, (40,))
    one = recipe_of(data=(x, y), methods=["dpsgd_f"], epochs=1, batch=10)
    with pytest.raises(RecipeError, match="treats groups differently"):
        check_fits(RunSpec(one, one.methods[0], 0))
