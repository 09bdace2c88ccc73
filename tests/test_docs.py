"""What the README and the docs say runs: their code, their commands, their tables, their links.

Comments in the Markdown, each on the line before a block, change what is done with it:

- ``<!-- needs: opacus -->``: the block runs where these modules can be imported, else it is left
  out. What another library warns of does not fail it.
- ``<!-- output -->``: the block is what the Python block before it printed, word for word.
- ``<!-- parsed only -->``: the commands are costly; they are parsed and not run.
- ``<!-- slow -->``: they are run by the slow tests, after the page's other commands.

What stands after a command of a ``console`` block is what it prints, but for the breaks of lines. A
TOML block is a recipe, or what a comment before it says: ``<!-- a reproduction -->``,
``<!-- published numbers -->`` or ``<!-- a schema -->``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import io
import json
import re
import runpy
import shlex
import sys
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import pytest
import typer
from typer.testing import CliRunner

import plumbline as pl
from plumbline.cli import app
from plumbline.data.table_schema import read_schema
from plumbline.experiments.papers import PublishedFile, ReproductionFile, Size
from plumbline.experiments.recipe import Recipe, SettingsPart
from plumbline.experiments.recipes import find
from plumbline.mechanism.statement import how_often_right
from plumbline.methods import METHODS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(
    r"^(?:<!-- (?P<note>[^>]*?) -->\n\n?)?```(?P<language>[\w-]*)[^\n]*\n(?P<body>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
PARSED_ONLY, SLOW, OUTPUT, NEEDS = "parsed only", "slow", "output", "needs: "
OWN = ("my.", "runs/")
"""How the reader's own files are called."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its text, the line it begins on, and its note."""

    language: str
    body: str
    line: int
    note: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            found["language"],
            found["body"],
            text.count("\n", 0, found.start("body")),
            found["note"] or "",
        )
        for found in FENCE.finditer(text)
    ]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own to run in, with what the repository's commands name beside it."""
    for name in ("recipes", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Python


@pytest.mark.usefixtures("outside")  # which forgets the parts that a page registers
@pytest.mark.parametrize("page", PAGES, ids=named)
def test_code_blocks_run(page: Path, workplace: Path) -> None:
    """A page's blocks run together, top to bottom; what is said to be printed was printed."""
    names: dict[str, object] = {}
    printed: str | None = ""
    for block in blocks(page):
        if block.note == OUTPUT and printed is not None:
            assert block.body.rstrip() == printed.rstrip(), (
                f"{named(page)}, line {block.line}: the code before prints something else:\n"
                f"{printed}"
            )
        if block.language == "python" and missing(block):
            printed = None
        elif block.language == "python":
            code = compile("\n" * block.line + block.body, str(page), "exec")
            told = io.StringIO()
            with contextlib.redirect_stdout(told), foreign(block):
                exec(code, names)
            printed = told.getvalue()


def missing(block: Block) -> bool:
    """Whether a block needs a module that is not there."""
    needed = block.note.removeprefix(NEEDS).split(", ") if block.note.startswith(NEEDS) else []
    return any(importlib.util.find_spec(module) is None for module in needed)


@contextlib.contextmanager
def foreign(block: Block) -> Iterator[None]:
    """Lets another library warn."""
    with warnings.catch_warnings():
        if block.note.startswith(NEEDS):
            warnings.simplefilter("ignore")
        yield


def test_the_readme_has_code() -> None:
    assert sum(block.language == "python" for block in blocks(ROOT / "README.md")) >= 2


# Recipes

SETTINGS: dict[str, type[SettingsPart]] = {
    "": Recipe,
    "a reproduction": ReproductionFile,
    "published numbers": PublishedFile,
}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_recipes_can_be_used(page: Path, tmp_path: Path) -> None:
    for block in blocks(page):
        if block.language == "toml":
            fields = tomllib.loads(block.body)
            if block.note == "a schema":
                (tmp_path / "schema.toml").write_text(block.body, encoding="utf-8")
                assert read_schema(tmp_path / "schema.toml").columns
                continue
            if not block.note:  # a recipe, or parts of one
                fields = {**tomllib.loads(find("demo").read_text("utf-8")), **fields}
            made = SETTINGS[block.note].model_validate(fields)
            if isinstance(made, ReproductionFile):
                assert made.study == "comparison"
                for size in get_args(Size):
                    Recipe.of(made.at(size))


# Commands


class Command(NamedTuple):
    """A command line of a page, what to do with it, and what it is said to print."""

    line: str
    todo: Literal["run", "run slowly", "parse", "find"]
    printed: str = ""


def commands(page: Path) -> Iterator[Command]:
    """Every command line of a page, in blocks and between words."""
    for block in blocks(page):
        todo: Literal["run", "run slowly", "parse"] = "run"
        if block.note in (PARSED_ONLY, SLOW):
            todo = "parse" if block.note == PARSED_ONLY else "run slowly"
        if block.language == "console":
            for text in re.split(r"^\$ ", block.body, flags=re.MULTILINE)[1:]:
                line, _, printed = text.partition("\n")
                yield Command(line, todo, printed)
        elif block.language in ("bash", "sh", ""):
            for line in block.body.replace("\\\n", " ").splitlines():
                line = line.split(" #")[0].strip()
                program = line.split(" ")[0].rsplit("/")[-1]
                known = program in ("plumbline", "make", "python")
                if line and not line.startswith("#") and (known or block.language):
                    yield Command(line, todo)
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for found in re.finditer(r"`((?:plumbline|make) [a-z][^`\n]*)`", text):
        yield Command(found[1], "find")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_exist(page: Path, workplace: Path) -> None:
    """Cheap commands are run, costly ones parsed by the very parser that would run them."""
    for line, todo, printed in commands(page):
        words = shlex.split(line)
        if todo == "run":
            run(line, printed)
        match words:
            case [program, *arguments] if program.rsplit("/")[-1] == "plumbline":
                given = parse(arguments, complete=todo != "find")
                for place in ("recipe", "what"):
                    if given.get(place) and not given[place].startswith(OWN):
                        assert Path(given[place]).is_file() or find(given[place]).is_file(), line
            case ["torchrun", "--nproc-per-node", _, "-m", "plumbline", *arguments]:
                parse(arguments)
            case ["torchrun", "--nproc-per-node", _, script]:
                assert script.startswith("my_"), line
            case ["ACCELERATE_USE_CPU=true", "accelerate", "launch", *_, script]:
                assert (ROOT / script).is_file(), line
            case ["make", *targets]:
                known = re.findall(r"^([a-z][a-z-]*)(?= .*:|:)", makefile(), re.MULTILINE)
                known += re.search(r"^\.PHONY: (.*)$", makefile(), re.MULTILINE)[1].split()  # type: ignore[index]
                wanted = [target for target in targets if "=" not in target]
                assert set(wanted) <= set(known), f"{line}: the Makefile has {sorted(set(known))}"
            case ["python", "-m", "venv", _] | ["source", ".venv/bin/activate"]:
                pass
            case ["python", "-m", module, *_] if module.split(".")[0] == "benchmarks":
                assert importlib.util.find_spec(module) is not None, line
            case ["python", script, *options]:
                source = (ROOT / script).read_text(encoding="utf-8")
                for option in options:
                    if option.startswith("--"):
                        assert f'"{option}"' in source, f"{line}: {script} has no {option}"
            case [pip, "install", *what] if pip.endswith("pip"):
                for extra in re.findall(r"\[([\w,-]+)\]", " ".join(what)):
                    assert set(extra.split(",")) <= set(extras()), line
            case _:
                pytest.fail(f"{named(page)} has the command {line!r}, which no test knows of")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(b.note == SLOW for b in blocks(page))], ids=named
)
def test_slow_commands_run(page: Path, workplace: Path) -> None:
    """From the page's first command to its last, as its reader gives them."""
    for line, todo, printed in commands(page):
        if todo.startswith("run"):
            run(line, printed)


