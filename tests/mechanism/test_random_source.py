import copy
import pickle

import numpy as np
import pytest

from plumbline.mechanism.random_source import SecureSource, SeededSource, Stream
from tests.mechanism.forked import in_child

# RFC 8439, appendix A.1, test vectors 1 and 2: key and nonce zero, counter 0 and 1.
BLOCK_0 = bytes.fromhex(
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
)
BLOCK_1 = bytes.fromhex(
    "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
)


def test_a_stream_is_the_chacha20_key_stream_of_rfc_8439() -> None:
    assert Stream(bytes(32), secure=False).bytes(128) == BLOCK_0 + BLOCK_1


def test_reading_in_pieces_gives_the_same_bytes() -> None:
    source = SeededSource(3)
    stream = source.stream("test")
    pieces = [stream.bytes(n) for n in (0, 1, 7, 100_000, 3)]
    assert b"".join(pieces) == source.stream("test").bytes(100_011)


def test_integers_are_little_endian_on_every_machine() -> None:
    words = Stream(bytes(32), secure=False).uint64(2)
    assert words.dtype == np.uint64
    assert words.tolist() == [int.from_bytes(BLOCK_0[i : i + 8], "little") for i in (0, 8)]


def test_a_seed_means_the_same_for_ever() -> None:
    # If this fails, every seeded run of an earlier version can no longer be repeated.
    assert SeededSource(0).stream("noise", 0).bytes(8).hex() == "74da099f4a7547e4"


def test_streams_differ_by_seed_domain_and_position() -> None:
    streams = [
        SeededSource(seed).stream(domain, *position).bytes(32)
        for seed in (0, 1, -1, 2**70)
        for domain in ("noise", "sampling", "")
        for position in ((), (0,), (1,), (0, 0), (0, 1), (1, 0), (256,), (-1,))
    ]
    assert len(set(streams)) == len(streams)


def test_a_seeded_source_repeats_itself() -> None:
    assert SeededSource(5).once("noise", 2).bytes(32) == SeededSource(5).stream("noise", 2).bytes(
        32
    )


def test_secure_sources_share_nothing_and_noise_is_never_given_twice() -> None:
    one, two = SecureSource(), SecureSource()
    assert one.stream("sampling", 0).bytes(32) == one.stream("sampling", 0).bytes(32)
    assert one.stream("sampling", 0).bytes(32) != two.stream("sampling", 0).bytes(32)
    assert one.once("noise", 0).bytes(32) != one.once("noise", 0).bytes(32)


def test_a_forked_child_has_other_secure_randomness_and_the_parent_keeps_its_own() -> None:
    source = SecureSource()
    stream = source.stream("sampling", 1)
    stream.bytes(16)

    def draw() -> tuple[bytes, bytes, bytes]:
        return stream.bytes(32), source.stream("sampling", 0).bytes(32), source.once("n").bytes(32)

    before = source.stream("sampling", 0).bytes(32)
    child, other_child, here = in_child(draw), in_child(draw), draw()
    assert source.stream("sampling", 0).bytes(32) == before
    assert len({*child, *other_child, *here}) == 9


def test_a_forked_child_has_the_same_seeded_randomness() -> None:
    source = SeededSource(1)
    assert in_child(lambda: source.stream("noise", 0).bytes(32)) == source.stream("noise", 0).bytes(
        32
    )


@pytest.mark.parametrize("copier", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("secret", [SecureSource(), SecureSource().stream("noise")])
def test_a_secure_key_cannot_be_copied_or_stored(copier: object, secret: object) -> None:
    with pytest.raises(TypeError, match="cannot be copied"):
        copier(secret)  # type: ignore[operator]


def test_a_source_shows_no_key_and_no_seed() -> None:
    assert repr(SecureSource()) == "SecureSource()"
    assert repr(SeededSource(1234)) == "SeededSource()"
    assert not hasattr(SecureSource(), "__dict__")
    assert "1234" not in SeededSource(1234).describe()


def test_the_statement_says_which_source_it_was() -> None:
    assert SecureSource().secure
    assert "never stored" in SecureSource().describe()
    assert not SeededSource(0).secure
    assert "does not hold against anyone who knows" in SeededSource(0).describe()


@pytest.mark.parametrize("seed", [1.0, "1", None, True])
def test_a_seed_is_an_integer(seed: object) -> None:
    with pytest.raises(TypeError, match="give an integer"):
        SeededSource(seed)  # type: ignore[arg-type]


def test_sources_of_one_seed_and_different_contexts_are_independent() -> None:
    contexts = ("", "run 1", "run 2")
    first = {SeededSource(1, context).stream("noise", 0).bytes(32) for context in contexts}
    assert len(first) == 3
    assert SeededSource(1, "run 1").stream("noise", 0).bytes(32) in first
