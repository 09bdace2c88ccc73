"""What a planted bug is: one change of the source that breaks a promise, and who must notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


class NoLongerApplies(ValueError):
    """The source has changed, so that the bug cannot be planted as it is written."""


@dataclass(frozen=True)
class Mutant:
    """A bug to plant.

    Attributes:
        name: What it is called.
        why: What it would break.
        file: In which file, below ``src/plumbline``.
        old: The text to change, which occurs there exactly once.
        new: What it becomes.
        tests: The tests of which one must fail, as pytest names them, below ``tests``.
    """

    name: str
    why: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.old == self.new:
            raise NoLongerApplies(f"{self.name}: old and new are the same text.")

    @property
    def nodes(self) -> list[str]:
        """The tests from the repository's root."""
        return [f"tests/{test}" for test in self.tests]

    def planted(self, source: str) -> str:
        """The file's text with the bug in it.

        Raises:
            NoLongerApplies: If the text to change does not occur exactly once.
        """
        found = source.count(self.old)
        if found != 1:
            raise NoLongerApplies(
                f"{self.name}: the text to change occurs {found} times in plumbline/{self.file}, "
                f"not once:\n{self.old}"
            )
        return source.replace(self.old, self.new)

    def plant(self, folder: Path) -> None:
        """Plants it in a copy of ``src``, whose files may be hard links."""
        path = folder / "plumbline" / self.file
        text = self.planted(path.read_text(encoding="utf-8"))
        path.unlink()
        path.write_text(text, encoding="utf-8")
