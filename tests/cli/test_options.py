"""The options that describe a run."""

from plumbline.cli.options import methods_starting, settings_of


def test_settings_are_values() -> None:
    given = ["clip=0.5", "accounting=paper", "radius = 1e-2", "groups=[0, 1, 2]"]
    found = settings_of(given)
    assert found == {"clip": 0.5, "accounting": "paper", "radius": 0.01, "groups": [0, 1, 2]}


def test_the_shell_completes_methods() -> None:
    assert methods_starting("global-") == ["global_scaling", "global_adapt"]
