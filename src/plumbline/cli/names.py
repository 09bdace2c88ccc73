"""Names and values given on the command line, and the shell's completion."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from plumbline.cli.app import WrongUse


def methods_starting(incomplete: str) -> list[str]:
    """For the shell's completion."""
    from plumbline.methods import METHODS

    return [name for name in METHODS if name.startswith(incomplete.replace("-", "_"))]


def settings_of(method: str, given: Sequence[str]) -> dict[str, Any]:
    """``key=value`` texts as a method's settings; values are TOML, and bare words text."""
    from plumbline.experiments.recipe import known_setting

    settings: dict[str, Any] = {}
    for one in given:
        key, equals, text = one.partition("=")
        if not equals:
            raise WrongUse(f"--set {one}: give a setting and its value, as in --set clip=0.5.")
        settings[known_setting(method, key.strip().replace("-", "_"))] = parsed(text)
    return settings


def parsed(text: str) -> Any:
    """A value as TOML has it; a bare word is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()
