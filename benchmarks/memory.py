"""Peak extra memory of a step, each contestant in a process of its own.

What is measured: the highest resident memory during a step, minus the resident memory of a
process in which everything but the batch has already happened. In order:

1. A twin of the contestant takes steps on four records: libraries, thread stacks and code are
   loaded.
2. The allocator is told to give every block of 64 KiB or more a mapping of its own, which goes
   back to the system when it is freed. Without this, glibc keeps freed memory (and Plumbline asks
   it to), and a step's demand disappears in the leftovers of the step before: what is compared is
   memory in use, not memory kept. A second twin takes steps on the whole batch, since there is code
   that only large batches load. The contestant itself is built (jax compiles here), and the twins
   are dropped.
3. Baseline: resident memory now. Weights and batch are in it, gradients are not.
4. The contestant takes a few full steps, so that compiled code and measured kernels have settled.
   What it *keeps* between steps (gradients, buffers) counts as extra, since the baseline is older.
5. The kernel's high-water mark is reset, one step taken, the mark read; median of several.

The mark sees every allocator in the process (torch, oneDNN, XLA), which a torch profiler does
not. It is good to a few hundred KiB. Linux only; elsewhere memory is reported as not measured.
"""

from __future__ import annotations

import ctypes
import gc
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import pin

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from malloc.h
PR_SET_THP_DISABLE = 41  # from linux/prctl.h; huge pages would round every block up to 2 MiB
SMALL_BATCH = 4
WARM_UP = 3
REPEATS = 15  # the mark is batched per core; a quick step can afford a finer median
SECONDS = 3.0  # ... and a slow one is large enough not to need it: at least three
MIB = 2**20


def measure(model: str, contestant: str, timeout: float = 300.0) -> float:
    """Peak extra memory in MiB, from a fresh process; raises with that process's last words."""
    if not Path("/proc/self/clear_refs").exists():
        raise RuntimeError("memory is measured on Linux only")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", model, contestant],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=Path(__file__).resolve().parents[1],
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(lines[-1])
    return float(json.loads(done.stdout.splitlines()[-1]))


def measure_here(model: str, contestant: str) -> float:
    """The same in this process, which must not have run anything before."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    from benchmarks.contestants import ENTRIES, Settings
    from benchmarks.methods import CANDIDATES
    from benchmarks.models import WORKLOADS

    entries: dict[str, Any] = {**ENTRIES, **CANDIDATES}
    workload, entry = WORKLOADS[model], entries[contestant]
    _warm_up(entry.build(workload, Settings(), SMALL_BATCH))
    for name, value in ((M_MMAP_THRESHOLD, 64 * 1024), (M_TRIM_THRESHOLD, 64 * 1024)):
        libc.mallopt(name, value)  # after the first steps: a contestant may have its own opinion
    _warm_up(entry.build(workload, Settings()))
    runner = entry.build(workload, Settings())
    _tidy(libc)
    baseline = _status("VmRSS")
    _warm_up(runner)
    peaks: list[int] = []
    deadline = time.monotonic() + SECONDS
    while len(peaks) < 3 or (len(peaks) < REPEATS and time.monotonic() < deadline):
        _tidy(libc)
        Path("/proc/self/clear_refs").write_text("5")
        runner.step()
        peaks.append(_status("VmHWM") - baseline)
    return statistics.median(peaks) / MIB


def _warm_up(contestant: Any) -> None:
    for _ in range(WARM_UP):
        contestant.step()


def _tidy(libc: ctypes.CDLL) -> None:
    gc.collect()
    libc.malloc_trim(0)


def _status(field: str) -> int:
    """A memory field of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


if __name__ == "__main__":
    pin()
    print(json.dumps(measure_here(sys.argv[1], sys.argv[2])))
