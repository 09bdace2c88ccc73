"""The source of randomness: ChaCha20 streams addressed by purpose and position.

Every random draw of a private step (which records take part, what noise is added) comes from a
`Stream`, the ChaCha20 key stream (RFC 8439, from the `cryptography` package) under a key derived
for one purpose and one position, for example `source.stream("sampling", step)`. Streams of
different purposes or positions are independent, so the order, the thread and the pieces in which
they are read do not matter.

Guarantees. A `SecureSource` takes its key from the operating system's entropy, keeps it in memory
only, offers no way to read, copy or store it, and takes a new key in a forked child, so that parent
and child never share noise. A `SeededSource` is a pure function of its seed, the same on every
machine; whoever knows the seed can recompute every draw, and `describe()` says so.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import sys
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
from numpy.typing import NDArray

__all__ = ["RandomSource", "SecureSource", "SeededSource", "Stream", "process_identity"]

_KEY_BYTES = 32
# Encrypting zeros yields the key stream itself. So many that a block of noise takes one call, for
# which a thread waits once: in pieces of 64 KB, 1.9 million values took two fifths longer.
_ZEROS = np.zeros((1 << 19) + _KEY_BYTES, dtype=np.uint8)


class Stream:
    """A sequence of independent uniform bytes, read forwards; obtained from a source.

    If a stream of a secure source is carried into a forked child, it continues there under a new
    key: the child never repeats the parent's bytes.
    """

    __slots__ = ("_cipher", "_owner", "_secure")

    def __init__(self, key: bytes, *, secure: bool) -> None:
        """Starts the stream of `key`; use `RandomSource.stream` instead."""
        self._secure = secure
        self._owner = process_identity()
        self._cipher = _cipher(key)

    def bytes(self, n: int) -> bytes:
        """Returns the next `n` uniform bytes."""
        return self._fill(np.empty(n, dtype=np.uint8)).tobytes()

    def uint64(self, n: int) -> NDArray[np.uint64]:
        """Returns the next `n` uniform 64-bit integers, `[n]`; each uses eight bytes."""
        return self.fill(np.empty(n, dtype=np.uint64))

    def fill(self, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Overwrites `words`, `[n]` in one piece, as `uint64` would return them."""
        self._fill(words.view(np.uint8))
        if sys.byteorder == "big":
            words.byteswap(inplace=True)
        return words

    def _fill(self, target: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if self._secure and self._owner != process_identity():
            self._owner = process_identity()
            self._cipher = _cipher(os.urandom(_KEY_BYTES))
        view = target.data
        for start in range(0, len(target), len(_ZEROS)):
            piece = view[start : start + len(_ZEROS)]
            self._cipher.update_into(_ZEROS[: len(piece)].data, piece)
        return target

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a random stream cannot be copied or pickled: the copy would repeat its bytes. "
            "Ask the source for a stream where you need one."
        )


class RandomSource(ABC):
    """A family of independent streams, one for each purpose and position."""

    __slots__ = ()
    secure: ClassVar[bool]

    def stream(self, domain: str, *position: int) -> Stream:
        """Returns the stream of `(domain, *position)`, the same one at every call.

        Args:
            domain: what the stream is for, such as `"sampling"`.
            *position: integers that say which one, such as the step; below 2^63 in size.
        """
        return Stream(self._derive(domain, position), secure=self.secure)

    @abstractmethod
    def once(self, domain: str, *position: int) -> Stream:
        """Returns a stream to be used once, as noise needs.

        A secure source uses a new key for every call, so it never hands out the same noise twice,
        even for the same step. A seeded source must repeat itself: there it equals `stream`, and
        the ledger refuses a used noise position with other inputs.
        """

    @abstractmethod
    def describe(self) -> str:
        """Returns a sentence for the privacy statement."""

    @abstractmethod
    def _root(self) -> bytes:
        """Returns the key that every stream's key is derived from."""

    def _derive(self, domain: str, position: tuple[int, ...]) -> bytes:
        return hmac.digest(self._root(), _message(domain, position), "sha256")

    def __repr__(self) -> str:
        """Says what kind of source it is, and nothing about its key."""
        return f"{type(self).__name__}()"


