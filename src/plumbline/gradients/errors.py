"""The errors of capturing per-record gradients.

Every message says what was given, what is expected, and what to do next. All of them are
``CaptureError``s, so that a caller can catch them together.
"""


class CaptureError(RuntimeError):
    """Per-record gradients could not be captured."""


class LossError(CaptureError):
    """The losses are not one number per record."""


CUT_OFF = (
    "The losses do not depend on any trainable parameter (is the model called under no_grad, or "
    "its output detached?), so there is no gradient to capture."
)


class RecordsMixError(CaptureError):
    """An operation makes one record's loss depend on another record."""


class EscapedParameterError(CaptureError):
    """A parameter is used in a way that the capture does not see."""


class UnsupportedModelError(CaptureError):
    """The model cannot be captured: compiled, scripted, nothing to train, not under ``vmap``."""