def run(line: str, printed: str) -> None:
    """Runs a command of ours in this process; other programs' are not."""
    words = [word for one in shlex.split(line) for word in sorted(glob(one)) or [one]]
    match words:
        case [program, *arguments] if program.rsplit("/")[-1] == "plumbline":
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 0, f"{line}: {result.output}\n{result.exception!r}"
            if printed:
                assert words_of(printed) == words_of(result.stdout), f"{line}:\n{result.stdout}"
        case ["python", script, *arguments] if script.startswith("examples/"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, "argv", [script, *arguments])
                runpy.run_path(script, run_name="__main__")


def words_of(printed: str) -> list[str]:
    """The words of an output, whatever the terminal's width; the rules of tables follow it."""
    return [word for word in printed.split() if set(word) != {"─"}]


@functools.cache
def _commands() -> Any:
    return typer.main.get_command(app)


def parse(arguments: list[str], complete: bool = True) -> dict[str, Any]:
    """Lets typer parse a command line, through its sub-commands, without running it.

    One that is not ``complete`` may be the name of a command alone.
    """
    command = _commands()
    context = command.make_context("plumbline", list(arguments))
    while hasattr(command, "resolve_command"):
        # What is left for the sub-command; click 8 keeps its first word apart.
        left = [*getattr(context, "_protected_args", []), *context.args]
        name, command, left = command.resolve_command(context, left)
        if not left and not complete and not hasattr(command, "resolve_command"):
            return {}
        context = command.make_context(name, left, parent=context)
    return dict(context.params)


def makefile() -> str:
    return (ROOT / "Makefile").read_text(encoding="utf-8")


def extras() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return list(project["optional-dependencies"])


def test_a_wrong_command_is_found() -> None:
    for wrong in (["no-such-command"], ["methods", "--no-such-option"], ["data", "no-such"]):
        with pytest.raises(Exception, match=r"(?i)no such"):
            parse(wrong)


# Methods


def tables(text: str) -> list[list[list[str]]]:
    """Every Markdown table: its rows, each a list of cells, without the line of dashes."""
    found: list[list[list[str]]] = []
    inside = False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not inside:
            found.append([])
            inside = True
        if not set("".join(cells)) <= set("-: "):
            found[-1].append(cells)
    return found


