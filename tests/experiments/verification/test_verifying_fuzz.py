"""Changed files of a run: something is contradicted or refused by name; never a traceback."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plumbline.experiments.files import FileError
from plumbline.experiments.model_card import NoCard, model_card
from plumbline.experiments.verification import CONTRADICTED, verify
from tests.fuzzing import FEW, MANY, VALUES, altered, fuzz


@pytest.mark.parametrize("name", ["recipe.json", "result.json", "manifest.json", "versions.json"])
@pytest.mark.parametrize("amount", [FEW // 5, pytest.param(MANY // 10, marks=pytest.mark.slow)])
def test_changed_values(amount: int, name: str, copied: Callable[[], Path]) -> None:
    folder = copied()
    (folder / "versions.json").write_text('{"plumbline": "0", "torch": "0"}')
    original = json.loads((folder / name).read_text())
    plain = json.dumps(original)
    shutil.copy(folder / name, folder / f"{name}.before")

    def check(changed: Any) -> None:
        (folder / name).write_text(json.dumps(changed))
        try:
            found = verify(folder)
        except FileError as error:
            assert name in str(error)  # noqa: PT017
            return
        # versions.json is not what the manifest has, whatever else was changed.
        if json.dumps(changed) != plain and name in ("recipe.json", "result.json"):
            assert found.of(CONTRADICTED)
        with pytest.raises(NoCard):
            model_card(found)

    fuzz(altered(original, (*VALUES, None)), check, amount)


@pytest.mark.parametrize("amount", [FEW // 5, pytest.param(MANY // 10, marks=pytest.mark.slow)])
def test_a_result_that_nobody_hashed(amount: int, copied: Callable[[], Path]) -> None:
    """Of a run without a manifest every value of the result may be anything."""
    folder = copied()
    (folder / "manifest.json").unlink()
    original = json.loads((folder / "result.json").read_text())

    def check(changed: Any) -> None:
        (folder / "result.json").write_text(json.dumps(changed))
        try:
            model_card(verify(folder))
        except (FileError, NoCard) as error:
            assert folder.name in str(error)  # noqa: PT017

    fuzz(altered(original, (*VALUES, None)), check, amount)
