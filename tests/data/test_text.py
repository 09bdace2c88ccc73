from pathlib import Path

import pytest

from plumbline.data.files import DataError
from plumbline.data.text import PADDING, UNKNOWN, Corpus, Vocabulary, corpus, tokens

TEXTS = ["The cat sat.", "", "A cat, a hat: the END"]


def texts_of(found: Corpus) -> list[list[str]]:
    pairs = zip(found.starts[:-1], found.starts[1:], strict=True)
    return [[found.words[number] for number in found.numbers[a:b]] for a, b in pairs]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's GOOD, isn't it?", ["it's", "good", "isn't", "it"]),
        ("one<br /><br />two <BR>three", ["one", "two", "three"]),
        ("'quoted' -- 10/10, café", ["quoted", "10", "10", "café"]),
        ("...", []),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert tokens(text) == words


def test_a_corpus_is_its_texts() -> None:
    found = corpus(TEXTS)
    assert len(found) == 3
    assert texts_of(found) == [tokens(text) for text in TEXTS]
    assert len(set(found.words)) == len(found.words)
    assert texts_of(found.part(1, 3)) == [tokens(text) for text in TEXTS[1:]]
    assert len(corpus([])) == 0


def test_a_vocabulary_of_the_training_part_says_so() -> None:
    words = Vocabulary.from_training(corpus(TEXTS), 3)
    assert words.words == ("a", "cat", "the")  # all twice: by the alphabet
    assert words.constant.source == "training"
    assert len(words) == 5
    assert Vocabulary.from_training(corpus(TEXTS), 100).words[-1] == "sat"


def test_words_of_the_test_part_are_not_in_it() -> None:
    found = corpus(TEXTS)
    assert set(Vocabulary.from_training(found.part(0, 1), 100).words) == {"the", "cat", "sat"}


def test_encoding_pads_and_truncates() -> None:
    words = Vocabulary.from_training(corpus(TEXTS), 3)
    encoded = words.encode(corpus(["cat dog the", "", "a a a a a a"]), 4)
    assert encoded.tolist() == [
        [3, UNKNOWN, 4, PADDING],
        [PADDING] * 4,
        [2, 2, 2, 2],
    ]
    assert words.encode(corpus([]), 4).shape == (0, 4)
    assert words.encode(corpus(["", ""]), 2).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("content", ["the\nThe\n\ncat\nhat\n", "the 0.1 0.2\ncat 1 2\nhat 3 4\n"])
def test_a_public_list_says_so(tmp_path: Path, content: str) -> None:
    path = tmp_path / "words.txt"
    path.write_text(content)
    assert Vocabulary.from_file(path).words == ("the", "cat", "hat")
    words = Vocabulary.from_file(path, 2)
    assert words.words == ("the", "cat")
    assert str(words.constant) == "the vocabulary of 2 words from words.txt: public constants"


def test_lists_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(DataError, match=r"empty\.txt has no words"):
        Vocabulary.from_file(tmp_path / "empty.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"binary\.txt is not UTF-8 \(line 1\)"):
        Vocabulary.from_file(tmp_path / "binary.txt")


@pytest.mark.parametrize("number", [0, -1, 1.5])
def test_sizes_are_counts(number: int) -> None:
    with pytest.raises(ValueError, match=f"size is {number}; it must be a whole number"):
        Vocabulary.from_training(corpus(TEXTS), number)
    with pytest.raises(ValueError, match=f"length is {number}"):
        Vocabulary.from_training(corpus(TEXTS), 3).encode(corpus(TEXTS), number)
