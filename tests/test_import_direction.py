"""Imports point one way (the house rules in CONTRIBUTING.md).

`ALLOWED` says, for every top-level package or module of plumbline, which others it may import.
Type-checking imports and imports inside functions count too: to know a name is to depend on it.
"""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "plumbline"

# These know nothing of the others.
# fmt: off
SHARED = {"checks", "compiled", "durable", "file_lock", "formats", "record_errors",
          "record_random", "registry", "repeated_records", "results", "spaces", "state",
          "transformer_masks", "without_trace"}
# fmt: on
STAGES = {"sampling", "noise", "gradients", "evaluation", "clipping", "mechanism"} | SHARED
CORE = STAGES | {"training", "methods", "augmentations"}
DOOR = CORE | {"auditing", "private_training"}
BESIDE = {"data", "models", "fairness", "diagnostics", "objectives"}
EVERYTHING = DOOR | BESIDE | {"experiments", "report"}

ALLOWED: dict[str, set[str]] = {
    # the stages of a step
    "gradients": {
        "compiled",
        "record_errors",
        "record_random",
    },  # what is random in a model belongs to a record
    "mechanism": {
        "compiled",
        "durable",  # what to do about what the system refuses, of a ledger's file too
        "file_lock",
        "results",
    },  # the statement for programs names infinity as all JSON does
    "sampling": {"mechanism"},  # a sampler emits the event that is accounted
    "noise": {"mechanism"},  # what bands need is a question to the accountant
    "clipping": {"mechanism"} | SHARED,  # a strategy may ask questions of its own, such as counts
    "evaluation": {"gradients", "mechanism"} | SHARED,  # so may a rule
    # the step
    "methods": {"evaluation", "clipping", "gradients", "mechanism", "augmentations"} | SHARED,
    "training": STAGES | {"methods"},
    # what they share
    "checks": set(),
    "compiled": set(),
    "durable": set(),
    "file_lock": set(),
    "formats": set(),
    "record_errors": set(),
    "record_random": set(),
    "registry": set(),
    "repeated_records": set(),
    "spaces": set(),
    "state": set(),
    "transformer_masks": {"without_trace"},
    "without_trace": {"record_random"},
    "results": set(),
    "augmentations": {"checks", "record_random"},
    "objectives": {"checks", "registry"},  # losses and optimizers by name
    # beside it
    "data": {
        "checks",
        "compiled",
        "record_errors",
        "record_random",  # a coin for each row
        "registry",
        "repeated_records",
    },
    "models": {"checks", "registry", "transformer_masks", "without_trace"},
    "fairness": {"checks", "formats", "results"},
    "diagnostics": CORE,  # one probe, through the run's method
    # on top
    "auditing": CORE | {"fairness"},
    "private_training": CORE | {"auditing"},  # a method from outside is audited before it trains
    "experiments": DOOR | BESIDE,
    "report": DOOR | BESIDE | {"experiments"},
    "instruments": EVERYTHING,
    "cli": EVERYTHING | {"instruments"},
    "integrations": EVERYTHING - {"diagnostics"}
    | {"instruments"},  # other libraries' ways of training
    "__main__": {"cli"},
    # the public names
    "__init__": EVERYTHING | {"instruments"},
}


def violations(source: Path) -> list[str]:
    """Every import under `source`, the plumbline package, that `ALLOWED` does not have."""
    found = []
    for file in sorted(source.rglob("*.py")):
        parts = file.relative_to(source).with_suffix("").parts
        package = parts[0]
        if package not in ALLOWED:
            found.append(f"{file}:1: {package!r} is not in the table of {Path(__file__).name}")
            continue
        for line, target in plumbline_imports(file, parts):
            if target != package and target not in ALLOWED[package]:
                allowed = ", ".join(sorted(ALLOWED[package])) or "nothing else of plumbline"
                found.append(
                    f"{file}:{line}: {package!r} imports {target!r}; it may import {allowed}"
                )
    return found


