"""What ``import plumbline`` offers: every name listed, and found in any order of import."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import plumbline

NAMES = sorted(plumbline.__all__)
PACKAGES = [name for name in NAMES if plumbline._MODULES[name] == "plumbline"]


def test_dir_lists_what_there_is() -> None:
    shown = dir(plumbline)
    assert set(NAMES) <= set(shown)
    assert [name for name in shown if not name.startswith("__")] == NAMES
    assert "__version__" in shown
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        plumbline.no_such_name  # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(plumbline.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == plumbline._MODULES


ORDERS = {"forwards": NAMES, "backwards": NAMES[::-1], **{name: [name] for name in PACKAGES}}


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """The names that are found in each order, by one interpreter that forgets plumbline between."""
    code = f"""
import json
import sys
found = {{}}
for which, order in {ORDERS!r}.items():
    for module in [name for name in sys.modules if name.split(".")[0] == "plumbline"]:
        del sys.modules[module]
    import plumbline as pl
    found[which] = [
        getattr(getattr(pl, name), "__name__", name) for name in order if getattr(pl, name)
    ]
found["numba"] = [name for name in sys.modules if name == "numba"]
print(json.dumps(found))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=300, capture_output=True, text=True
    )
    names: dict[str, list[str]] = json.loads(done.stdout)
    return names


@pytest.mark.parametrize("order", ["forwards", "backwards"])
def test_names_are_found_in_any_order(order: str, found: dict[str, list[str]]) -> None:
    assert len(found[order]) == len(NAMES)


def test_every_package_is_found_first(found: dict[str, list[str]]) -> None:
    assert {first: found[first] for first in PACKAGES} == {
        first: [f"plumbline.{first}"] for first in PACKAGES
    }


def test_numba_is_imported_when_a_loop_is_called(found: dict[str, list[str]]) -> None:
    """It takes half a second, of every process."""
    assert found["numba"] == []


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in Path(plumbline.__file__).parent.rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if found := re.match(r"class (\w+)", line):
                places.setdefault(found[1], []).append(path.name)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
