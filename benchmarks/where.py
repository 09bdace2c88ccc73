"""Where the time of a step goes: `python -m benchmarks.where`.

For each network of the whole-loop benchmark, in milliseconds (medians of interleaved rounds): a
plain step, and of a private one the capture (forward and backward for each record), the norms, the
clipped sum, the noise with its addition, and the rest (sampling, fetching, bookkeeping, optimizer),
which is what remains of a whole `private.step`.

The floor is what the step needs at least on this machine: the multiplications of a plain step at
the measured speed of a float32 matrix product, and one pass over what has to be read and written
(inputs of layers twice, weights, their gradients in float64, noise) at the measured bandwidth.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import machine

machine.pin()

import torch  # noqa: E402  (after the cores are chosen)
from torch.nn import functional as F  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import plumbline as pl  # noqa: E402
from benchmarks.contestants.ours import DPSGD  # noqa: E402
from benchmarks.loop_models import LOOPS  # noqa: E402
from benchmarks.loops import STEPS, Ours, Plain  # noqa: E402
from benchmarks.models import Workload  # noqa: E402
from benchmarks.report import replace_between  # noqa: E402
from plumbline.compiled import run_of  # noqa: E402
from plumbline.gradients import capture  # noqa: E402
from plumbline.gradients.summation import TOGETHER  # noqa: E402
from plumbline.mechanism.noise import add_noise  # noqa: E402
from plumbline.mechanism.random_source import SecureSource  # noqa: E402

HERE = Path(__file__).resolve().parent
ROUNDS = 9
PARTS = ("plain", "capture", "norms", "sum", "noise", "rest", "private", "floor")


def seconds(work: Callable[..., Any], *args: Any) -> tuple[float, Any]:
    """How long it takes, and what it gives."""
    start = time.perf_counter()
    found = work(*args)
    return time.perf_counter() - start, found


def parts_of(load: Workload, folder: Path, speed: float, bandwidth: float) -> dict[str, float]:
    """Milliseconds of each part of a step."""
    plain, ours = Plain(load), Ours(load, pl.methods.dpsgd(clip=1.0), folder)
    model, batch, source = load.model(), load.batch(), SecureSource()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    times: dict[str, list[float]] = {name: [] for name in PARTS}
    for number in range(ROUNDS + 3):
        took, gradients, released = {}, None, None
        took["plain"], _ = seconds(plain.step)
        took["private"], _ = seconds(ours.step)
        took["capture"], gradients = seconds(capture, model, DPSGD.losses, batch)
        took["norms"], norms = seconds(gradients.norms)
        buckets = torch.arange(len(norms)) // TOGETHER
        released = gradients.to_release(buckets)
        took["sum"], total = seconds(released.total, (1 / norms).clamp(max=1.0))
        total = {name: total[name] for name in trained}
        took["noise"], _ = seconds(add_noise, total, 1.0, source.once("noise", number))
        took["rest"] = took["private"] - sum(took[x] for x in ("capture", "norms", "sum", "noise"))
        if number >= 3:
            for name, value in took.items():
                times[name].append(1e3 * value)
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(batch[0]), batch[1]).backward()
    numel = sum(p.numel() for p in trained.values())
    held = sum(term.nbytes for term in (gradients.term(name) for name in gradients.names))
    moved = 2 * held + numel * (4 + 4 + 8 + 8 + 8)
    times["floor"] = [1e3 * (counter.get_total_flops() / speed + moved / bandwidth)]
    return {name: statistics.median(values) for name, values in times.items()}


def measured_speed() -> tuple[float, float]:
    """Operations a second of a matrix product, and bytes a second of a copy."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    source, target = torch.zeros(1 << 26), torch.zeros(1 << 26)
    product = min(seconds(lambda: a @ b)[0] for _ in range(20))
    copy = min(seconds(lambda: target.copy_(source))[0] for _ in range(10))
    return 2 * 1024**3 / product, 2 * source.nbytes / copy


def main() -> None:
    """Measures and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(LOOPS))
    chosen = parser.parse_args().models.split(",")
    speed, bandwidth = measured_speed()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in chosen:
            folder = Path(scratch) / name
            folder.mkdir()
            with run_of(STEPS):
                found[name] = parts_of(LOOPS[name], folder, speed, bandwidth)
            print(name, {part: round(value, 2) for part, value in found[name].items()}, flush=True)
    lines = ["| network | " + " | ".join(PARTS) + " |", "|" + " --- |" * (1 + len(PARTS))]
    lines += [
        f"| {LOOPS[name].title} | " + " | ".join(f"{parts[part]:.1f}" for part in PARTS) + " |"
        for name, parts in found.items()
    ]
    text = (
        "\n".join(lines)
        + f"\n\nMeasured: {speed / 1e9:.0f} billion float32 operations and {bandwidth / 1e9:.1f} "
        f"GB a second. Machine: {machine.sentence(machine.describe())}.\n"
    )
    if chosen == list(LOOPS):
        results = {"speed": speed, "bandwidth": bandwidth, "networks": found}
        (HERE / "results" / "where.json").write_text(json.dumps(results, indent=2) + "\n")
        replace_between(HERE.parent / "docs" / "performance.md", "where", text)
    print(text)


if __name__ == "__main__":
    main()
