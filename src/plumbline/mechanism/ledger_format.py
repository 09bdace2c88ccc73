r"""The text format of a ledger: its lines, their checksums, and what they add up to.

A ledger is a text file with one JSON object per line. Every line carries its number (`seq`, from
0) and a `hash`: the first 16 hex digits of the SHA-256 of the previous line's hash and this line's
text before `,"hash"`. So a changed, lost, repeated or moved line breaks the chain.

| kind | says | fields |
| --- | --- | --- |
| `ledger` | line 1: this is a ledger | `format`, `id`, `limit` ([epsilon, delta] or null) |
| `limit` | a data-set budget, set later | `limit` |
| `release` | what steps of `run` now release | `session`, `pid`, `run`, `most`, `release` |
| `charge` | steps from `step` on are charged | `of`, `step`, `count`; `noise` or `journal` |
| `refund` | steps charged ahead and not made | `of`, `count` |
| `saved` | `run` saved a checkpoint at `step` | `run`, `step`, `token` |
| `about` | what `run` is | `run`, `about` |
| `released` | the model of `run` was released | `run` |
| `released_limit` | what released runs may cost together | `limit` |
| `torn` | the last line was damaged; charged | `charged` ([of, count] pairs), `pad` |

`of` is the number of a `release` line among the `release` lines, from 0.

Guarantee: the cost of a charge is on disk *before* the charge, in its `release` line together with
`most`, the largest count that a single line may charge to it. So when the last line is unreadable
(torn by a crash, or damaged later) its cost is still bounded: `most` steps of the release that each
run of the last session had declared. The checksum finds accidents, not forgery: anyone who can
write the file can write another one.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FORMAT = 1
GENESIS = "0" * 16
_HEADER_START = f'{{"seq":0,"kind":"ledger","format":{FORMAT},"id":"'.encode()
_HASH = re.compile(rb',"hash":"[0-9a-f]{16}"\}')
_SEEDED = re.compile(r"([0-9a-f]{16})-[0-9a-f]{16}")
_HASH_LENGTH = len(',"hash":""}') + 16
_MOST = 10**12  # the most steps that one line may charge
# A charge as `encode` writes it. Nearly every line is one, and this is four times as fast as JSON.
_CHARGE = re.compile(
    rb'\{"seq":(N),"kind":"charge","of":(N),"step":(N),"count":(N)(?:,"noise":\[(N),"([0-9a-f]*)"\])?'
    rb'(?:,"journal":"([0-9a-f]*)")?,"hash":"([0-9a-f]{16})"\}'.replace(
        b"N", rb"0|[1-9][0-9]{0,11}"
    )
)

Limit = tuple[float, float]
Entries = list[tuple[dict[str, Any], int]]


class LedgerError(RuntimeError):
    """The ledger cannot do what was asked, and nothing was released."""


class LedgerDamaged(LedgerError):
    """A ledger's file is not as it was written.

    Attributes:
        line: the first line that is wrong, counted from 1.
    """

    def __init__(self, name: str, line: int, reason: str) -> None:
        super().__init__(
            f"ledger {name}, line {line}: {reason}. The ledger is refused, because it no longer "
            "shows what was spent; restore the file from an intact copy"
        )
        self.line = line


class NoiseReuse(LedgerError):
    """Noise that was already used would be added to something else."""


@dataclass(frozen=True)
class Position:
    """How far a ledger is written: its number of lines, and the hash of the last one."""

    count: int
    hash: str


@dataclass
class Declaration:
    """A `release` line, and the steps charged to it.

    Attributes:
        parts: of a cyclic sampling, otherwise 1. Its steps must follow on one another to be counted
            together: a charge that does not go on where the run's last one ended (that of a copy of
            the run, say) may be of the same part again.
        apart: what such charges add, so that dividing by `parts` counts each by itself.
    """

    run: str
    key: str
    most: int
    parts: int = 1
    charged: int = 0
    apart: int = 0


@dataclass(frozen=True)
class Charge:
    """The last steps charged to a run: `count` from `step` on, before which `journal` was named."""

    of: int
    step: int
    count: int
    journal: str | None


@dataclass(frozen=True)
class Saved:
    """A `saved` line, and its number."""

    line: int
    step: int
    token: str


@dataclass
class Book:
    """What the lines of a ledger say, as they are read or written one by one."""

    hashes: list[str] = field(default_factory=list)
    declarations: list[Declaration] = field(default_factory=list)
    current: dict[str, int] = field(default_factory=dict)  # run -> declaration, this session's
    session: str = ""
    pid: int = 0
    noise: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)
    last: dict[str, Charge] = field(default_factory=dict)  # run -> what may still be refunded
    next: dict[str, int] = field(default_factory=dict)  # run -> the step that goes on in order
    limit: Limit | None = None
    released_limit: Limit | None = None  # on what the released runs cost together
    saved: dict[str, Saved] = field(default_factory=dict)  # run -> its last checkpoint
    about: dict[str, dict[str, Any]] = field(default_factory=dict)  # run -> what it is
    released: list[str] = field(default_factory=list)  # the runs whose models were released

    @property
    def position(self) -> Position:
        """The end of the ledger."""
        return Position(len(self.hashes), self.hashes[-1] if self.hashes else GENESIS)

    def entries(self, run: str | None = None, plus: tuple[str, int] | None = None) -> Entries:
        """What was charged, with equal releases merged; `plus` is a further (key, count)."""
        counts: dict[str, int] = {}
        for declaration in self.declarations:
            if run in (None, declaration.run):
                known = counts.get(declaration.key, 0)
                counts[declaration.key] = known + declaration.charged + declaration.apart
        if plus is not None:
            counts[plus[0]] = counts.get(plus[0], 0) + plus[1]
        return [(json.loads(key), count) for key, count in counts.items() if count]

    def worst(self) -> list[list[int]]:
        """What to charge for an unreadable last line: [declaration, count] pairs."""
        known = {of: self.declarations[of] for of in self.current.values()}
        return [[of, one.most + one.parts - 1] for of, one in known.items()]

    def apply(self, line: Mapping[str, Any]) -> None:
        """Adds a line; raises ValueError if it makes no sense here."""
        match line["kind"]:
            case "charge":
                charge = Charge(
                    line["of"], line["step"], _count(line["count"]), line.get("journal")
                )
                self.charge(charge, line.get("noise"))
            case "ledger" if line["seq"] == 0:
                self.limit = _limit(line["limit"])
            case "limit":
                self.limit = _limit(line["limit"])
            case "released_limit":
                self.released_limit = _limit(line["limit"])
            case "about":
                self.about[line["run"]] = line["about"]
            case "released":
                if line["run"] not in self.released:
                    self.released.append(line["run"])
            case "release":
                if line["session"] != self.session:
                    self.current.clear()
                self.session, self.pid = line["session"], line["pid"]
                self.current[line["run"]] = len(self.declarations)
                key = canonical(line["release"])
                most, parts = _count(line["most"]), parts_of(line["release"])
                self.declarations.append(Declaration(line["run"], key, most, parts))
            case "refund":
                declaration = self._declaration(line["of"])
                last = self.last.pop(declaration.run, None)
                if last is None or last.of != line["of"] or _count(line["count"]) > last.count:
                    raise ValueError("it gives back more steps than were charged ahead")
                declaration.charged -= line["count"]
                self.next[declaration.run] -= line["count"]
            case "saved":
                self.saved[line["run"]] = Saved(line["seq"], line["step"], line["token"])
            case "torn":
                for of, count in line["charged"]:
                    declaration = self._declaration(of)
                    declaration.charged += _count(count)
                    self.next[declaration.run] = self.next.get(declaration.run, 0) + count
            case kind:
                raise ValueError(f"a line of kind {kind!r} does not belong here")

    def charge(self, charge: Charge, noise: Sequence[Any] | None) -> None:
        """Adds a charge; raises ValueError if it makes no sense here."""
        declaration = self._declaration(charge.of)
        if not 1 <= charge.count <= declaration.most:
            raise ValueError("it charges more steps than its release line allows")
        if charge.step != self.next.get(declaration.run, 0):
            declaration.apart += declaration.parts - 1
        declaration.charged += charge.count
        self.next[declaration.run] = charge.step + charge.count
        self.last[declaration.run] = charge
        if noise is not None:
            position, digest = noise
            self.noise[declaration.run, position] = digest, declaration.key

    def _declaration(self, of: Any) -> Declaration:
        if not isinstance(of, int) or not 0 <= of < len(self.declarations):
            raise ValueError(f"it refers to release line {of!r}, which does not exist")
        return self.declarations[of]


def canonical(release: Mapping[str, Any]) -> str:
    """The canonical JSON text of a release; ValueError or TypeError if it is not plain JSON."""
    return json.dumps(release, sort_keys=True, separators=(",", ":"), allow_nan=False)


def parts_of(release: Mapping[str, Any]) -> int:
    """In how many parts the records of a release are drawn, of which each step samples one."""
    sampling = release.get("sampling")
    parts = sampling.get("parts", 1) if isinstance(sampling, Mapping) else 1
    return parts if type(parts) is int and parts >= 1 else 1


def seed_mark(run: str) -> str | None:
    """What the seed of a run is known by, from the run's id; None without a seed.

    The id of a seeded run is two digests, the seed's and one of all of it.
    """
    found = _SEEDED.fullmatch(run)
    return None if found is None else found[1]


def encode(fields: Mapping[str, Any], end: Position) -> tuple[bytes, Position]:
    """Returns the line that follows `end`, with its newline, and the position after it."""
    text = json.dumps({"seq": end.count, **fields}, separators=(",", ":"), allow_nan=False)
    body = text[:-1].encode()
    digest = _digest(end.hash, body)
    return body + f',"hash":"{digest}"}}\n'.encode(), Position(end.count + 1, digest)


def decode(line: bytes, number: int, previous: str) -> dict[str, Any]:
    """Reads line `number`, which follows one with the hash `previous`, without its newline.

    Raises:
        ValueError: saying what is wrong.
    """
    body, tail = line[:-_HASH_LENGTH], line[-_HASH_LENGTH:]
    if not _HASH.fullmatch(tail):
        raise ValueError("it is not complete (it does not end in a checksum)")
    fields = _json(body)
    if fields.get("seq") != number:
        raise ValueError(f"it is not numbered {number}; lines are missing, repeated or changed")
    if tail[9:25].decode() != _digest(previous, body):
        raise ValueError("its checksum does not fit: this line was changed, or one before it")
    return fields


def parse(data: bytes, name: str, book: Book | None = None) -> tuple[Book, int | None]:
    """Reads a whole ledger, or the lines that were written after those of a book.

    Args:
        data: the file's bytes, from the first line that is not in the book.
        name: the file's name, for messages.
        book: what the lines before say, which is added to; by default there are none.

    Returns:
        What the lines say, and where a torn last line starts in `data` (None if there is none). A
        torn line is not in the book: the caller decides how to charge it, with `Book.worst`. A
        file that ends within line 1 has an empty book: nothing can have been charged to it yet.

    Raises:
        LedgerDamaged: at the first wrong line, unless it is the last one.
    """
    book = Book() if book is None else book
    known = len(book.hashes)
    if not known and b"\n" not in data:
        start = data[: len(_HEADER_START)]
        if start == _HEADER_START[: len(start)]:
            return book, 0 if data else None
        raise LedgerDamaged(name, 1, "it is not the beginning of a plumbline ledger")
    lines = data.split(b"\n")
    rest = lines.pop()
    if rest:
        lines.append(rest)
    last = known + len(lines) - 1
    offset = 0
    previous = book.position.hash
    for number, line in enumerate(lines, known):
        charge = _charge(line, number, previous)
        try:
            if number == 0 and not line.startswith(_HEADER_START[:24]):
                raise ValueError("it is not the beginning of a plumbline ledger")
            fields = {} if charge else decode(line, number, previous)
            if rest and number == last:
                raise ValueError("it has no end")
        except ValueError as error:
            run_together = (match := _HASH.search(line)) and match.end() + 1 < len(line)
            if number == last and number > 0 and not run_together:
                return book, offset
            raise LedgerDamaged(name, number + 1, str(error)) from None
        try:
            if charge:
                book.charge(*charge)
            else:
                check_fields(fields)
                book.apply(fields)
        except (ValueError, RecursionError) as error:
            raise LedgerDamaged(name, number + 1, f"{error}, though its checksum fits") from None
        previous = line[-18:-2].decode()
        book.hashes.append(previous)
        offset += len(line) + 1
    return book, None


def _charge(
    line: bytes, number: int, previous: str
) -> tuple[Charge, tuple[int, str] | None] | None:
    """The arguments of `Book.charge`, if the line is exactly as `encode` writes it; else None."""
    found = _CHARGE.fullmatch(line)
    if found is None:
        return None
    seq, of, step, count, position, noise, journal, digest = found.groups()
    if int(seq) != number or digest.decode() != _digest(previous, line[:-_HASH_LENGTH]):
        return None
    charge = Charge(int(of), int(step), int(count), None if journal is None else journal.decode())
    return charge, None if position is None else (int(position), noise.decode())


def _json(body: bytes) -> dict[str, Any]:
    """The fields of any line."""
    try:
        fields = json.loads(body.decode() + "}")
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    return fields if isinstance(fields, dict) else {}


def check_fields(fields: Mapping[str, Any]) -> None:
    """Refuses a line that does not have exactly the fields of its kind.

    A field that is missing, unknown or of another type must not be guessed when budgets depend on
    it.

    Raises:
        ValueError: saying what is wrong.
    """
    kind = fields.get("kind")
    if kind == "ledger" and fields.get("format") != FORMAT:
        raise ValueError(f"its format is {fields.get('format')!r}, and {FORMAT} is what we read")
    wanted = _FIELDS.get(kind) if isinstance(kind, str) else None
    if wanted is None:
        raise ValueError(f"a line of kind {kind!r} does not belong here")
    own = set(fields) - {"seq", "kind"}
    if not wanted.keys() - _OPTIONAL <= own <= wanted.keys():
        raise ValueError(f"it has the fields {sorted(own)}, where {sorted(wanted)} are expected")
    for name in own:
        if not wanted[name](fields[name]):
            raise ValueError(f"its {name} is {fields[name]!r}")


def _digest(previous: str, body: bytes) -> str:
    return hashlib.sha256(previous.encode() + body).hexdigest()[:16]


def _count(value: Any) -> int:
    if not (_is_whole(value) and 1 <= value <= _MOST):
        raise ValueError(f"it counts {value!r} steps")
    return int(value)


def _limit(value: Any) -> Limit | None:
    return None if value is None else (float(value[0]), float(value[1]))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _is_limit(value: Any) -> bool:
    match value:
        case None:
            return True
        case [int() | float() as epsilon, int() | float() as delta]:
            return 0 < epsilon < 1e308 and 0 < delta < 1
    return False


def _is_noise(value: Any) -> bool:
    return isinstance(value, list) and [type(one) for one in value] == [int, str]


def _is_charged(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(pair, list) and [type(one) for one in pair] == [int, int] for pair in value
    )


_OPTIONAL = {"noise", "journal"}
_FIELDS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "ledger": {"format": _is_whole, "id": _is_text, "limit": _is_limit},
    "limit": {"limit": _is_limit},
    "released_limit": {"limit": _is_limit},
    "about": {"run": _is_text, "about": lambda value: isinstance(value, dict)},
    "released": {"run": _is_text},
    "release": {
        "session": _is_text,
        "pid": _is_whole,
        "run": _is_text,
        "most": _is_whole,
        "release": lambda value: isinstance(value, dict),
    },
    "charge": {
        "of": _is_whole,
        "step": _is_whole,
        "count": _is_whole,
        "noise": _is_noise,
        "journal": _is_text,
    },
    "refund": {"of": _is_whole, "count": _is_whole},
    "saved": {"run": _is_text, "step": _is_whole, "token": _is_text},
    "torn": {"charged": _is_charged, "pad": _is_text},
}
