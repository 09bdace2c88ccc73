"""docs/proofs.md has a proof for every part that touches records, and names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

from plumbline.clipping import CLIPPINGS
from plumbline.evaluation import EVALUATIONS
from plumbline.methods import METHODS

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "proofs.md").read_text(encoding="utf-8")
HEADINGS = set(re.findall(r"^#+ (.+)$", TEXT, re.MULTILINE))
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)))


def inside(*packages: str) -> list[str]:
    """Parts of Plumbline's own: others may be registered by other tests."""
    found = []
    for registry in (CLIPPINGS, EVALUATIONS):
        found += [
            name
            for name in registry
            if registry[name].__module__.startswith(packages)  # "plumbline.clipping.flat"
        ]
    return found


@pytest.mark.parametrize("name", inside("plumbline.clipping", "plumbline.evaluation"))
def test_every_clipping_and_evaluation_has_a_section_with_a_test_or_a_contract(name: str) -> None:
    assert name in HEADINGS
    section = re.split(rf"^### {name}$", TEXT, flags=re.MULTILINE)[1].split("\n#")[0]
    assert len(section.split()) >= 5


def test_every_method_is_in_the_table() -> None:
    own = {name for name in METHODS if METHODS[name].make.__module__.startswith("plumbline.")}
    rows = [line for line in TEXT.splitlines() if line.startswith("| `")]
    first = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert own - first == set()
    assert first - own == set()


def test_tests_are_named() -> None:
    assert len(NAMED) > 40


@pytest.mark.parametrize("path", sorted({path for path, _ in NAMED}))
def test_every_test_that_is_named_is_there(path: str) -> None:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert {name for file, name in NAMED if file == path} - found == set()
