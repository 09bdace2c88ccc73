"""Gaussian noise for a step: drawn on a public grid, and added safely.

The defence. Adding a float64 Gaussian to a float64 value leaks the value: which sums are possible,
and how precise they are, depends on it (Mironov 2012, "On significance of the least significant
bits"; Jin et al. 2022, "Are we there yet? Timing and floating-point attacks", for the Gaussian;
Haney et al. 2022, "Precision-based attacks and interval refining"). Summing several draws (Holohan
and Braghin 2021) makes the first attack expensive but leaves the third. Here, as in Google's
"Secure noise generation" (2020) and in OpenDP, both sides are put on one public grid of step
`std * 2^-40`: the value is rounded to it, the noise is drawn on it (`discrete_gaussian`), and the
answer is a function of their sum, one integer. (Beyond 2^52 grid steps the addition rounds; IEEE
addition rounds the exact sum, so this is still a function of it.) Casting back to float32, dividing
by the batch size and so on is only post-processing.

Rounding *before* the noise, while the sum of clipped gradients is formed (Casacuberta et al. 2022,
"Widespread underestimation of sensitivity"), is the query's own business: it bounds it and states
it (`Query.rounding`), and the noise is scaled to cover it. What this does not defend against:
measurements of power or of memory access. Timing: noise is drawn without knowledge of the data,
and the time depends on the noise only through how many of thousands of values were drawn in two
parts, and how many candidates were rejected there.
Rounding the value to the grid adds `rounding_sensitivity(std, d)` to its L2 sensitivity: 2e-9 of
`std` for a million parameters.
"""

import bisect
import itertools
import math
import threading
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from plumbline.mechanism.discrete_gaussian import (
    BLOCK,
    GRID_BITS,
    each_block,
    loops,
    standard_normal,
)
from plumbline.mechanism.random_source import RandomSource, Stream, process_identity

__all__ = ["NoisePrefetcher", "add_noise", "drawn", "gaussian", "rounding_sensitivity"]


def gaussian(stream: Stream, numel: int) -> torch.Tensor:
    """Draws `numel` standard Gaussians on the grid of step 2^-40, `[numel]`, float64 on the CPU.

    The values are meant for `add_noise`, which relies on their being on the grid: scale them there,
    not before. As many threads draw as torch uses; the values do not depend on how many.
    """
    return torch.from_numpy(standard_normal(stream, numel, torch.get_num_threads()))


def drawn(noise: Stream | torch.Tensor, numel: int) -> torch.Tensor:
    """Noise that may have been drawn already: of a stream, `gaussian`."""
    return gaussian(noise, numel) if isinstance(noise, Stream) else noise


def add_noise(
    value: Mapping[str, torch.Tensor],
    std: float,
    noise: Stream | torch.Tensor,
    answer_type: torch.dtype | None = None,
) -> dict[str, torch.Tensor]:
    """Returns `value + std * noise`, both sides on the public grid of step `std * 2^-40`.

    Args:
        value: the tensors of one query by name. Consecutive slices of `noise` go to them in the
            mapping's order, each in row-major order.
        std: the noise's standard deviation, sensitivity times noise multiplier. With 0 the values
            come back unchanged, a release without a guarantee.
        noise: the stream to draw from while adding, which is faster on a CPU; or as many values as
            all the tensors together have, from `gaussian`. The answer is the same.
        answer_type: the type of the answer; by default each tensor's own.

    Returns:
        New tensors with the names, shapes and devices of `value`; the sum is computed in float64
        and then cast.

    Raises:
        ValueError: if `std` is negative or not finite, if `noise` is not on the grid of `gaussian`
            or has another length, or if a value is not finite.
    """
    if not (math.isfinite(std) and std >= 0):
        raise ValueError(f"std is {std}; it must be a finite number, at least 0")
    step = math.ldexp(std, -GRID_BITS)
    if std > 0 and step < 2.0**-1000:
        raise ValueError(f"std is {std}, too small for float64; rescale what is released")
    if std == 0:
        return in_place_of(value, as_vector(value, noise), answer_type)
    on_cpu = all(tensor.device.type == "cpu" for tensor in value.values())
    return (_added_in_blocks if on_cpu else _added_at_once)(value, step, noise, answer_type)


