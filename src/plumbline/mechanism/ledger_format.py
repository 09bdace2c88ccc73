r"""The text of a ledger: its lines, their checksums, and what they add up to.

A ledger is a text file with one JSON object to a line. Every line carries its number (`seq`, from
0) and a `hash`: the first 16 hex digits of the SHA-256 of the previous line's hash and this line's
text before `,"hash"`. So a line that is changed, lost, repeated or moved breaks the chain there.

| kind | says | fields |
| --- | --- | --- |
| `ledger` | line 1: this is a ledger | `format`, `id`, `limit` ([epsilon, delta] or null) |
| `limit` | a data-set budget, set later | `limit` |
| `release` | what steps of `run` now release | `session`, `pid`, `run`, `most`, `release` |
| `charge` | steps from `step` on are charged | `of`, `step`, `count`, and `noise` if seeded |
| `refund` | steps charged ahead and not made | `of`, `count` |
| `torn` | the last line was damaged; charged | `charged` ([of, count] pairs), `pad` |

`of` is the number of a `release` line among the `release` lines, from 0.

Guarantee: what a charge costs is on the disk *before* the charge, in its `release` line together
with `most`, the largest count a single line may charge to it. So when the last line is unreadable
(torn by a crash, or damaged later) its cost is still bounded: `most` steps of the release that each
run of the last session had declared. The checksum finds accidents, not forgery: whoever can write
the file can write another one.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FORMAT = 1
GENESIS = "0" * 16
_HEADER_START = f'{{"seq":0,"kind":"ledger","format":{FORMAT},"id":"'.encode()
_HASH = re.compile(rb',"hash":"[0-9a-f]{16}"\}')
_HASH_LENGTH = len(',"hash":""}') + 16

Limit = tuple[float, float]
Entries = list[tuple[dict[str, Any], int]]


class LedgerError(RuntimeError):
    """The ledger cannot do what was asked; nothing was released on its account."""


class LedgerDamaged(LedgerError):
    """A ledger's file is not what was written.

    Attributes:
        line: the first line that is wrong, counted from 1.
    """

    def __init__(self, name: str, line: int, reason: str) -> None:
        super().__init__(
            f"ledger {name}, line {line}: {reason}. The ledger is refused, because what was spent "
            "can no longer be known from it; restore the file from a copy that is intact"
        )
        self.line = line


class NoiseReuse(LedgerError):
    """Noise that was already used would be added to something else."""


@dataclass(frozen=True)
class Position:
    """How far a ledger has been written: its number of lines, and the last one's hash."""

    count: int
    hash: str


@dataclass
class Declaration:
    """A `release` line, and the steps charged to it."""

    run: str
    key: str
    most: int
    charged: int = 0


@dataclass
class Book:
    """What the lines of a ledger say, as they are read or written one by one."""

    hashes: list[str] = field(default_factory=list)
    declarations: list[Declaration] = field(default_factory=list)
    current: dict[str, int] = field(default_factory=dict)  # run -> declaration, this session's
    session: str = ""
    pid: int = 0
    noise: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)
    limit: Limit | None = None

    @property
    def position(self) -> Position:
        """The end of the ledger."""
        return Position(len(self.hashes), self.hashes[-1] if self.hashes else GENESIS)

    def entries(self, run: str | None = None, plus: tuple[str, int] | None = None) -> Entries:
        """What was charged, equal releases together; `plus` is a further (key, count)."""
        counts: dict[str, int] = {}
        for declaration in self.declarations:
            if run in (None, declaration.run):
                counts[declaration.key] = counts.get(declaration.key, 0) + declaration.charged
        if plus is not None:
            counts[plus[0]] = counts.get(plus[0], 0) + plus[1]
        return [(json.loads(key), count) for key, count in counts.items() if count]

    def worst(self) -> list[list[int]]:
        """What an unreadable last line is charged as: [declaration, count] pairs."""
        return [[of, self.declarations[of].most] for of in self.current.values()]

    def apply(self, line: Mapping[str, Any]) -> None:
        """Takes in a line; raises ValueError or KeyError if it makes no sense here."""
        match line["kind"]:
            case "ledger" if line["seq"] == 0 and line["format"] == FORMAT:
                self.limit = _limit(line["limit"])
            case "ledger" if line["seq"] == 0:
                raise ValueError(f"its format is {line['format']}, and {FORMAT} is what we read")
            case "limit":
                self.limit = _limit(line["limit"])
            case "release":
                if line["session"] != self.session:
                    self.current.clear()
                self.session, self.pid = line["session"], line["pid"]
                self.current[line["run"]] = len(self.declarations)
                key = canonical(line["release"])
                self.declarations.append(Declaration(line["run"], key, _count(line["most"])))
            case "charge":
                declaration = self._declaration(line["of"])
                if _count(line["count"]) > declaration.most:
                    raise ValueError("it charges more steps than its release line allows")
                declaration.charged += line["count"]
                if "noise" in line:
                    position, digest = line["noise"]
                    self.noise[declaration.run, position] = digest, declaration.key
            case "refund":
                declaration = self._declaration(line["of"])
                if _count(line["count"]) >= declaration.charged:
                    raise ValueError("it gives back more steps than were charged ahead")
                declaration.charged -= line["count"]
            case "torn":
                for of, count in line["charged"]:
                    self._declaration(of).charged += _count(count)
            case kind:
                raise ValueError(f"a line of kind {kind!r} does not belong here")

    def _declaration(self, of: Any) -> Declaration:
        if not isinstance(of, int) or not 0 <= of < len(self.declarations):
            raise ValueError(f"it refers to release line {of!r}, which does not exist")
        return self.declarations[of]


