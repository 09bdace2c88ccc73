"""A damaged ledger is refused with its line, or read and never as less than was charged."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from plumbline.mechanism import ledger_format as lines
from plumbline.mechanism.ledger import Ledger, LedgerError
from plumbline.mechanism.release import GaussianQuery, PoissonSampling, StepRelease
from tests.fuzzing import VALUES, altered, amounts, damaged, fuzz


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A ledger with every kind of line but a torn one."""
    path = tmp_path_factory.mktemp("ledger") / "ledger"
    query = GaussianQuery(name="gradient", sensitivity=1.0, noise_multiplier=2.0)
    release = StepRelease(sampling=PoissonSampling(rate=0.1), queries=(query,)).to_dict()
    with Ledger.open(path, reserve=3) as ledger:
        ledger.charge(release, run="one", step=0)
        ledger.charge(release, run="two", step=0, noise_position=(0, "0" * 32))
    with Ledger.open(path, limit=(50.0, 1e-5)) as ledger:
        for step in range(3):
            ledger.charge(release, run="one", step=step + 1)
        ledger.note_checkpoint("one", step=4, token="0" * 16)
    return path.read_bytes()


@pytest.fixture(autouse=True)
def _not_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of ledgers are opened, none of which has to outlast a crash."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def charged(ledger: Ledger) -> int:
    return sum(count for _, count in ledger.entries())


def intact(data: bytes, valid: bytes) -> int:
    """How many steps the lines charge that are as they were, up to the first that is not."""
    whole = b""
    for new, old in zip(data.splitlines(True), valid.splitlines(True), strict=False):
        if new != old:
            break
        whole += old
    return sum(count for _, count in lines.parse(whole, "intact")[0].entries())


@amounts
def test_damaged_bytes(amount: int, valid: bytes, tmp_path: Path) -> None:
    path = tmp_path / "ledger"

    def check(data: bytes) -> None:
        path.write_bytes(data)
        try:
            read = Ledger.read(path)
        except LedgerError as error:
            assert str(path) in str(error)  # noqa: PT017
            with pytest.raises(LedgerError, match="ledger"):
                Ledger.open(path)
            assert path.read_bytes() == data  # what cannot be read is not touched
            return
        assert charged(read) >= intact(data, valid)
        with Ledger.open(path) as opened:
            assert charged(opened) == charged(read)
        assert charged(Ledger.read(path)) == charged(read)

    fuzz(damaged([valid]), check, amount)


@amounts
def test_lines_whose_checksums_fit(amount: int, valid: bytes, tmp_path: Path) -> None:
    """Whoever writes such lines knows the format: nothing in them may be guessed at."""
    path = tmp_path / "ledger"
    fields = [json.loads(line) for line in valid.splitlines()]

    def check(changed: list[Any]) -> None:
        data, end = b"", lines.Position(0, lines.GENESIS)
        for line in changed:
            plain = dict(line) if isinstance(line, dict) else {"kind": line}
            own = {key: part for key, part in plain.items() if key not in ("seq", "hash")}
            try:
                text, end = lines.encode(own, end)
            except (TypeError, ValueError):  # not JSON
                return
            data += text
        path.write_bytes(data)
        try:
            read = Ledger.read(path)
            assert charged(read) >= 0
            read.noise_positions("two")
            read.epsilon(1e-5, accountant="rdp")
        except LedgerError as error:
            assert str(path) in str(error)  # noqa: PT017

    fuzz(altered(fields, (*VALUES, None)), check, amount)
