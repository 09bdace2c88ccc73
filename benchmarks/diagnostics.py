"""What looking costs: a diagnosis in plain DP-SGD steps, a spectral density in seconds.

`python -m benchmarks.diagnostics` races a full diagnosis (capture, bias and error parts, norms,
sampling noise, symmetry, ascent directions) of 512 records of the benchmark's CNN against a DP-SGD
step on the same records, also with two groups to tell apart. Then it takes the spectral density of
the Hessian of the benchmark's ResNet-20 on 512 images, with 40 Lanczos steps.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks import machine

machine.pin()

import torch  # noqa: E402  (after the cores are chosen)
from rich.console import Console  # noqa: E402
from rich.progress import Progress  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from benchmarks.contestants import Settings  # noqa: E402
from benchmarks.contestants.ours import DPSGD  # noqa: E402
from benchmarks.models import WORKLOADS  # noqa: E402
from benchmarks.timing import Pace, Race, Spread  # noqa: E402
from plumbline import diagnostics as dg  # noqa: E402
from plumbline.clipping import Flat  # noqa: E402

RECORDS, STEPS = 512, 40
STEPS_MARK, SECONDS_MARK = 5.0, 360.0


class Diagnosis(DPSGD):
    """Every diagnostic of a sample that a probe takes along a run, at the weights as they are."""

    def __init__(self, groups: Tensor | None) -> None:
        super().__init__(WORKLOADS["cnn"], Settings(), RECORDS)
        self.groups = groups
        generator = torch.Generator().manual_seed(2)
        self.previous = {
            name: torch.randn(p.shape, generator=generator) for name, p in self.named.items()
        }

    def step(self) -> None:
        """One diagnosis."""
        settings = self.settings
        sample = dg.Sample.take(
            self.model,
            self.loss,
            (self.x, self.y),
            Flat(settings.clip),
            noise_multiplier=settings.noise_multiplier,
            groups=self.groups,
        )
        dg.bias(sample)
        dg.error_parts(sample)
        dg.norms(sample)
        dg.sampling_noise(sample)
        dg.symmetry(sample)
        dg.ascent_directions(sample, self.previous)


def race(rounds: int) -> dict[str, Spread]:
    """The diagnoses' time in DP-SGD steps."""
    plain = DPSGD(WORKLOADS["cnn"], Settings(), RECORDS)
    others = {
        "diagnosis": Diagnosis(None).step,
        "diagnosis by group": Diagnosis(torch.arange(RECORDS) % 2).step,
    }
    run = Race(plain.step, others, Pace(rounds))
    for number in range(rounds):
        run.round(number)
    return {name: Spread.of(times.ratios) for name, times in run.times.items()}


def spectral_density(console: Console) -> dict[str, float | None]:
    """Seconds for the density of ResNet-20's Hessian, its graph included.

    A long job has no neighbouring step to be compared with, so its own processor time and what
    others took meanwhile stand beside the clock's.
    """
    workload = WORKLOADS["resnet"]
    model = workload.model()
    x, y = workload.batch(RECORDS)
    with Progress(console=console) as bar:
        task = bar.add_task("Lanczos", total=STEPS)
        neighbours = machine.Neighbours()
        start, own = time.perf_counter(), time.process_time()
        hessian = dg.Hessian(model, lambda: F.cross_entropy(model(x), y, reduction="none"))
        found = dg.density(
            hessian,
            torch.Generator().manual_seed(0),
            steps=STEPS,
            progress=lambda done, of: bar.update(task, completed=done, total=of),
        )
        seconds, used = time.perf_counter() - start, time.process_time() - own
        others = neighbours.cores()
    if isinstance(found, dg.Undefined):
        raise RuntimeError(f"The density is {found}.")
    console.print(f"eigenvalues from {found.values[0]:.3g} to {found.values[-1]:.3g}")
    return {"seconds": seconds, "processor seconds": used, "cores of others": others}


def main() -> None:
    """Race, take the density, print, write down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    console = Console(width=120, highlight=False)
    found: dict[str, Any] = {"machine": machine.describe()}
    console.print(machine.sentence(found["machine"]))
    neighbours = machine.Neighbours()
    found["marks"] = {"diagnosis": STEPS_MARK, "spectral density": SECONDS_MARK}
    for name, spread in race(options.rounds).items():
        found[name] = {"ratio": spread.median, "low": spread.low, "high": spread.high}
        console.print(
            f"{name} of {RECORDS} records: {spread.median:.2f} DP-SGD steps "
            f"({spread.low:.2f} to {spread.high:.2f}); mark {STEPS_MARK:g}"
        )
    found["cores of others"] = neighbours.cores()
    found["spectral density"] = took = spectral_density(console)
    console.print(
        f"spectral density of ResNet-20 on {RECORDS} images, {STEPS} steps: "
        f"{took['seconds']:.0f} s ({took['processor seconds']:.0f} s of processor time); "
        f"mark {SECONDS_MARK:g} s"
    )
    for what, cores in (("race", found["cores of others"]), ("density", took["cores of others"])):
        if cores is not None:
            console.print(f"during the {what} others took {cores:.1f} cores")
    out = Path(__file__).parent / "results"
    out.mkdir(exist_ok=True)
    (out / "diagnostics.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
