"""How much gradients differ from record to record and from step to step."""

from __future__ import annotations

from typing import Any

from plumbline.diagnostics.ascent import AscentDirections, ascent_directions
from plumbline.diagnostics.ascent import adjacent_batches as cosine_of_batches
from plumbline.diagnostics.ascent import successive_cosines as cosines_of
from plumbline.diagnostics.look import Look, diagnostic
from plumbline.diagnostics.sampling_noise import SamplingNoise
from plumbline.diagnostics.sampling_noise import over_iterates as noise_over_iterates
from plumbline.diagnostics.sampling_noise import sampling_noise as noise_of
from plumbline.diagnostics.sampling_noise import under_averaging as noise_under_averaging
from plumbline.results import Number, Undefined

SIZES = (2, 4, 8, 16)
WINDOW = 4
BATCHES = (32, 128, 512)


@diagnostic
def sampling_noise(look: Look) -> SamplingNoise:
    """tau^2 of what is clipped, overall and by the groups' values.

    From Clipping Bias Reduction, Def. 2.5.
    """
    return noise_of(look.sample)


@diagnostic
def under_averaging(look: Look) -> dict[str, Any]:
    """tau^2 of averages over 2, 4, 8 and 16 random records.

    From Clipping Bias Reduction, section 3.3.
    """
    return {str(size): noise_under_averaging(look.sample, size, look.generator) for size in SIZES}


@diagnostic(steps_before=WINDOW - 1)
def over_iterates(look: Look) -> Any:
    """tau^2 of the records' gradients averaged over the last four steps.

    From Clipping Bias Reduction, Fig. 5a.
    """
    if look.sample.in_buckets:
        return Undefined("records are in other buckets at every step")
    if len(look.before) < WINDOW - 1:
        return Undefined(f"fewer than {WINDOW} steps of this session lie behind")
    iterates = [*(sample.gradients for sample in look.before), look.sample.gradients]
    return noise_over_iterates(look.sample, iterates[-WINDOW:])


@diagnostic
def ascent(look: Look) -> AscentDirections:
    """How DP-SAT's and BAM's ascent directions lie to the plain mean gradient."""
    return ascent_directions(look.sample, look.released[0])


@diagnostic(steps_before=1)
def successive_cosines(look: Look) -> dict[str, Number]:
    """The cosine of this step's gradient with that of the step just before.

    From Sharpness-Aware Training, App. F.

    ``clipped``: of the clipped means of the same records at both, before the noise.
    ``released``: of what the run released, batch and noise included.
    """
    clipped: Number = Undefined("the step before was not looked at in this session")
    if look.before:
        (clipped,) = cosines_of([look.before[-1].clipped_mean, look.sample.clipped_mean])
    last, before = look.released
    released: Number = Undefined("fewer than two steps of this session lie behind")
    if last is not None and before is not None:
        (released,) = cosines_of([before, last])
    return {"clipped": clipped, "released": released}


@diagnostic(steps_before=1)
def adjacent_batches(look: Look) -> dict[str, Number]:
    """The cosine of adjacent steps' clipped gradients before the noise, by batch size.

    From Sharpness-Aware Training, Table 8 and Fig. 12: each step has a batch of its own, here of
    records of the sample.
    """
    if not look.before or look.sample.in_buckets:
        none = Undefined("the step before was not looked at, or its records were in buckets")
        return {str(size): none for size in BATCHES}
    pair = look.before[-1], look.sample
    return {str(size): cosine_of_batches(*pair, size, look.generator) for size in BATCHES}
