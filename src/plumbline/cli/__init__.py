"""The command line: one file per command, in the order in which ``--help`` lists them."""

from plumbline.cli import (
    audit,
    budget,
    compare,
    data,
    diagnose,
    ledger,
    methods,
    predict,
    report,
    reproduce,
    train,
    tune,
    verify,
)
from plumbline.cli.app import app, main

__all__ = ["app", "main"]

_ORDER = (
    compare,
    train,
    predict,
    diagnose,
    tune,
    reproduce,
    report,
    budget,
    methods,
    ledger,
    verify,
    audit,
    data,
)
app.registered_commands.sort(
    key=lambda command: [one.__name__.rpartition(".")[2] for one in _ORDER].index(
        command.callback.__name__ if command.callback else "data"
    )
)
