import hashlib
import io
import socket
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from plumbline.data import getting
from plumbline.data.base import FILES
from plumbline.data.files import DataError, File
from plumbline.data.getting import get

CONTENT = bytes(range(256)) * 2000


class Server(ThreadingHTTPServer):
    """A server of files that can break off, and that remembers what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"/a.bin": CONTENT}
        self.asked: list[str | None] = []
        self.break_after: list[int] = []  # bytes, one entry for each answer that breaks off
        self.resumes = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers["Range"]
        self.server.asked.append(wanted)
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if wanted and self.server.resumes:
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            content = content[start:]
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.server.break_after:
            self.wfile.write(content[: self.server.break_after.pop(0)])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def files(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[File]:
    """The files of the data set "numbers"; a test may put others there."""
    chosen = [File("set/a.bin", hashlib.md5(CONTENT).hexdigest(), url=f"{server.url}/a.bin")]
    monkeypatch.setitem(FILES, "numbers", chosen)  # type: ignore[arg-type]
    return chosen


@pytest.mark.usefixtures("files")
def test_a_file_is_downloaded_once(server: Server, tmp_path: Path) -> None:
    (path,) = get("numbers", tmp_path, progress=False)
    assert path == tmp_path / "set" / "a.bin"
    assert path.read_bytes() == CONTENT
    assert get("numbers", tmp_path, progress=False) == [path]
    assert server.asked == [None]
    assert [each.name for each in path.parent.iterdir()] == ["a.bin"]


@pytest.mark.usefixtures("files")
def test_the_folder_is_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUMBLINE_DATA", str(tmp_path / "chosen"))
    assert get("numbers", progress=False) == [tmp_path / "chosen" / "set" / "a.bin"]


@pytest.mark.usefixtures("files")
def test_a_progress_bar_shows_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    get("numbers", tmp_path)
    assert "a.bin" in capsys.readouterr().out


@pytest.mark.usefixtures("files")
def test_a_connection_that_breaks_is_taken_up_again(server: Server, tmp_path: Path) -> None:
    server.break_after = [200_000]
    (path,) = get("numbers", tmp_path, progress=False)
    assert path.read_bytes() == CONTENT
    assert server.asked[0] is None
    assert str(server.asked[1]).startswith("bytes=")
    assert server.asked[1] != "bytes=0-"


@pytest.mark.usefixtures("files")
def test_an_interrupted_download_goes_on_later(server: Server, tmp_path: Path) -> None:
    server.break_after = [150_000] * 3
    with pytest.raises(DataError, match="What has arrived is kept"):
        get("numbers", tmp_path, progress=False)
    part = tmp_path / "set" / "a.bin.part"
    have = part.stat().st_size
    assert 0 < have < len(CONTENT)
    assert part.read_bytes() == CONTENT[:have]
    assert not (tmp_path / "set" / "a.bin").exists()

    (path,) = get("numbers", tmp_path, progress=False)
    assert server.asked[-1] == f"bytes={have}-"
    assert path.read_bytes() == CONTENT
    assert not part.exists()


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("resumes", [True, False])
@pytest.mark.parametrize("have", [10, len(CONTENT), len(CONTENT) + 10])
def test_what_is_there_already(server: Server, tmp_path: Path, have: int, resumes: bool) -> None:
    server.resumes = resumes
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.bin.part").write_bytes((CONTENT + bytes(10))[:have])
    (path,) = get("numbers", tmp_path, progress=False)
    assert path.read_bytes() == CONTENT


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("how", ["sent", "kept in part"])
def test_a_wrong_checksum_is_refused_and_nothing_of_it_kept(
    server: Server, tmp_path: Path, how: str
) -> None:
    (tmp_path / "set").mkdir()
    if how == "sent":
        server.files["/a.bin"] = b"!" + CONTENT[1:]
    else:
        (tmp_path / "set" / "a.bin.part").write_bytes(b"of another file")
    published = hashlib.md5(CONTENT).hexdigest()
    with pytest.raises(DataError, match=rf"a\.bin has another checksum .* md5 {published}"):
        get("numbers", tmp_path, progress=False)
    assert list((tmp_path / "set").iterdir()) == []


@pytest.mark.usefixtures("files")
def test_a_file_put_there_by_hand_is_checked(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.bin").write_bytes(b"another file")
    with pytest.raises(DataError, match=r"where .* is published"):
        get("numbers", tmp_path, progress=False)


@pytest.mark.usefixtures("files")
def test_without_a_network_it_says_which_files_to_put_where(
    server: Server, tmp_path: Path, files: list[File]
) -> None:
    server.shutdown()
    server.server_close()
    files.append(File("set/b.bin", url="https://a.org/b.bin"))
    with pytest.raises(DataError) as raised:
        get("numbers", tmp_path, progress=False)
    message = str(raised.value)
    assert f"{tmp_path / 'set' / 'a.bin'}   (from {server.url}/a.bin)" in message
    assert f"{tmp_path / 'set' / 'b.bin'}   (from https://a.org/b.bin)" in message


def test_an_address_that_has_no_such_file(
    server: Server, tmp_path: Path, files: list[File]
) -> None:
    files[:] = [File("set/gone.bin", url=f"{server.url}/gone.bin")]
    with pytest.raises(DataError, match=r"gone\.bin of the data set 'numbers' could not be .*404"):
        get("numbers", tmp_path, progress=False)


def test_files_without_an_address_are_asked_for(tmp_path: Path, files: list[File]) -> None:
    files.append(File("set/by-hand.zip"))
    with pytest.raises(DataError, match=r"put them here:\n.*by-hand\.zip"):
        get("numbers", tmp_path, progress=False)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "by-hand.zip").write_bytes(b"")
    assert len(get("numbers", tmp_path, progress=False)) == 2


def test_archives_are_unpacked(server: Server, tmp_path: Path, files: list[File]) -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as archive:
        member = tarfile.TarInfo("inner/a.bin")
        member.size = len(CONTENT)
        archive.addfile(member, io.BytesIO(CONTENT))
    server.files["/all.tar.gz"] = sink.getvalue()
    digest = hashlib.md5(sink.getvalue()).hexdigest()
    files[:] = [File("set/all.tar.gz", digest, url=f"{server.url}/all.tar.gz", unpack="set")]
    get("numbers", tmp_path, progress=False)
    assert (tmp_path / "set" / "inner" / "a.bin").read_bytes() == CONTENT


def test_a_server_that_sends_other_bytes_than_asked_for(
    server: Server, tmp_path: Path, files: list[File], monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Handler.send_header

    def shifted(self: Handler, name: str, value: str) -> None:
        send(self, name, value.replace("bytes 1", "bytes 2") if name == "Content-Range" else value)

    monkeypatch.setattr(Handler, "send_header", shifted)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.bin.part").write_bytes(CONTENT[:10])
    with pytest.raises(DataError, match="from 10 on, the server sent 'bytes 20-"):
        get("numbers", tmp_path, progress=False)


def test_an_unknown_name() -> None:
    with pytest.raises(ValueError, match=r"no data set 'numbrs'\. There are "):
        get("numbrs")


def test_bundled_data_sets_have_nothing_to_get(tmp_path: Path) -> None:
    import plumbline.data.adult  # noqa: F401

    assert get("adult", tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    assert getting.FILES["adult"] == ()
