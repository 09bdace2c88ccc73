from pathlib import Path

from tests.cli.calling import Called


def test_what_is_there(call: Called, tmp_path: Path) -> None:
    assert call("data", "list", "--json") == 0
    assert call.json["folder"] == str(tmp_path / "data")
    assert call.json["data"]["mnist"] == {"files": 4, "there": 0}
    assert call("data", "list") == 0
    assert "bundled" in call.out


def test_what_is_bundled_needs_no_download(call: Called) -> None:
    assert call("data", "get", "adult") == 0
    assert "nothing to download" in call.out
    assert call("data", "get", "adult", "--json") == 0
    assert call.json == {"data": "adult", "files": []}
