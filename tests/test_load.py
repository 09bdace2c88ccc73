"""Large tables and long ledgers: what is held does not grow with the text of a table."""

import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from benchmarks.load import BYTES_MARK, FEATURES, RECORDS, train, write_ledger, write_table
from plumbline.data import table as read_table
from plumbline.data import table_files
from plumbline.mechanism.ledger import Ledger


def peak_beside_the_records(path: Path, records: int, features: int) -> int:
    """The most bytes that Python and numpy held while a table was read; torch's are not seen."""
    write_table(path, records, features)
    tracemalloc.start()
    try:
        splits = read_table(path, target="income", from_data=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(splits.train) + len(splits.test) == records
    assert splits.train.x.shape[1] == 2 * features  # each with its flag
    return peak


def test_a_table_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "CELLS", 2000)
    read_table(write_table(tmp_path / "warm.csv", 100, 10), target="income", from_data=True)
    few, many = (peak_beside_the_records(tmp_path / "t.csv", n, 10) for n in (1000, 8000))
    # Seven thousand rows more are 77,000 cells, of 50 bytes and more each as text.
    assert many - few < 7000 * 11 * 50 / 8


def test_a_ledger_of_many_steps(tmp_path: Path) -> None:
    ledger = Ledger.read(write_ledger(tmp_path / "ledger", 2000))
    assert ledger.charged("long") == 2000
    assert len(ledger.noise_positions("long")) == 2000
    assert ledger.position.count == 2002


@pytest.mark.slow
def test_a_million_records_in_bounded_memory(tmp_path: Path) -> None:
    found = train(write_table(tmp_path / "t.csv", RECORDS, FEATURES), tmp_path / "run", 10_000, 0.2)
    assert found["peak bytes"] < BYTES_MARK
    assert found["steps"] == 16


@pytest.mark.slow
def test_the_command_prints_the_figures() -> None:
    command = [sys.executable, "-m", "benchmarks.load", "--records", "2000", "--features", "5"]
    command += ["--batch", "400", "--steps", "500"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "peak memory" in done.stdout
    assert "a ledger of 500 steps opened in" in done.stdout