class SecureSource(RandomSource):
    """Randomness that nobody can recompute: a fresh key from the operating system.

    The key exists only in this object's memory, for the life of the run. It cannot be pickled or
    copied; a resumed run makes a new source. In a forked child the source draws a new key.
    """

    __slots__ = ("__key", "__owner")  # and no __dict__, which would show the key
    secure = True

    def __init__(self, key: bytes | None = None) -> None:
        """Draws a new key, or takes one of 32 bytes that the processes of a run have agreed on.

        They must draw the same batches, so they share this source; each draws noise from a source
        of its own.
        """
        if key is not None and len(key) != _KEY_BYTES:
            raise ValueError(f"the key has {len(key)} bytes; it must have {_KEY_BYTES}")
        self.__key = os.urandom(_KEY_BYTES) if key is None else key
        self.__owner = process_identity()

    def once(self, domain: str, *position: int) -> Stream:
        """Returns a stream under its own key, which is never used again."""
        _message(domain, position)  # the same checks of the arguments as for a seeded source
        return Stream(os.urandom(_KEY_BYTES), secure=True)

    def describe(self) -> str:
        """Returns a sentence for the privacy statement."""
        return (
            "Sampling and noise come from ChaCha20 streams keyed with the operating system's "
            "entropy; the keys are never stored."
        )

    def _root(self) -> bytes:
        if self.__owner != process_identity():
            self.__key = os.urandom(_KEY_BYTES)
            self.__owner = process_identity()
        return self.__key

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a secure source cannot be copied, pickled or saved: its key is never stored. "
            "Create a new SecureSource() instead; a resumed run draws a new key."
        )


class SeededSource(RandomSource):
    """Randomness that can be repeated: every stream is a function of the seed and its position."""

    __slots__ = ("__key",)
    secure = False

    def __init__(self, seed: int, context: str = "") -> None:
        """Derives the source's key from `seed`, any integer, and from what it is used for.

        Sources with different contexts are independent: two runs with one seed must not share
        noise.
        """
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(
                f"seed is {seed!r} of type {type(seed).__name__}; give an integer, or use "
                "SecureSource() for a run whose noise nobody can recompute"
            )
        name = f"{seed}:{context}" if context else str(seed)
        self.__key = hashlib.sha256(b"plumbline seeded source 1:" + name.encode()).digest()

    def once(self, domain: str, *position: int) -> Stream:
        """Returns `stream(domain, *position)`: a seeded source repeats itself by design."""
        return self.stream(domain, *position)

    def describe(self) -> str:
        """Returns a sentence for the privacy statement."""
        return (
            "Sampling and noise come from ChaCha20 streams derived from a seed, so that the run "
            "can be repeated; the guarantee does not hold against anyone who knows or guesses "
            "the seed."
        )

    def _root(self) -> bytes:
        return self.__key


_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def process_identity() -> tuple[int, int]:
    """Identifies this process: it differs in a forked child, even one with a recycled id."""
    # The count catches a child with a former process's id; the id catches forks made in C.
    return os.getpid(), _forks


def _message(domain: str, position: tuple[int, ...]) -> bytes:
    """What a stream is for, in bytes."""
    name = domain.encode()
    # Lengths first, so that different (domain, position) pairs never give the same message.
    message = len(name).to_bytes(4, "big") + name
    for number in position:
        message += int(number).to_bytes(8, "big", signed=True)
    return message


def _cipher(key: bytes) -> CipherContext:
    # The counter starts at zero, and the nonce is zero: no key is ever used for two streams.
    cipher: Cipher[Any] = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None)
    return cipher.encryptor()
