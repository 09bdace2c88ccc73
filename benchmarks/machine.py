"""The machine a result belongs to, and the two cores every contestant runs on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from pathlib import Path

THREADS = 2


def pin() -> None:
    """Restrict this process and its children to `THREADS` cores, for every library alike.

    Affinity rather than thread settings: jax sizes its pool by it and has no other switch. Must
    run before torch or jax start their threads, so torch is imported here and not above.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    import torch

    torch.set_num_threads(THREADS)


def describe() -> dict[str, str | int]:
    """Processor, cores, threads, library versions, and the commit that is measured."""
    from plumbline.experiments.run_result import commit  # these import torch: see `pin`
    from plumbline.experiments.studies.base import NOT_RECORDED

    return {
        "commit": commit() or NOT_RECORDED,
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "threads": THREADS,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "opacus", "jax", "plumbline")},
    }


def sentence(machine: dict[str, str | int]) -> str:
    """The same in one line, for tables and terminals."""
    versions = ", ".join(f"{name} {machine[name]}" for name in ("torch", "opacus", "jax"))
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads; "
        f"{versions}; Python {machine['python']}, {machine['system']}"
    )


class Neighbours:
    """How many cores other processes kept busy since this was made.

    Two threads that wait for each other lose far more than their share when a third process wants
    a core, and not all contestants lose alike. A run that had company says so.
    """

    def __init__(self) -> None:
        self.start = self._now()

    def cores(self) -> float | None:
        """Mean number of cores taken by others, or None where the system does not tell."""
        now = self._now()
        if self.start is None or now is None:
            return None
        busy, own, wall = (after - before for after, before in zip(now, self.start, strict=True))
        return max(0.0, busy - own) / wall

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        stat = Path("/proc/stat")
        if not stat.exists():
            return None
        user, nice, system, _, _, irq, softirq, steal = map(int, stat.read_text().split()[1:9])
        ticks = user + nice + system + irq + softirq + steal
        return ticks / os.sysconf("SC_CLK_TCK"), time.process_time(), time.monotonic()


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
