"""By what a resumed run recognises that its records are in the order they were in.

A record's part is drawn from its number (``sampling.Parts``). A data set that lists its files in
another order, or is split or shuffled anew, gives a record another number, and so another part: it
could take part again in a cycle in which it had its turn. Independent noise needs no such order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from plumbline.mechanism.random_source import RandomSource
from plumbline.training.records import Records
from plumbline.training.run_identity import keyed_digest

_LOOKED_AT = 64


def order_mark(records: Records, user_ids: Any, source: RandomSource) -> str:
    """A digest of some records with their numbers, and of all users.

    Args:
        records: The records.
        user_ids: The user of each, if they are the unit of privacy.
        source: What parts are drawn from; it decides which records are looked at, and is the
            digest's key.
    """
    places = (source.stream("order").uint64(_LOOKED_AT) % len(records)).tolist()
    # One by one, as records of different lengths make no batch.
    seen = [records.fetch(torch.tensor([place]), "order") for place in places]
    exact = [leaf for leaf in tree_leaves(seen) if isinstance(leaf, Tensor | str)]
    users = [] if user_ids is None else [str(one) for one in user_ids]
    return keyed_digest(source.stream("order key").bytes(32), [exact, users])
