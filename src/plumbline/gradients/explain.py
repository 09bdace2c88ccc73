"""``explain``: which kernel computes each layer's per-record gradients, and what others cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from plumbline.gradients.capturing import Loss, capture
from plumbline.gradients.kernels import KERNELS
from plumbline.gradients.norms import keepable
from plumbline.gradients.terms import CHUNK_BYTES, Term

Batch = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]


@dataclass(frozen=True)
class KernelChoice:
    """How one parameter's per-record norms are computed.

    Attributes:
        parameter: Its name.
        shape: Its shape.
        form: What is stored for it: ``Outer`` (a linear layer's inputs and gradients),
            ``Convolved``, ``Rows`` (of an embedding), ``Dense`` (the gradients themselves) ...
        kernel: The chosen way: ``keep`` (dense gradients, kept for the sum), ``stream`` (dense, a
            few records at a time), ``gram``, ``product`` (one position per record) ...
        dense_kernel: How dense gradients are computed, where there is a choice.
        seconds: The time of each way that was measured, norms and weighted sum together.
        memory: The bytes that each way needs besides the captured inputs.
    """

    parameter: str
    shape: tuple[int, ...]
    form: str
    kernel: str
    dense_kernel: str
    seconds: dict[str, float]
    memory: dict[str, int]


@dataclass(frozen=True)
class Explanation:
    """The choices for every parameter; ``print`` it."""

    choices: tuple[KernelChoice, ...]
    records: int

    def __str__(self) -> str:
        width = max(len(choice.parameter) for choice in self.choices)
        lines = [f"Per-record gradients of {self.records} records, kernel by parameter:"]
        for choice in self.choices:
            head = f"  {choice.parameter:<{width}}  {choice.form:<9} {choice.kernel}"
            if choice.dense_kernel:
                head += f" ({choice.dense_kernel})"
            ways = ", ".join(
                f"{way} {seconds * 1e3:.2f} ms {_size(choice.memory.get(way, 0))}"
                for way, seconds in sorted(choice.seconds.items(), key=lambda item: item[1])
            )
            lines.append(f"{head}{'  | ' + ways if ways else ''}")
        return "\n".join(lines)


def explain(model: nn.Module, batch: Any, loss: Loss | None = None) -> Explanation:
    """Runs one capture and prints, per parameter, the chosen kernel and its alternatives.

    Args:
        model: The model.
        batch: Tensors with one row per record, of which only shapes matter: inputs of the model (a
            tensor, a tuple, or a mapping of named inputs), or whatever ``loss`` takes.
        loss: One loss per row, from the model and a batch; by default any function of its output.
    """
    gradients = capture(model, loss or _losses, batch)
    before = {name: gradients.term(name) for name in gradients.names}
    keep = keepable(before)
    gradients.norms()
    choices = tuple(
        _choice(name, term, name in keep, gradients.term(name)) for name, term in before.items()
    )
    explanation = Explanation(choices, gradients.records)
    print(explanation)
    return explanation


def _choice(name: str, term: Term, may_keep: bool, held: Term) -> KernelChoice:
    key = ("norms", *term.key, may_keep)
    kernel = KERNELS.chosen(key) or next(iter(term.norm_kernels()))
    dense_key = next(
        (known for known in KERNELS.timings if known[: 1 + 2] == ("dense", *term.key[:2])), None
    )
    return KernelChoice(
        parameter=name,
        shape=tuple(term.shape),
        form=type(term).__name__,
        kernel=kernel,
        dense_kernel=(KERNELS.chosen(dense_key) or "") if dense_key else "",
        seconds=dict(KERNELS.timings.get(key, {})),
        memory={
            way: held.dense_nbytes if way == "keep" else min(CHUNK_BYTES, term.dense_nbytes)
            for way in ("keep", *term.norm_kernels())
        },
    )


def _losses(model: nn.Module, batch: Batch) -> Tensor:
    if isinstance(batch, Tensor):
        output = model(batch)
    elif isinstance(batch, Mapping):
        output = model(**batch)
    else:
        output = model(*batch)
    if not isinstance(output, Tensor):
        output = output[0] if isinstance(output, tuple) else next(iter(output.values()))
    loss: Tensor = output.float().square().flatten(1).sum(1)
    return loss


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
