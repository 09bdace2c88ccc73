"""plotly.js for a page: the whole library, of which the browser sets up only the kinds in use.

plotly's bundle ends in one call that registers some fifty kinds of traces, each a module that does
nothing until it is called for. Setting up all of them takes a browser longer than drawing a page of
figures. Without the calls for kinds that the page has not (maps, 3-D, finance) the rest is plotly
as it was delivered. Where another version of plotly is built otherwise, the bundle stays whole.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache

from plotly.offline import get_plotlyjs

_BUILT_IN = frozenset({"scatter"})
_REGISTERED = re.compile(r"\.register\(\[((?:[\w$]+\(\),?)+)\]\)")


def plotly(kinds: Collection[str]) -> str:
    """plotly.js, setting up these kinds of traces ("bar", "contour") and no others."""
    whole = str(get_plotlyjs())
    listed, modules = _REGISTERED.search(whole), _modules()
    wanted = set(kinds) - _BUILT_IN
    if listed is None or not wanted <= set(modules):
        return whole
    calls = ",".join(f"{modules[kind]}()" for kind in sorted(wanted))
    return f"{whole[: listed.start(1)]}{calls}{whole[listed.end(1) :]}"


@cache
def _modules() -> dict[str, str]:
    """The names in the bundle of the modules of each kind of trace, as far as they can be read."""
    whole = str(get_plotlyjs())
    listed = _REGISTERED.search(whole)
    found: dict[str, str] = {}
    for name in re.findall(r"[\w$]+", listed[1]) if listed else ():
        # It hands on another module, which says its kind.
        inner = re.search(r"\.exports=([\w$]+)\(\)", _definition(whole, name, 200))
        own = _definition(whole, inner[1], 2000) if inner else ""
        if kind := re.search(r'moduleType:"trace",name:"(\w+)"', own):
            found[kind[1]] = name
    return found


def _definition(whole: str, name: str, length: int) -> str:
    start = whole.find(f"var {name}=")
    return whole[start : start + length] if start >= 0 else ""
