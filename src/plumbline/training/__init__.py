"""Private training in the user's own loop: ``make_private`` and its accounted step."""

from plumbline.training.losses import BatchLoss, batch_loss
from plumbline.training.private import BatchRefused, Private, PrivateBatch, make_private

__all__ = ["BatchLoss", "BatchRefused", "Private", "PrivateBatch", "batch_loss", "make_private"]
