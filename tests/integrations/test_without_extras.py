"""Without the library that a trainer is of, the error names the extra."""

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("transformers_trainer", "transformers", "transformers"),
        ("lightning", "lightning.pytorch", "lightning"),
    ],
)
def test_the_extra_is_named(
    module: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("plumbline.integrations.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=rf"plumbline\[{extra}\]"):
        importlib.import_module(f"plumbline.integrations.{module}")
