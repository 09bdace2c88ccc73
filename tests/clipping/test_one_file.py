"""To add a clipping to the package is to add one file."""

import sys
from pathlib import Path

import pytest

import plumbline.clipping as package
from plumbline.clipping import CLIPPINGS
from plumbline.methods import find
from plumbline.registry import import_files

NEW = '''
from dataclasses import dataclass

from plumbline.clipping.base import clipping
from plumbline.clipping.flat import Flat


@clipping
@dataclass(frozen=True)
class Newcomer(Flat):
    """As flat clipping."""
'''


@pytest.mark.usefixtures("outside")  # which forgets it again
def test_one_file_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "newcomer.py").write_text(NEW)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    monkeypatch.setitem(sys.modules, "plumbline.clipping.newcomer", None)
    del sys.modules["plumbline.clipping.newcomer"]  # and is put back as it was
    import_files(package.__name__, package.__path__)
    assert CLIPPINGS["Newcomer"].__module__ == "plumbline.clipping.newcomer"
    assert find("Newcomer").make(clip=0.5).clipping.sensitivity == 0.5
