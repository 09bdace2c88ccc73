import io
import os
import tarfile
from pathlib import Path

import pytest

from plumbline.data.archives import unpack
from plumbline.data.files import DataError

GOOD = {"set/a.txt": b"a" * 3000, "set/deep/b.txt": b"b", "c.txt": b""}


def tar(path: Path, members: dict[str, bytes], *others: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        folder = tarfile.TarInfo("set")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = 0o7777  # nothing of it is to be kept
            archive.addfile(member, io.BytesIO(content))
        for member in others:
            archive.addfile(member)
    return path


def everything(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_files_and_folders_come_out(tmp_path: Path) -> None:
    written = unpack(tar(tmp_path / "archive", GOOD), tmp_path / "out")
    assert everything(tmp_path / "out") == GOOD
    assert {path.relative_to(tmp_path / "out").as_posix() for path in written} == set(GOOD)
    assert not (tmp_path / "out" / "set" / "a.txt").stat().st_mode & 0o7111


def test_what_was_there_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "set").mkdir(parents=True)
    (out / "set" / "a.txt").write_text("old")
    unpack(tar(tmp_path / "archive", GOOD), out)
    assert everything(out) == GOOD


@pytest.mark.parametrize(
    "name",
    [
        "/etc/evil",
        "../evil",
        "set/../../evil",
        "set/..",
        "..\\evil",
        "C:\\evil",
        "C:evil",
        "\\\\host\\evil",
    ],
)
def test_a_path_that_leaves_the_folder_is_refused_before_anything_is_written(
    tmp_path: Path, name: str
) -> None:
    archive = tar(tmp_path / "archive", {**GOOD, name: b"evil"})
    with pytest.raises(DataError, match=r"was not unpacked: its member .* leaves the folder"):
        unpack(archive, tmp_path / "out")
    assert set(everything(tmp_path)) == {"archive"}


def link(kind: bytes, name: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    "member",
    [
        link(tarfile.SYMTYPE, "set/link", "/etc"),
        link(tarfile.SYMTYPE, "set/link", "a.txt"),
        link(tarfile.LNKTYPE, "set/link", "../../evil"),
        link(tarfile.CHRTYPE, "set/device", ""),
        link(tarfile.FIFOTYPE, "set/pipe", ""),
    ],
    ids=["link out", "link inside", "hard link", "device", "pipe"],
)
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    archive = tar(tmp_path / "archive", GOOD, member)
    with pytest.raises(DataError, match=rf"its member '{member.name}' is a (link|device)"):
        unpack(archive, tmp_path / "out")
    assert set(everything(tmp_path)) == {"archive"}


@pytest.mark.parametrize("name", ["", "."])
def test_a_file_without_a_name_is_refused(tmp_path: Path, name: str) -> None:
    archive = tar(tmp_path / "some.tar", {**GOOD, name: b"1"})
    with pytest.raises(DataError, match=r"some\.tar was not unpacked: its member .* has no name"):
        unpack(archive, tmp_path / "out")
    assert set(everything(tmp_path)) == {"some.tar"}


def test_a_link_that_is_already_in_the_folder_is_not_followed_out(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "out" / "set")
    with pytest.raises(DataError, match="through a link"):
        unpack(tar(tmp_path / "archive", GOOD), tmp_path / "out")
    assert everything(tmp_path / "elsewhere") == {}


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    archive = tar(tmp_path / "archive", {"a.bin": os.urandom(20_000)})
    archive.write_bytes(archive.read_bytes()[:9_000])
    with pytest.raises(DataError, match=r"archive cannot be read.* 9,000 bytes"):
        unpack(archive, tmp_path / "out")
    assert "a.bin" not in everything(tmp_path)