def _added_at_once(
    value: Mapping[str, torch.Tensor],
    step: float,
    noise: Stream | torch.Tensor,
    answer_type: torch.dtype | None = None,
) -> dict[str, torch.Tensor]:
    """`add_noise` on any device."""
    total = as_vector(value, noise)
    on_device = drawn(noise, len(total)).to(total.device)
    total.div_(step).round_().add_(on_device, alpha=2.0**GRID_BITS).mul_(step)
    return in_place_of(value, total, answer_type)


def _added_in_blocks(
    value: Mapping[str, torch.Tensor],
    step: float,
    noise: Stream | torch.Tensor,
    answer_type: torch.dtype | None = None,
) -> dict[str, torch.Tensor]:
    """`add_noise` on a CPU: each block is drawn and added while it is in the cache."""
    _check_fit(value, noise)
    given = [_for_numpy(tensor) for tensor in value.values()]
    narrow = answer_type == torch.float32  # the other types are cast afterwards
    types = [torch.float32 if narrow else tensor.dtype for tensor in given]
    result = [
        torch.empty(tensor.shape, dtype=kind) for tensor, kind in zip(given, types, strict=True)
    ]
    sources = [tensor.reshape(-1).contiguous().numpy() for tensor in given]
    targets = [tensor.view(-1).numpy() for tensor in result]
    ends = list(itertools.accumulate(len(source) for source in sources))
    numel = ends[-1] if ends else 0
    added = loops(numel).added

    def add(start: int, block: NDArray[np.float64]) -> None:
        done = 0
        for number in range(bisect.bisect_right(ends, start), len(ends)):
            source, target = sources[number], targets[number]
            first = start + done - (ends[number] - len(source))
            part = slice(first, min(len(source), first + len(block) - done))
            size = part.stop - first
            if not added(source[part], block[done : done + size], step, target[part]):
                raise _not_finite(value)
            done += size
            if done == len(block):
                return

    if isinstance(noise, Stream):
        each_block(noise, numel, add, torch.get_num_threads())
    else:
        for start in range(0, numel, BLOCK):
            add(start, noise[start : start + BLOCK].numpy() * 2.0**GRID_BITS)
    return {
        name: noisy.to(answer_type or tensor.dtype)
        for (name, tensor), noisy in zip(value.items(), result, strict=True)
    }


def _for_numpy(tensor: torch.Tensor) -> torch.Tensor:
    # numpy does not have all of torch's types.
    detached = tensor.detach()
    return detached if tensor.dtype in (torch.float32, torch.float64) else detached.double()


def _check_fit(value: Mapping[str, torch.Tensor], noise: Stream | torch.Tensor) -> None:
    if isinstance(noise, Stream):
        return
    wanted = sum(tensor.numel() for tensor in value.values())
    if noise.dtype != torch.float64 or noise.shape != (wanted,):
        raise ValueError(
            f"noise is {noise.dtype} of shape {tuple(noise.shape)}, but the value has {wanted} "
            f"entries in all; draw it with gaussian(stream, {wanted}) and do not scale or cast it"
        )


def as_vector(
    value: Mapping[str, torch.Tensor], noise: Stream | torch.Tensor | None = None
) -> torch.Tensor:
    """A value as one float64 vector `[numel]`, after checking that its noise, if given, fits.

    Raises:
        ValueError: if `noise` has another type or length, or if a value is not finite.
    """
    if noise is not None:
        _check_fit(value, noise)
    # One vector for all tensors: a network has many small ones, for which each call is expensive.
    total = torch.cat([_float64(tensor).reshape(-1) for tensor in value.values()])
    if not math.isfinite(total.sum().item()):
        raise _not_finite(value)
    return total


def in_place_of(
    value: Mapping[str, torch.Tensor],
    total: torch.Tensor,
    answer_type: torch.dtype | None = None,
) -> dict[str, torch.Tensor]:
    """The vector in the shapes, types (if none is given) and devices of `value`."""
    parts = torch.split(total, [tensor.numel() for tensor in value.values()])
    return {
        name: part.view(tensor.shape).to(device=tensor.device, dtype=answer_type or tensor.dtype)
        for (name, tensor), part in zip(value.items(), parts, strict=True)
    }


