"""The table of methods in the docs is the one that the code prints."""

from pathlib import Path

import plumbline as pl

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "index.md"


def test_the_docs_have_the_table() -> None:
    text = PAGE.read_text()
    shown = text.split("<!-- methods:begin", 1)[1].split("-->\n", 1)[1].split("<!-- methods:end")[0]
    assert shown.strip() == str(pl.methods.table()).strip(), (
        "docs/methods/index.md has another table; paste the output of "
        "python -c 'import plumbline; print(plumbline.methods.table())'"
    )
