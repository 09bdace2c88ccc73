"""The command line: one file per command, listed by ``--help`` in the order below."""

import importlib

from plumbline.cli.app import app, main

__all__ = ["app", "main"]

for _name in (
    "compare", "train", "predict", "export", "diagnose", "tune", "reproduce", "report", "budget",
    "methods", "ledger", "release", "verify", "audit", "data",
):  # fmt: skip
    importlib.import_module(f"plumbline.cli.{_name}")
