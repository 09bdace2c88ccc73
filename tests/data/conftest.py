"""What the tests of data sets share: real files from PLUMBLINE_DATA, or a skip that names them."""

from collections.abc import Callable
from pathlib import Path

import pytest

Require = Callable[..., Path]


@pytest.fixture(scope="session")
def require(data_folder: Path) -> Require:
    """``require("mnist/train-images-idx3-ubyte.gz", ...)``: the data folder, which has these."""

    def all_there(*paths: str) -> Path:
        missing = [path for path in paths if not (data_folder / path).is_file()]
        if missing:
            pytest.skip(f"not in the data folder: {', '.join(missing)}")
        return data_folder

    return all_there


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own: nothing is read from or left in the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "plumbline"
