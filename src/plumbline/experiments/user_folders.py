"""The user's own folders: the ledgers of tables, and the key by which tables are recognised.

State lies where the platform keeps it (``~/.local/state/plumbline`` on Linux) or where the
environment variable ``PLUMBLINE_STATE`` says; the key lies in the user's configuration
(``~/.config/plumbline``), or where ``PLUMBLINE_CONFIG`` says.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from plumbline.experiments.files import FileError

KEY = "row-key"
_KEY_BYTES = 32


def state_folder() -> Path:
    """Where the ledgers of tables are kept."""
    return _chosen("PLUMBLINE_STATE", "state")


def config_folder() -> Path:
    """Where the key is kept."""
    return _chosen("PLUMBLINE_CONFIG", "config")


def row_key() -> bytes:
    """The user's key of row digests; made when it is first needed, for the user alone to read.

    Raises:
        FileError: If others can read it, or it is damaged.
        OSError: If it can be neither read nor made.
    """
    path = config_folder() / KEY
    if not path.exists():
        _make_key(path)
    if path.stat().st_mode & 0o077:
        raise FileError(
            f"{path} can be read by others, and is the key to digests of private rows. Take that "
            f"away: chmod 600 {path}"
        )
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii"))
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise FileError(
            f"{path} is damaged: it is no key of {_KEY_BYTES} bytes. Restore it from a copy; or "
            "delete it, and tables that were used before are not recognised any more."
        )
    return key


def _make_key(path: Path) -> None:
    """Makes a key that is whole or not there; of two processes that do, the first one's stays."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = path.with_name(f"{KEY}.{secrets.token_hex(8)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as stream:
            stream.write(secrets.token_hex(_KEY_BYTES))
            stream.flush()
            os.fsync(descriptor)
        os.link(beside, path)
    except FileExistsError:
        pass
    finally:
        beside.unlink()


def _chosen(variable: str, kind: str) -> Path:
    if chosen := os.environ.get(variable):
        return Path(chosen)
    import platformdirs  # rarely needed

    return Path(getattr(platformdirs, f"user_{kind}_dir")("plumbline", appauthor=False))
