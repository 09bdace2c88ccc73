import gzip
import hashlib
from pathlib import Path

import pytest

from plumbline.data.files import DataError, File, cache_folder, check, data_folder, locate, reading

CONTENT = b"some numbers\n" * 1000


@pytest.fixture
def file(tmp_path: Path) -> File:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.txt").write_bytes(CONTENT)
    return File("set/a.txt", hashlib.md5(CONTENT).hexdigest(), len(CONTENT), "https://a.org/a.txt")


def test_the_folder_is_the_argument_or_the_variable_or_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setenv("PLUMBLINE_DATA", str(tmp_path / "set"))
    assert data_folder(tmp_path) == tmp_path
    assert data_folder() == tmp_path / "set"
    monkeypatch.delenv("PLUMBLINE_DATA")
    assert data_folder() == cache_folder() == cache


def test_complete_files_are_found(tmp_path: Path, file: File) -> None:
    assert locate("numbers", [file], tmp_path, verify=True) == [tmp_path / "set" / "a.txt"]


def test_missing_files_are_all_named_with_where_they_belong(tmp_path: Path, file: File) -> None:
    others = [File("set/b.txt"), File("set/c.tar", url="https://a.org/c.tar", unpack="set/c")]
    with pytest.raises(DataError) as raised:
        locate("numbers", [file, *others], tmp_path)
    message = str(raised.value)
    assert str(tmp_path / "set" / "a.txt") not in message
    assert str(tmp_path / "set" / "b.txt") in message
    assert "set/c.tar   (from https://a.org/c.tar)   to be unpacked into" in message
    assert "`plumbline data get numbers`" in message
    assert "PLUMBLINE_DATA" in message


def test_a_truncated_file_is_refused_with_both_sizes(tmp_path: Path, file: File) -> None:
    path = tmp_path / file.path
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(DataError, match=r"a\.txt has 12,999 bytes where 13,000 are expected"):
        locate("numbers", [file], tmp_path)


def test_a_changed_file_is_refused_with_both_checksums(tmp_path: Path, file: File) -> None:
    path = tmp_path / file.path
    path.write_bytes(b"S" + CONTENT[1:])
    check(file, path, checksum=False)
    found = hashlib.md5(path.read_bytes()).hexdigest()
    with pytest.raises(DataError, match=rf"a\.txt has the md5 checksum {found} where {file.md5}"):
        locate("numbers", [file], tmp_path, verify=True)


@pytest.mark.parametrize("damage", ["truncated", "one byte changed", "not compressed at all"])
def test_a_file_that_breaks_its_reader_is_named(tmp_path: Path, damage: str) -> None:
    whole = gzip.compress(bytes(range(256)) * 64)
    path = tmp_path / "a.gz"
    middle = len(whole) // 2
    path.write_bytes(
        {
            "truncated": whole[:-9],
            "one byte changed": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "not compressed at all": CONTENT,
        }[damage]
    )
    found = hashlib.md5(path.read_bytes()).hexdigest()
    file = File("a.gz", md5="0" * 32, size=len(whole))
    with (
        pytest.raises(DataError, match=rf"a\.gz cannot .* \(expected .*{found} \(published: 000"),
        reading(file, path),
        gzip.open(path) as stream,
    ):
        stream.read()


def test_a_folder_that_may_not_be_read_is_no_damaged_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), reading(File("a"), tmp_path / "a"):
        (tmp_path / "a").read_bytes()
