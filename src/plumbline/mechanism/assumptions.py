"""What a statement's guarantee rests on, in three lists: by construction, tested, and trusted.

Each item is a fact of the run at hand. What is trusted is in the order of what goes wrong most
often in practice; "a limit that no attack can pass" stands under these and no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["record", "user"]
Isolation = Literal["vmap", "loop"]
Company = Literal["none", "public", "bucket"]
"""What a record goes through the model with: nothing, public inputs, or others of its bucket."""

APART: dict[Isolation, str] = {
    "vmap": "all records of a batch at once under torch.vmap, inside of which there is no other "
    "record",
    "loop": "one record after the other",
}
_RUN: dict[Company, str] = {
    "none": "records do not mix: each is read by itself, and model and loss are run for a single "
    "record",
    "public": "records do not mix: each is read by itself, and model and loss are run for a single "
    "record and the public inputs drawn for it",
    "bucket": "records mix in buckets alone, which each draws by itself: each is read by itself, "
    "and model and loss are run for a single bucket, whose gradient is bounded as a whole",
}
_RECORDED = (
    "at the start: the operations of a single record's run, recorded on made-up records and "
    "repeated without the code of the model, which is torch's own, give what it gives to the bit"
)
_PERSON: dict[Unit, str] = {
    "record": "a person has one record; the protection of one with several is weaker (give the "
    "users' ids to protect users)",
    "user": "the user ids are right: records of one person under two ids are protected apart",
}


@dataclass(frozen=True)
class Assumptions:
    """What must hold for a guarantee, by how it is known.

    Attributes:
        by_construction: What cannot be otherwise, whatever the data and the model.
        tested: What is looked at while the run is made, or in Plumbline's own tests.
        trusted: What nobody but the reader can know.
    """

    by_construction: tuple[str, ...]
    tested: tuple[str, ...]
    trusted: tuple[str, ...]


def assumptions(
    *,
    unit: Unit,
    isolation: Isolation,
    company: Company,
    recorded: bool,
    seeded: bool,
    audited: str,
) -> Assumptions:
    """The assumptions of a run.

    Args:
        unit: Whose presence is protected.
        isolation: How records are kept apart.
        company: What a record goes through the model with.
        recorded: Whether the operations of a single record's run are recorded and repeated.
        seeded: Whether the randomness comes from a seed.
        audited: What was found when neighbouring batches were compared, if they were.
    """
    apart = APART[isolation]
    if company == "bucket":
        apart = apart.replace("record", "bucket")
    key = "the seed is secret, and nobody" if seeded else "nobody"
    return Assumptions(
        by_construction=(
            f"{_RUN[company]}, {apart}",
            f"one {unit} moves an answer by no more than its bound, the rounding of norms and sums "
            "included; a record that is not finite counts as zero",
            "noise is drawn on a public grid, so that no digit of an answer tells what it was "
            "added to, and a step is counted before its answer is used",
        ),
        tested=(
            "in each step: the model has kept nothing (buffers, frozen weights, attributes)",
            *((_RECORDED,) if recorded else ()),
            "now and then: a record that is read in other company is the same",
            *((f"on the run's own records: {audited.rstrip('.')}",) if audited else ()),
            "in Plumbline's tests, not here: every bound, against records made to break it",
        ),
        trusted=(
            "nothing else about these data was released: no other run, figure or copy",
            _PERSON[unit],
            "reading a record reads that record alone: a data set that mixes others into one, as "
            "mixup in its __getitem__ does, is not covered",
            "no record decided which others are trained on: if some were held out by place, one "
            "that is removed leaves its place empty",
            "the model's code keeps nothing outside of the model: in a file, a thread, another "
            "package",
            "the ledger is not set back to an earlier version, and the disk keeps what it accepted",
            f"{key} reads the memory of the computer that trains, or times its steps",
            "Plumbline and what it stands on (PyTorch, dp-accounting, the operating system's "
            "entropy) do what they say",
        ),
    )
