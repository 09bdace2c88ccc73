"""Gaussian noise for a step: drawn on a public grid, ahead of the step, and added safely.

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
and the time depends on the noise only through how many of thousands of candidates were rejected.
Rounding the value to the grid adds `rounding_sensitivity(std, d)` to its L2 sensitivity: 2e-9 of
`std` for a million parameters.
"""

import math
import threading
from collections.abc import Mapping

import torch

from plumbline.mechanism.discrete_gaussian import GRID_BITS, standard_normal
from plumbline.mechanism.random_source import RandomSource, Stream, process_identity

__all__ = ["NoisePrefetcher", "add_noise", "gaussian", "rounding_sensitivity"]


def gaussian(stream: Stream, numel: int) -> torch.Tensor:
    """Draws `numel` standard Gaussians on the grid of step 2^-40, `[numel]`, float64 on the CPU.

    The values are meant for `add_noise`, which relies on their being on the grid: scale them there,
    not before.
    """
    return torch.from_numpy(standard_normal(stream, numel))


def add_noise(
    value: Mapping[str, torch.Tensor], std: float, noise: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Returns `value + std * noise`, both sides on the public grid of step `std * 2^-40`.

    Args:
        value: the tensors of one query by name. Consecutive slices of `noise` go to them in the
            mapping's order, each in row-major order.
        std: the noise's standard deviation, sensitivity times noise multiplier. With 0 the values
            come back unchanged, a release without a guarantee.
        noise: as many values as all the tensors together have, from `gaussian`.

    Returns:
        New tensors with the names, shapes, types and devices of `value`; the sum is computed in
        float64 and then cast.

    Raises:
        ValueError: if `std` is negative or not finite, if `noise` is not on the grid of `gaussian`
            or has another length, or if a value is not finite.
    """
    if not (math.isfinite(std) and std >= 0):
        raise ValueError(f"std is {std}; it must be a finite number, at least 0")
    step = math.ldexp(std, -GRID_BITS)
    if std > 0 and step < 2.0**-1000:
        raise ValueError(f"std is {std}, too small for float64; rescale what is released")
    total = as_vector(value, noise)
    if std > 0:
        total.div_(step).round_().add_(noise.to(total.device), alpha=2.0**GRID_BITS).mul_(step)
    return in_place_of(value, total)


def as_vector(value: Mapping[str, torch.Tensor], noise: torch.Tensor) -> torch.Tensor:
    """A value as one float64 vector `[numel]`, after checking that its noise fits.

    Raises:
        ValueError: if `noise` has another type or length, or if a value is not finite.
    """
    wanted = sum(tensor.numel() for tensor in value.values())
    if noise.dtype != torch.float64 or noise.shape != (wanted,):
        raise ValueError(
            f"noise is {noise.dtype} of shape {tuple(noise.shape)}, but the value has {wanted} "
            f"entries in all; draw it with gaussian(stream, {wanted}) and do not scale or cast it"
        )
    # One vector for all tensors: a network has many small ones, for which each call is expensive.
    total = torch.cat([_float64(tensor).reshape(-1) for tensor in value.values()])
    if not math.isfinite(total.sum().item()):
        raise _not_finite(value)
    return total


def in_place_of(value: Mapping[str, torch.Tensor], total: torch.Tensor) -> dict[str, torch.Tensor]:
    """The vector in the shapes, types and devices of `value`."""
    parts = torch.split(total, [tensor.numel() for tensor in value.values()])
    return {
        name: part.view(tensor.shape).to(device=tensor.device, dtype=tensor.dtype)
        for (name, tensor), part in zip(value.items(), parts, strict=True)
    }


def _float64(tensor: torch.Tensor) -> torch.Tensor:
    # Not every device has float64 (Apple's GPU does not).
    device = torch.device("cpu") if tensor.device.type == "mps" else tensor.device
    return tensor.detach().to(device=device, dtype=torch.float64)


def _not_finite(value: Mapping[str, torch.Tensor]) -> ValueError:
    bad = [name for name, tensor in value.items() if not torch.isfinite(tensor).all()]
    names = ", ".join(repr(name) for name in bad) or "the sum of the values"
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
    unexpected step (the first one, or after a jump) is drawn at once. In a forked child the thread
    does not exist: the child draws for itself, and under a new key if the source is secure.

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

    def take(self, step: int) -> torch.Tensor:
        """Returns the noise of `step`, `[numel]`, float64 on the CPU; only once per step.

        Raises:
            ValueError: if noise of this step or a later one was already taken.
        """
        if step <= self._taken:
            raise ValueError(
                f"noise of step {step} was requested after that of step {self._taken}; noise is "
                "handed out once, in order. To replay a seeded run, make a new NoisePrefetcher"
            )
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.step != step or ahead.process != process_identity():
            ahead = self._draw(step)
        noise = ahead.result()
        self._taken = step
        if self._stop is None or step + 1 < self._stop:
            self._ahead = self._draw(step + 1)
            self._ahead.start()
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

    def _draw(self, step: int) -> "_Draw":
        position = (step, self._query) if self._query else (step,)
        return _Draw(self._source, position, self._numel)


class _Draw:
    """One step's noise, drawn by a thread if `start` was called, else when it is requested."""

    def __init__(self, source: RandomSource, position: tuple[int, ...], numel: int) -> None:
        self.step = position[0]
        self.process = process_identity()
        self._source = source
        self._position = position
        self._numel = numel
        self._thread: threading.Thread | None = None
        self._noise: torch.Tensor | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"plumbline-noise-{self.step}")
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def result(self) -> torch.Tensor:
        if self._thread is None:
            self._run()
        self.wait()
        if self._error is not None:
            raise self._error
        assert self._noise is not None
        return self._noise

    def _run(self) -> None:
        try:
            self._noise = gaussian(self._source.once("noise", *self._position), self._numel)
        except BaseException as error:  # raised again where the noise is requested
            self._error = error
