"""What a command takes that runs in a process of its own: seconds, processor time, peak memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Linux counts the memory of whoever starts a process among its peak, so a small one starts it.
_SMALL_PARENT = """
import json, os, subprocess, sys
with open(sys.argv[1], "wb") as out, subprocess.Popen(sys.argv[2:], stdout=out) as process:
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
print(json.dumps([process.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss]))
"""
_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class Taken:
    """What a process took."""

    seconds: float
    processor_seconds: float
    peak_bytes: int


def taken(command: Sequence[str], out: str | Path = os.devnull) -> Taken:
    """Runs a command, writes what it prints to a file, and says what it took.

    Raises:
        RuntimeError: If it fails.
    """
    start = time.perf_counter()
    measured = [sys.executable, "-c", _SMALL_PARENT, str(out), *command]
    done = subprocess.run(measured, stdout=subprocess.PIPE, text=True, check=True)
    seconds = time.perf_counter() - start
    code, processor_seconds, peak = json.loads(done.stdout)
    if code:
        raise RuntimeError(f"{' '.join(command)} ended with {code}")
    return Taken(seconds, processor_seconds, peak * _UNIT)
