"""The options that describe a run."""

from plumbline.cli.options import methods_starting, settings_of
from plumbline.cli.table_options import _READ, TABLE
from plumbline.data.table_options import TableDescription


def test_settings_are_values() -> None:
    given = ["clip=0.5", "accounting=paper", "radius = 1e-2", "groups=[0, 1, 2]"]
    found = settings_of(given)
    assert found == {"clip": 0.5, "accounting": "paper", "radius": 0.01, "groups": [0, 1, 2]}


def test_the_shell_completes_methods() -> None:
    assert methods_starting("global-") == ["global_scaling", "global_adapt"]


def test_the_command_line_has_every_option_of_a_table() -> None:
    said = {_READ[one.name][0] if one.name in _READ else one.name for one in TABLE}
    # A column of numbers is one without a word, or by its range.
    assert said == {*TableDescription.__annotations__, "data", "target"} - {"numeric"}
