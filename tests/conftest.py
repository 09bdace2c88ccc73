"""What all tests share: the device, the data folder, one thread per worker, and fixed seeds."""

import atexit
import gc
import itertools
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Before any import of a Hugging Face library: a test that reaches for the network fails at once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

from plumbline.registry import Registry
from tests import covering

# A shell without job control starts background jobs with Ctrl-C ignored, and their children
# inherit that. Tests that send the signal, to this process or a child, need the usual handler.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Workers share two cores; one thread each also fixes the order of sums.
torch.set_num_threads(1)

settings.register_profile(
    "plumbline",
    deadline=None,
    derandomize=True,
    max_examples=25,
    # The one health check decided by a clock.
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("plumbline")

# What tests write is in memory, where the system has a folder for that: runs sync every charge.
_MEMORY, _ROOM = "/dev/shm", 4 * 2**30
if os.path.isdir(_MEMORY) and "TMPDIR" not in os.environ:
    _flags = os.statvfs(_MEMORY).f_flag
    if shutil.disk_usage(_MEMORY).free > _ROOM and not _flags & (os.ST_RDONLY | os.ST_NOEXEC):
        os.environ["TMPDIR"] = tempfile.tempdir = _MEMORY

# No test writes to the home of whoever runs it: neither here nor in processes that it starts.
_HOME, _OWNER = tempfile.mkdtemp(prefix="plumbline-tests-"), os.getpid()


@atexit.register
def _remove_home() -> None:
    if os.getpid() == _OWNER:  # not in a fork
        shutil.rmtree(_HOME, ignore_errors=True)


for _name in ("STATE", "CONFIG"):
    os.environ[f"PLUMBLINE_{_name}"] = os.path.join(_HOME, _name.lower())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collects tests without the collector of garbage: what is imported meanwhile stays."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before slow tests are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    covering.mark_slow(items)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device every test runs on: PLUMBLINE_TEST_DEVICE, or the CPU."""
    return torch.device(os.environ.get("PLUMBLINE_TEST_DEVICE", "cpu"))


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of data sets, PLUMBLINE_DATA; a test that asks for it is skipped when unset."""
    value = os.environ.get("PLUMBLINE_DATA")
    if not value:
        pytest.skip("PLUMBLINE_DATA is not set: no data folder")
    folder = Path(value)
    if not folder.is_dir():
        pytest.fail(f"PLUMBLINE_DATA={value} is not a folder")
    return folder


@pytest.fixture(autouse=True)
def _seed() -> None:
    """The global generator starts each test in the same state, whichever worker runs it.

    The generator's own method: without a GPU, ``torch.manual_seed`` formats three stack traces.
    """
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)


_states = itertools.count()


def _own_state() -> Iterator[None]:
    """A state folder of its own: what other tests have charged is not known there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLUMBLINE_STATE", os.path.join(_HOME, f"state-{next(_states)}"))
        yield


_state_of_a_module = pytest.fixture(autouse=True, scope="module")(_own_state)
_state_of_a_test = pytest.fixture(autouse=True)(_own_state)


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes ``outside_parts`` importable, the parts that are not of the package, and forgets it.

    A part that is imported is registered for the whole process; the registries are put back.
    """
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "outside"))
    from plumbline.data.base import FILES

    ours = [module for name, module in sys.modules.items() if name.startswith("plumbline.")]
    for one in [one for module in ours for one in vars(module).values()]:
        if isinstance(one, Registry):
            monkeypatch.setattr(one, "_parts", dict(one._parts))
    monkeypatch.setattr("plumbline.data.base.FILES", dict(FILES))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "outside_parts"]:
        del sys.modules[name]