def _float64(tensor: torch.Tensor) -> torch.Tensor:
    # Not every device has float64 (Apple's GPU does not).
    device = torch.device("cpu") if tensor.device.type == "mps" else tensor.device
    return tensor.detach().to(device=device, dtype=torch.float64)


def _not_finite(value: Mapping[str, torch.Tensor]) -> ValueError:
    bad = [name for name, tensor in value.items() if not torch.isfinite(tensor).all()]
    names = ", ".join(repr(name) for name in bad) or "the value in steps of the grid"
    return ValueError(
        f"{names} holds a value that is not finite, which noise cannot cover; records with such "
        "gradients must be masked to zero before they are summed"
    )


def rounding_sensitivity(std: float, numel: int) -> float:
    """Bounds what rounding to the grid adds to the L2 sensitivity of a value of `numel` entries.

    Between two neighbours an entry moves by at most two grid steps more than before rounding (one
    from the rounding, one from the division by the step), as long as it is below 4096 `std`; beyond
    that, by no more than its own float64 rounding.
    """
    return 2 * math.ldexp(std, -GRID_BITS) * math.sqrt(numel)


class NoisePrefetcher:
    """Draws the noise of the next step in a thread while this step is computed.

    `take(step)` returns the noise of a step and starts drawing that of `step + 1`. There is at most
    one thread, it ends by itself after one step's noise, and `close` waits for it. The noise of an
    unexpected step (the first one, or after a jump) is not drawn yet: its stream is returned. In a
    forked child the thread does not exist: the child has a stream of its own, and under a new key
    if the source is secure.

    Args:
        source: the source of randomness. The noise of a seeded source is that of the stream
            `("noise", step)`, or `("noise", step, query)` for a later query of the step.
        numel: how many values a step needs.
        query: which of the step's queries this noise is for, counted from 0.
        stop: the number of steps of the run, if known: nothing is drawn beyond it.
    """

    def __init__(
        self, source: RandomSource, numel: int, *, query: int = 0, stop: int | None = None
    ) -> None:
        self._source = source
        self._numel = numel
        self._query = query
        self._stop = stop
        self._taken = -1
        self._ahead: _Draw | None = None

    def take(self, step: int) -> Stream | torch.Tensor:
        """Returns the noise of `step`, for `add_noise`; only once per step.

        Raises:
            ValueError: if noise of this step or a later one was already taken.
        """
        if step <= self._taken:
            raise ValueError(
                f"noise of step {step} was requested after that of step {self._taken}; noise is "
                "handed out once, in order. To replay a seeded run, make a new NoisePrefetcher"
            )
        ahead = self._drawn_ahead(step)
        noise = self._stream(step) if ahead is None else ahead
        self._taken = step
        if self._stop is None or step + 1 < self._stop:
            self._ahead = _Draw(step + 1, lambda: gaussian(self._stream(step + 1), self._numel))
        return noise

    def close(self) -> None:
        """Waits for the thread, if there is one, and discards what it drew."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.process == process_identity():
            ahead.wait()

    def __enter__(self) -> "NoisePrefetcher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drawn_ahead(self, step: int) -> torch.Tensor | None:
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.process != process_identity():
            return None
        noise = ahead.result()
        return noise if ahead.step == step else None

    def _stream(self, step: int) -> Stream:
        position = (step, self._query) if self._query else (step,)
        return self._source.once("noise", *position)


class _Draw:
    """One step's noise, being drawn by a thread."""

    def __init__(self, step: int, draw: Callable[[], torch.Tensor]) -> None:
        self.step = step
        self.process = process_identity()
        self._noise: torch.Tensor | None = None
        self._error: BaseException | None = None
        name = f"plumbline-noise-{step}"
        self._thread = threading.Thread(target=self._run, args=(draw,), name=name)
        self._thread.start()

    def wait(self) -> None:
        self._thread.join()

    def result(self) -> torch.Tensor:
        self.wait()
        if self._error is not None:
            raise self._error
        assert self._noise is not None
        return self._noise

    def _run(self, draw: Callable[[], torch.Tensor]) -> None:
        try:
            self._noise = draw()
        except BaseException as error:  # raised again where the noise is requested
            self._error = error
