"""Every Python block in the README and the docs runs, top to bottom, a file's blocks together."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_blocks_run(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = page.read_text()
    names: dict[str, object] = {}
    for block in BLOCK.finditer(text):
        line = text[: block.start()].count("\n") + 1
        code = compile("\n" * line + block.group(1), str(page), "exec")
        exec(code, names)


def test_the_readme_has_code() -> None:
    assert len(BLOCK.findall((ROOT / "README.md").read_text())) >= 2