def table_of(page: Path, first: str) -> list[list[str]]:
    """The rows of the page's table whose first title is ``first``."""
    for table in tables(page.read_text(encoding="utf-8")):
        if table[0][0] == first:
            return table[1:]
    raise AssertionError(f"{named(page)} has no table that begins with {first!r}")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page(name: str) -> None:
    """Its settings and their defaults are those of the code, and so is what a step costs."""
    page = DOCS / "methods" / f"{name}.md"
    entry = METHODS[name]
    parameters = inspect.signature(entry.make).parameters.values()
    expected = [
        [
            f"`{p.name}`",
            "required" if p.default is inspect.Parameter.empty else f"`{p.default!r}`",
        ]
        for p in parameters
    ]
    text = page.read_text(encoding="utf-8")
    if expected:
        assert [row[:2] for row in table_of(page, "setting")] == expected
    else:
        assert "It has no settings." in text
    row = next(row for row in pl.methods.table() if row.name == name)
    assert table_of(page, "source") == [
        [
            row.source,
            row.queries,
            str(row.passes),
            row.keeps or "nothing",
            row.needs or "nothing",
        ]
    ]
    assert ("**No guarantee.**" in text) == (row.guarantee != "yes")
    for title in ("Idea", "Equation", "Settings", "What we do differently", "When it helps"):
        assert f"\n## {title}" in text, f"{named(page)} lacks the part {title!r}"


def test_every_page_of_a_method_is_one() -> None:
    pages = {page.stem for page in (DOCS / "methods").glob("*.md")} - {"index"}
    assert pages == set(METHODS)


# Opacus beside Plumbline


@pytest.mark.parametrize(("page", "fewest"), [(DOCS / "opacus.md", 15), (ROOT / "README.md", 8)])
def test_the_feature_table_names_what_exists(page: Path, fewest: int) -> None:
    """Every name in the Plumbline column resolves; so does every one of Opacus, if it is there."""
    rows = table_of(page, "feature")
    assert len(rows) >= fewest
    theirs = importlib.util.find_spec("opacus") is not None
    for feature, opacus, own in rows:
        names = re.findall(r"`([^`]+)`", own)
        assert names, f"the row {feature!r} names nothing of Plumbline to check"
        for name in names:
            resolve(name)
        if theirs:
            for name in re.findall(r"`([^`]+)`", opacus):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    resolve(name)


def resolve(name: str) -> object:
    """``package.module.thing``, or ``package.thing(option=)`` for an option that it takes."""
    call = re.fullmatch(r"([\w.]+)\((\w+)=\)", name)
    dotted = (call[1] if call else name).replace("pl.", "plumbline.", 1)
    module, found = dotted, None
    while found is None:
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError:
            module = module.rpartition(".")[0]
            assert module, f"there is no {name}"
    for part in dotted.removeprefix(module).strip(".").split("."):
        found = getattr(found, part) if part else found
    if call:
        assert call[2] in inspect.signature(found).parameters, f"{call[1]} has no {call[2]}"  # type: ignore[arg-type]
    return found


# The page, its links and its figures


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        found = page.parent / target if target else page
        assert found.exists(), f"{named(page)} links to {target}"
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{named(page)} links to {target}#{anchor}"
    for picture in re.findall(r'<img src="([^"]+)"', text):
        assert (page.parent / picture).is_file(), f"{named(page)} shows {picture}"


def anchors(page: Path) -> set[str]:
    """The headings of a page, as the site names them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", title) for title in titles]
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", one).strip().lower()) for one in plain}


def test_the_officers_table_has_the_numbers_of_the_statement() -> None:
    rows = table_of(DOCS / "guides" / "officer.md", "epsilon")
    assert [row[1] for row in rows] == [how_often_right(float(row[0]), 1e-9) for row in rows]


def test_the_pictures_of_pages_are_of_the_guides_commands() -> None:
    pages = script_of("pages.py").COMMANDS[:-1]
    guide = [command.line for command in commands(DOCS / "guides" / "table.md")]
    assert [command for command in pages if command not in guide] == []


def test_every_page_is_in_the_navigation() -> None:
    shown = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert shown == there


def script_of(name: str) -> Any:
    """A script of the figures, as a module."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, DOCS / "figures" / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "page"),
    [("clipping_or_noise.py", "clipping-or-noise.md"), ("table_sizes.py", "guides/table.md")],
)
def test_measured_numbers_are_those_of_the_script(name: str, page: str) -> None:
    """The table on a page is the one that its script's results give, and so are its drawings."""
    module = script_of(name)
    kept = (DOCS / "figures" / name).with_suffix(".json")
    found = json.loads(kept.read_text(encoding="utf-8"))
    text = (DOCS / page).read_text(encoding="utf-8")
    shown = text.split(module.BEGIN, 1)[1].split(module.END, 1)[0]
    assert shown.strip() == module.table(found).strip()
    for file, drawing in getattr(module, "drawings", lambda _: {})(found).items():
        assert (DOCS / "images" / file).read_text(encoding="utf-8") == drawing
