from pathlib import Path

import pytest
import torch

from plumbline.data.embeddings import glove_vectors, random_vectors
from plumbline.data.files import DataError
from plumbline.data.text import Vocabulary, corpus

WORDS = Vocabulary.from_training(corpus(["the cat sat"]), 3)  # cat 2, sat 3, the 4


def test_random_vectors_are_fixed_by_their_seed() -> None:
    vectors = random_vectors(WORDS, 400)
    assert vectors.shape == (5, 400)
    assert torch.equal(vectors, random_vectors(WORDS, 400, seed=0))
    assert not torch.equal(vectors, random_vectors(WORDS, 400, seed=1))
    assert vectors[0].tolist() == [0] * 400
    # The squared norm of a standard normal in 400 dimensions has standard deviation 0.07.
    norms = vectors[1:].square().sum(1)
    torch.testing.assert_close(norms, torch.ones(4), rtol=0, atol=0.35)


def test_vectors_from_a_glove_file(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("the 0.5 -1 2\n, 9 9 9\ncat 1e-2 0 3\nthe 7 7 7\n")
    expected = [[0, 0, 0], [0, 0, 0], [0.01, 0, 3], [0, 0, 0], [0.5, -1, 2]]
    torch.testing.assert_close(glove_vectors(WORDS, path), torch.tensor(expected))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("the 1 2\ncat 1\n", r"Line 2 of .*glove\.txt has 1 numbers .* first line has 2"),
        ("the\ncat\n", "Line 1 .* has 0 numbers"),
        ("a 1 2\nb 1 2\n", "has none of the 3 words"),
        ("", "has none of the 3 words"),
        ("the one two\n", "is no GloVe text file: could not convert"),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "glove.txt").write_text(content)
    with pytest.raises(DataError, match=complaint):
        glove_vectors(WORDS, tmp_path / "glove.txt")
    with pytest.raises(FileNotFoundError):
        glove_vectors(WORDS, tmp_path / "none.txt")


def test_they_fit_an_embedding_layer() -> None:
    layer = torch.nn.Embedding.from_pretrained(random_vectors(WORDS, 8), padding_idx=0)
    x = WORDS.encode(corpus(["the dog sat"]), 5)
    assert layer(x).shape == (1, 5, 8)
    assert not layer.weight.requires_grad
