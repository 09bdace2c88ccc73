import pickle
from pathlib import Path

import numpy as np
import pytest

from plumbline.data.files import DataError
from plumbline.data.pickles import read_pickle


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        import os

        return os.system, ("touch evil",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_arrays_numbers_and_strings_are_read(tmp_path: Path, protocol: int) -> None:
    batch = {
        "data": np.arange(24, dtype=np.uint8).reshape(2, 12),
        "labels": [3, 7],
        "filenames": ["a.png", "é.png"],
        "bytes": b"\x00\xff",
    }
    if protocol == 5:  # arrays have another form there, which no published file has
        batch.pop("data")
    (tmp_path / "batch").write_bytes(pickle.dumps(batch, protocol))
    found = read_pickle(tmp_path / "batch")
    assert found.keys() == batch.keys()
    assert all(np.array_equal(found[key], batch[key]) for key in batch)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_nothing_else_is_run(
    tmp_path: Path, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": Evil()}, protocol))
    with pytest.raises(DataError, match=rf"{path} asks for posix.system.* It was not run"):
        read_pickle(path)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "name", ["builtins.eval", "builtins.getattr", "numpy.load", "numpy.core.multiarray.fromfile"]
)
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    module, _, attribute = name.rpartition(".")
    (tmp_path / "batch").write_bytes(f"c{module}\n{attribute}\n.".encode())
    with pytest.raises(DataError, match=f"asks for {name}"):
        read_pickle(tmp_path / "batch")


@pytest.mark.parametrize("kept", [0, 10, 60])
def test_a_truncated_pickle_is_named_with_its_size(tmp_path: Path, kept: int) -> None:
    content = pickle.dumps({"data": np.zeros((2, 12), np.uint8)}, 2)
    (tmp_path / "batch").write_bytes(content[:kept])
    with pytest.raises(DataError, match=rf"batch \({kept} bytes, md5 checksum [0-9a-f]{{32}}\)"):
        read_pickle(tmp_path / "batch")


@pytest.mark.parametrize(
    ("content", "asked"),
    [
        pytest.param(b"\x80\x02]r\xff\xff\xff\x7f.", "room for 2,147,483,647 values", id="memo"),
        pytest.param(b"]p99999999999\n.", "room for 99,999,999,999 values", id="text"),
        pytest.param(
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(J\xff\xff\xff\x7ftU\x01btR.",
            "an array of shape",
            id="array",
        ),
    ],
)
def test_few_bytes_cannot_ask_for_much_memory(tmp_path: Path, content: bytes, asked: str) -> None:
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(DataError, match=f"asks for {asked}"):
        read_pickle(tmp_path / "batch")
