"""The state that a part of a method carries from step to step, and into a checkpoint."""

from __future__ import annotations

from typing import Any, ClassVar


class Stateful:
    """A part of a method; it has no state unless its class declares some.

    Attributes:
        state: The names of the attributes that change from step to step.
        keeps: The same in words, for the table of methods.
    """

    state: ClassVar[tuple[str, ...]] = ()
    keeps: ClassVar[str] = ""

    def state_dict(self) -> dict[str, Any]:
        """The state; empty for most parts."""
        return {name: getattr(self, name) for name in self.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state that ``state_dict`` returned."""
        if set(state) != set(self.state):
            raise ValueError(
                f"{type(self).__name__} carries {_listed(self.state)}, but {_listed(state)} was "
                "stored. Resume with the method of the stored run."
            )
        for name, value in state.items():
            setattr(self, name, value)


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "no state"
