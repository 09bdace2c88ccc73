"""What a data set is: a training and a test part, and where its preprocessing took numbers from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar, overload

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import Dataset

from plumbline.checks import is_row_by_row
from plumbline.data.files import File
from plumbline.registry import Registry

if TYPE_CHECKING:
    from plumbline.data.table_encoding import TableEncoding
    from plumbline.data.table_rows import RowUse

Source = Literal["public", "private", "training"]
Prepare = Callable[[Tensor], Tensor]
_AT_ONCE = 4096  # records that a model sees at a time, where it is only judged


class StoredRows(Protocol):
    """Records that are stored otherwise than as one tensor: sparse ones, or a torch data set's."""

    def __len__(self) -> int:
        """The number of records."""

    def __getitem__(self, index: Tensor, /) -> Any:
        """Records ``index`` (``[R]``): a tensor ``[R, ...]``, or several of them in a tuple."""

    def select(self, index: Tensor) -> Self:
        """These records, stored in the same way."""


class Split(Dataset[tuple[Any, Tensor]]):
    """Records in memory, or mapped from a file: a torch data set of (x, y).

    Attributes:
        x: As stored, one row per record (images may be uint8 and mapped from a file).
        y: The targets, ``[n]``.
        sensitive_features: Each record's group, ``[n]``, if the data set has groups.
        prepare: From stored rows to what the model sees; None where they are the same. It is
            applied when records are fetched, so that nothing large is copied.
        not_covered: What the preprocessing computed from the private records, in words; the privacy
            statement of a run on this part lists it.
        origin: The part that these records were selected from, and their places there (``[n]``), so
            that what is computed once for the whole need not be computed again.
        public_records: The number of records that is public, if one is: stated, or released with
            noise (``records_noisy``).
        stated: What was stated about the records without looking at them, in words.
        places: Where the records stand in their file, ``[n]``, if others there take no part; None
            if they are numbered as they are here.
    """

    not_covered: tuple[str, ...] = ()
    origin: tuple[Split, Tensor] | None = None
    public_records: int | None = None
    records_noisy: bool = False
    stated: tuple[str, ...] = ()
    places: Tensor | None = None

    def __init__(
        self,
        x: Tensor | StoredRows,
        y: Tensor,
        sensitive_features: Tensor | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        lengths = {"x": len(x), "y": len(y)}
        if sensitive_features is not None:
            lengths["sensitive_features"] = len(sensitive_features)
        if len(set(lengths.values())) != 1:
            raise ValueError(
                f"The records' parts have different lengths: {lengths}. Each must have one row per "
                "record."
            )
        self.x, self.y, self.sensitive_features, self.prepare = x, y, sensitive_features, prepare

    def __len__(self) -> int:
        return len(self.y)

    @property
    def known_records(self) -> int:
        """How many records may be told: the public number; where none is, they are counted."""
        return len(self) if self.public_records is None else self.public_records

    @property
    def row_by_row(self) -> bool:
        """Whether ``fetch`` makes each row from that record alone.

        So it is where x is a tensor, or stored by one of this package's classes, and nothing
        prepares the rows but such a class. Of another part, private training fetches one record at
        a time.
        """
        stored = isinstance(self.x, Tensor) or is_row_by_row(self.x)
        prepared = self.prepare is None or is_row_by_row(self.prepare)
        return stored and prepared

    def __getitem__(self, number: int) -> tuple[Any, Tensor]:
        if not -len(self) <= number < len(self):
            raise IndexError(f"There is no record {number} among {len(self)}.")
        x, y = self.fetch(torch.tensor([number % len(self)]))
        return tree_map(lambda rows: rows[0], x), y[0]

    def fetch(self, index: Tensor) -> tuple[Any, Tensor]:
        """Records ``index`` (``[R]``) as the model sees them: x ``[R, ...]`` and y ``[R]``.

        Where a record is more than one tensor (sparse text), x is a tuple of such.
        """
        # Several times faster than x[index] on rows of bytes.
        rows = self.x.index_select(0, index) if isinstance(self.x, Tensor) else self.x[index]
        return (rows if self.prepare is None else self.prepare(rows)), self.y[index]

    def pieces(self) -> Iterator[tuple[Any, Tensor]]:
        """All records in order, some thousands at a time, as ``fetch`` gives them."""
        for index in torch.split(torch.arange(len(self)), _AT_ONCE):
            yield self.fetch(index)

    def select(self, index: Tensor) -> Split:
        """The part that has only records ``index`` (``[R]``)."""
        features = self.sensitive_features
        rows = self.x[index] if isinstance(self.x, Tensor) else self.x.select(index)
        part = Split(
            rows, self.y[index], None if features is None else features[index], self.prepare
        )
        part.not_covered, part.stated = self.not_covered, self.stated
        part.places = None if self.places is None else self.places[index]
        part.origin = (self, index)
        return part


@dataclass(frozen=True)
class Constant:
    """A number that preprocessing used, and where it came from.

    Attributes:
        what: Such as "the mean and standard deviation of age".
        source: "public" for constants stated without looking at the data; "private" for what was
            released with noise, which epsilon covers; "training" when computed from the private
            training records as they are, which it does not cover.
    """

    what: str
    source: Source

    def __str__(self) -> str:
        if self.source == "public":
            return f"{self.what}: public constants"
        if self.source == "private":
            return f"{self.what}: found privately, covered by epsilon"
        return f"{self.what}: computed from the training records, not covered by epsilon"


@dataclass(frozen=True, eq=False)
class Splits:
    """A data set.

    Attributes:
        name: Its name.
        train: The training part.
        test: The test part.
        classes: The classes' names, by value of y.
        groups: The groups' names, by value of ``sensitive_features``; empty without groups.
        constants: Where the numbers of the preprocessing come from.
        features: The names of x's columns, where x is a table.
        encoding: How rows of that table become x; None for others.
        use: How many rows of that table take part; None for others.
        target_range: Where the target is a number: the lowest and highest one, which y has as -1
            and 1. There are no classes then.
        third: Records that are neither trained on nor reported on, to choose a threshold on, if
            one is to be chosen.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    groups: tuple[str, ...] = ()
    constants: tuple[Constant, ...] = ()
    features: tuple[str, ...] = ()
    encoding: TableEncoding | None = None
    use: RowUse | None = None
    target_range: tuple[float, float] | None = None
    third: Split | None = None

    def __post_init__(self) -> None:
        # A part of another has what was added to that.
        listed = dict.fromkeys([*self.not_covered, *self.train.not_covered])
        self.train.not_covered = tuple(listed)

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What the privacy statement must list: numbers computed from the private records."""
        return not_covered(self.constants)


def not_covered(constants: Iterable[Constant]) -> tuple[str, ...]:
    """Those that were computed from the private records, in words."""
    return tuple(str(one) for one in constants if one.source == "training")


Loader = Callable[..., Splits]
Own = TypeVar("Own", bound=Callable[..., Any])

DATASETS: Registry[Loader] = Registry("data set")
FILES: dict[str, tuple[File, ...]] = {}
"""What is downloaded for each data set; nothing for those that come with the package."""


@overload
def dataset(loader: Own, /) -> Own: ...
@overload
def dataset(name: str, /, files: Sequence[File] = ()) -> Callable[[Own], Own]: ...
def dataset(loader: Own | str, /, files: Sequence[File] = ()) -> Own | Callable[[Own], Own]:
    """Registers a function that loads a data set, under its own name or another.

    ``@dataset`` above ``def our_patients(...)`` registers "our-patients". The function returns
    ``Splits``, or anything that ``as_splits`` takes.

    Args:
        loader: The function, or the name.
        files: What ``plumbline data get`` downloads for it.
    """

    def register(own: Own) -> Own:
        name = loader if isinstance(loader, str) else own.__name__.replace("_", "-")
        DATASETS.add(name, own)
        FILES[name] = tuple(files)
        return own

    return register if isinstance(loader, str) else register(loader)
