"""Says what to do when a model cannot run under ``vmap``, and names the line of the user's code."""

from __future__ import annotations

import traceback

from plumbline.gradients.errors import CaptureError, UnsupportedModelError
from plumbline.record_errors import own_line

CHECKPOINTED = (
    "The model uses gradient checkpointing (or other hooks on saved tensors), which runs a part of "
    "it again outside of the record's own run. Switch it off and set max_physical_batch, which "
    'saves more memory; or use isolation="loop".'
)

_COMPILED = (
    "The model or the loss calls a function that is compiled by torch.compile, which hides what it "
    "does. Call the function as it was before."
)
_IN_PLACE = (
    "It writes a record's values into a tensor that all records share. Make a new tensor instead "
    "(y = y + x, torch.cat), or one of the record's own (torch.zeros_like(x))"
)
_REMEDIES = {
    "random operation": (
        "It draws random numbers in a way that has no rule for one record. Draw them with "
        "torch.rand, torch.randn_like, F.dropout and the like, without a generator"
    ),
    "(self, *extra_args)": _IN_PLACE,
    "the fallback doesn't work on out=": _IN_PLACE,
    "doesn't match the broadcast shape": _IN_PLACE,
    "does not require grad and does not have a grad_fn": (
        "It differentiates within the model. Use torch.func.grad or torch.func.vjp, on functions "
        "that do not use the model's parameters"
    ),
    "setup_context": (
        "Let torch generate the function's rule (generate_vmap_rule = True, with setup_context), "
        "or write it with ordinary functions"
    ),
}
_REMEDY = (
    "Write it without control flow, sizes or Python numbers that depend on the data (torch.where "
    "instead of if)"
)
_SIGNS = (
    "vmap",
    "Batching rule",
    "BatchedTensor",
    "functorch",
    "Cannot access data pointer of Tensor",
    "dynamic shape",
    *_REMEDIES,
)


class explained:
    """Turns torch's errors about ``vmap`` into ``UnsupportedModelError``s."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, (RuntimeError, ValueError, TypeError)):
            return
        if isinstance(error, CaptureError):
            return
        if type(error).__module__ == "torch._dynamo.exc":
            raise UnsupportedModelError(_COMPILED) from error
        message = str(error)
        frames = traceback.extract_tb(error.__traceback__)
        if message == CHECKPOINTED or _checkpointed(frames):
            raise UnsupportedModelError(CHECKPOINTED) from error
        if not any(sign in message for sign in _SIGNS):
            return
        remedy = next((_REMEDIES[sign] for sign in _REMEDIES if sign in message), _REMEDY)
        line = own_line(error) or "a part of the model"
        raise UnsupportedModelError(
            f"{line[0].upper()}{line[1:]} cannot run for one record under torch.vmap, which keeps "
            f"records apart by construction: {message.splitlines()[0].strip(' .')}. {remedy}; or "
            'use isolation="loop", which runs one record at a time and is slower.'
        ) from error


def _checkpointed(frames: traceback.StackSummary) -> bool:
    return any(frame.filename.endswith("torch/utils/checkpoint.py") for frame in frames)