def canonical(release: Mapping[str, Any]) -> str:
    """The one JSON text of a release; raises ValueError or TypeError if it is not plain JSON."""
    return json.dumps(release, sort_keys=True, separators=(",", ":"), allow_nan=False)


def encode(fields: Mapping[str, Any], end: Position) -> tuple[bytes, Position]:
    """Returns the line that follows `end`, with its newline, and the position after it."""
    text = json.dumps({"seq": end.count, **fields}, separators=(",", ":"), allow_nan=False)
    body = text[:-1].encode()
    digest = _digest(end.hash, body)
    return body + f',"hash":"{digest}"}}\n'.encode(), Position(end.count + 1, digest)


def decode(line: bytes, number: int, previous: str) -> dict[str, Any]:
    """Reads line `number`, which follows one with the hash `previous`, without its newline.

    Raises:
        ValueError: with what is wrong.
    """
    body, tail = line[:-_HASH_LENGTH], line[-_HASH_LENGTH:]
    if not _HASH.fullmatch(tail):
        raise ValueError("it is not complete (it does not end in a checksum)")
    try:
        fields = json.loads(body.decode() + "}")
    except ValueError:
        raise ValueError("it is not JSON") from None
    if not isinstance(fields, dict) or fields.get("seq") != number:
        raise ValueError(f"it is not numbered {number}; lines are missing, repeated or changed")
    if tail[9:25].decode() != _digest(previous, body):
        raise ValueError("its checksum does not fit: this line was changed, or one before it")
    return fields


def parse(data: bytes, name: str) -> tuple[Book, int | None]:
    """Reads a whole ledger.

    Args:
        data: the file's bytes.
        name: the file's name, for messages.

    Returns:
        What its lines say, and where a torn last line starts in `data` (None if there is none). A
        torn line is not in the book: whoever asked decides how to charge it, with `Book.worst`. A
        file that ends within line 1 has an empty book: nothing can have been charged to it yet.

    Raises:
        LedgerDamaged: at the first line that is wrong, if it is not the last one.
    """
    book = Book()
    if b"\n" not in data:
        start = data[: len(_HEADER_START)]
        if start == _HEADER_START[: len(start)]:
            return book, 0 if data else None
        raise LedgerDamaged(name, 1, "it is not the beginning of a plumbline ledger")
    lines = data.split(b"\n")
    rest = lines.pop()
    last = len(lines) if rest else len(lines) - 1
    if rest:
        lines.append(rest)
    offset = 0
    previous = GENESIS
    for number, line in enumerate(lines):
        try:
            if number == 0 and not line.startswith(_HEADER_START[:24]):
                raise ValueError("it is not the beginning of a plumbline ledger")
            fields = decode(line, number, previous)
            if rest and number == last:
                raise ValueError("it has no end")
        except ValueError as error:
            run_together = (match := _HASH.search(line)) and match.end() + 1 < len(line)
            if number == last and number > 0 and not run_together:
                return book, offset
            raise LedgerDamaged(name, number + 1, str(error)) from None
        try:
            book.apply(fields)
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerDamaged(name, number + 1, f"{error}, though its checksum fits") from None
        previous = line[-18:-2].decode()
        book.hashes.append(previous)
        offset += len(line) + 1
    return book, None


def _digest(previous: str, body: bytes) -> str:
    return hashlib.sha256(previous.encode() + body).hexdigest()[:16]


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"it counts {value!r} steps")
    return value


def _limit(value: Any) -> Limit | None:
    return None if value is None else (float(value[0]), float(value[1]))
