"""What every command shares: the application, its consoles, JSON, and errors in words.

Exit codes: 0 for fine, 2 for wrong use, 1 for a failure, 130 for Ctrl-C; ``verify`` has 3 for an
epsilon that is not confirmed. An error is a paragraph in words; the traceback is shown with
``--debug``. Commands import torch where they need it, never here: ``plumbline --help`` answers at
once.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import shlex
import sys
import textwrap
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from plumbline.formats import shown
from plumbline.results import to_json

app = typer.Typer(
    name="plumbline",
    help="Differentially private training that measures what clipping does to the gradient.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="A first look: [bold]plumbline compare demo[/bold]. Every command has examples: "
    "[bold]plumbline train --help[/bold].",
)


class _Console(Console):
    """Names of columns, groups and classes are text: neither markup nor control characters act."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else shown(text), style, control)


console = _Console()
"""For results."""

aside = _Console(stderr=True)
"""For progress and errors: what is piped on stays clean."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


class WrongUse(ValueError):
    """What was asked for cannot be done; says what to change."""


class Stopped(Exception):
    """Ctrl-C: says what is kept and how to go on."""


@app.callback()
def _common(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error (in any place).")
    ] = False,
) -> None:
    pass  # both are looked at before the command is parsed


def main() -> None:
    """Runs the command line; expected errors end it in words."""
    _let_any_text_through()
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    if arguments == ["--version"]:
        print(importlib.metadata.version("plumbline"))
        sys.exit(0)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # package.module:attribute is found from here
    try:
        if arguments[:1] != ["train"]:
            from plumbline.cli.torchrun import refuse_several

            refuse_several(shlex.join(["plumbline", *arguments]))
        code = app(args=arguments, standalone_mode=False, prog_name="plumbline")
        if code == 130:  # typer's word for a Ctrl-C that no command has caught
            say("stopped.")
    except (KeyboardInterrupt, typer.Abort):
        say("stopped.")
        code = 130
    except Stopped as stop:
        say(str(stop))
        code = 130
    except Exception as error:
        if debug:
            raise
        code = _explain(error)
    sys.exit(code if isinstance(code, int) else 0)


def say(text: str) -> None:
    """A paragraph on standard error; whole lines where nobody looks, so that they can be found."""
    line = Text.assemble(("plumbline: ", "bold"), text)
    aside.print(line, highlight=False, soft_wrap=not aside.is_terminal)


def note(text: str) -> None:
    """A remark on standard error, beside the results."""
    aside.print(Text(text, "dim"), highlight=False, soft_wrap=not aside.is_terminal)


def show(text: str) -> None:
    """A paragraph of the results, wrapped between words on a terminal."""
    console.print(Text(text), highlight=False, soft_wrap=not console.is_terminal)


def show_json(value: Any) -> None:
    """The results for machines."""
    print(json.dumps(to_json(value), indent=2, ensure_ascii=False, allow_nan=False))


def show_statement(text: str) -> None:
    """A privacy statement, filled anew where the terminal is narrower than its lines."""
    if any(len(line) > console.width for line in text.splitlines()):
        text = "\n\n".join(_filled(block) for block in text.strip().split("\n\n"))
    console.print(Text(text.rstrip()), highlight=False)


def table(*columns: str, numbers: bool = True) -> Table:
    """A plain table: the first column is the name, the others are right-aligned numbers."""
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for place, column in enumerate(columns):
        right = numbers and place > 0
        made.add_column(column, justify="right" if right else "left", no_wrap=place == 0)
    return made


def same_command() -> str:
    """The command that was given, to be given again."""
    return shlex.join(["plumbline", *sys.argv[1:]])


def examples(*lines: str) -> str:
    """The end of a command's help."""
    # typer shows paragraphs of an epilog as lines.
    return "\n\n".join(["[bold]Examples[/bold]", *(line.replace("[", r"\[") for line in lines)])


def _filled(block: str) -> str:
    """A paragraph, or a title with its items, in lines of the terminal's width."""
    items: list[str] = []
    for line in block.splitlines():
        if not items or line.startswith("- "):
            items.append(line)
        else:
            items[-1] += f" {line.strip()}"
    filled = (
        textwrap.fill(item, console.width, subsequent_indent="  " if item[0] == "-" else "")
        for item in items
    )
    return "\n".join(filled)


def _explain(error: Exception) -> int:
    """Says what went wrong; returns the exit code."""
    kind = type(error)
    if kind.__name__ == "NoArgsIsHelpError":
        print(str(error.format_message()) if hasattr(error, "format_message") else "")
        return 2
    if hasattr(error, "format_message"):  # a usage error of typer's
        say(_usage(error))
        return 2
    words = str(error).strip() or kind.__name__
    ours = kind.__module__.partition(".")[0] == "plumbline"
    if not ours and not isinstance(error, ValueError | OSError | ImportError):
        words = f"{kind.__name__}: {words} (--debug shows where this comes from)"
    say(words)
    wrong_use = isinstance(error, ValueError) or (ours and isinstance(error, TypeError))
    return 2 if wrong_use else 1


def _usage(error: Any) -> str:
    """Typer's words for a usage error, with the nearest name and where to read on."""
    near = getattr(error, "possibilities", None)  # options alike, the nearest first
    message = str(error.message if near else error.format_message()).rstrip(".")
    message += f". Did you mean {near[0]}?" if near else ""
    ctx = getattr(error, "ctx", None)
    where = ctx.command_path if ctx is not None else "plumbline"
    return f"{message}{'' if message.endswith('?') else '.'} See '{where} --help'."


def _let_any_text_through() -> None:
    """A character that a terminal cannot show becomes a question mark, not an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
