"""Who takes part.

Each is imported only when it is built, so that a missing library costs a line in the table and
not the run.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from benchmarks.contestants.base import Contestant, Factory, Settings
from benchmarks.models import Workload

__all__ = ["BASELINE", "ENTRIES", "Contestant", "Entry", "Settings"]

BASELINE = "non-private"


@dataclass(frozen=True)
class Entry:
    """A contestant's name in the table and where it is built (`module:attribute`)."""

    name: str
    title: str
    where: str

    def build(self, workload: Workload, settings: Settings, size: int | None = None) -> Contestant:
        """Build the contestant; whatever goes wrong is raised for the caller to report."""
        module, attribute = self.where.split(":")
        factory: Factory = getattr(importlib.import_module(module), attribute)
        return factory(workload, settings, size)


def _entry(name: str, title: str, where: str) -> tuple[str, Entry]:
    return name, Entry(name, title, f"benchmarks.contestants.{where}")


ENTRIES: dict[str, Entry] = dict(
    (
        _entry(BASELINE, "non-private", "plain:NonPrivate"),
        _entry("dp-sgd", "Plumbline DP-SGD", "ours:DPSGD"),
        _entry("bam", "Plumbline BAM", "ours:BAM"),
        _entry("opacus-hooks", "Opacus hooks", "opacus_modes:hooks"),
        _entry("opacus-functorch", "Opacus functorch", "opacus_modes:functorch"),
        _entry("opacus-ghost", "Opacus ghost", "opacus_modes:ghost"),
        _entry("jax", "jax vmap + jit", "jax_vmap:JaxStep"),
    )
)