def plumbline_imports(file: Path, parts: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(line, top-level package) of each plumbline import in `file`, the module `parts`.

    A name taken from plumbline itself that is not a package counts as an import of `__init__`.
    """
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), filename=str(file))):
        match node:
            case ast.Import(names=names):
                modules = [name.name for name in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                # One dot is the module's own package, and each further dot one package up.
                prefix = ["plumbline", *parts[: len(parts) - level]] if level else []
                base = ".".join([*prefix, module] if module else prefix)
                modules = [f"{base}.{name.name}" for name in names]
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                modules = [module]
            case _:
                continue
        for module in modules:
            root, *rest = module.split(".")
            if root == "plumbline":
                yield node.lineno, rest[0] if rest and rest[0] in ALLOWED else "__init__"


def test_imports_point_one_way() -> None:
    found = violations(SOURCE)
    assert not found, "\n".join(["imports against the direction:", *found])


def test_the_table_is_the_design() -> None:
    assert ALLOWED["gradients"] == {"compiled", "record_errors", "record_random"}
    assert not ALLOWED["clipping"] & {"models", "gradients", "evaluation"}
    assert "gradients" not in ALLOWED["mechanism"]
    users = {package for package, allowed in ALLOWED.items() if "diagnostics" in allowed}
    assert users == {"report", "experiments", "instruments", "cli", "__init__"}
    assert all("__init__" not in allowed for allowed in ALLOWED.values())
    tuple(graphlib.TopologicalSorter(ALLOWED).static_order())  # raises on a cycle


@pytest.mark.parametrize(
    ("path", "code", "complaint"),
    [
        pytest.param(
            "gradients/capture.py",
            "import torch\nfrom plumbline.mechanism import noise\n",
            "capture.py:2: 'gradients' imports 'mechanism'",
            id="absolute",
        ),
        pytest.param(
            "gradients/layers/linear.py",
            "from ...clipping.flat import flat\n",
            "linear.py:1: 'gradients' imports 'clipping'",
            id="relative",
        ),
        pytest.param(
            "gradients/__init__.py",
            "from .. import mechanism\n",
            "__init__.py:1: 'gradients' imports 'mechanism'",
            id="relative-from-a-package",
        ),
        pytest.param(
            "mechanism/release.py",
            "def late():\n    import plumbline.gradients.capture\n",
            "release.py:2: 'mechanism' imports 'gradients'",
            id="inside-a-function",
        ),
        pytest.param(
            "clipping/flat.py",
            "import importlib\nimportlib.import_module('plumbline.models')\n",
            "flat.py:2: 'clipping' imports 'models'",
            id="by-name",
        ),
        pytest.param(
            "training/__init__.py",
            "from plumbline import diagnostics\n",
            "__init__.py:1: 'training' imports 'diagnostics'",
            id="diagnostics",
        ),
        pytest.param(
            "sampling.py",
            "from plumbline import capture\n",
            "sampling.py:1: 'sampling' imports '__init__'",
            id="a-public-name-of-the-root",
        ),
        pytest.param(
            "training/step.py",
            "from plumbline import helpers\n",
            "step.py:1: 'training' imports '__init__'",
            id="an-unknown-name-of-the-root",
        ),
        pytest.param(
            "helpers/text.py", "", "text.py:1: 'helpers' is not in the table", id="unknown-package"
        ),
        pytest.param(
            "helpers.py", "", "helpers.py:1: 'helpers' is not in the table", id="unknown-module"
        ),
    ],
)
def test_a_planted_violation_is_caught(
    tmp_path: Path, path: str, code: str, complaint: str
) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(code)
    found = violations(tmp_path)
    assert len(found) == 1
    assert complaint in found[0]


def test_what_is_allowed_passes(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "__init__.py").write_text(
        "import torch.nn\n"
        "import plumbline.gradients.layers\n"
        "from plumbline import clipping, mechanism\n"
        "from . import step\n"
        "from .step import Step\n"
        "from ..sampling import poisson\n"
    )
    (tmp_path / "__init__.py").write_text("from .private_training import make_private\n")
    assert violations(tmp_path) == []
