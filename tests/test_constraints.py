"""constraints.txt pins every direct dependency of pyproject.toml, and no install escapes it."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def canonical(requirement: str) -> str:
    """The normalised distribution name of a requirement line."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def test_every_direct_dependency_is_pinned_exactly() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    direct = [
        *pyproject["build-system"]["requires"],
        *pyproject["project"]["dependencies"],
        *(one for extra in pyproject["project"]["optional-dependencies"].values() for one in extra),
    ]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9.]*", pin)] == []
    missing = {canonical(one) for one in direct} - {canonical(pin) for pin in pins}
    assert not missing, f"not in constraints.txt: {sorted(missing)}"
