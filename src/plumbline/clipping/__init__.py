"""By what factor each record's gradient is scaled, and the L2 bound that this proves."""

from plumbline.clipping.base import Clipping
from plumbline.clipping.flat import Flat

__all__ = ["Clipping", "Flat"]
