from plumbline.experiments.papers import names
from tests.cli.calling import Called


def test_what_can_be_reproduced_is_listed(call: Called) -> None:
    assert call("reproduce", "--list", "--json") == 0
    assert [row["name"] for row in call.json] == names()
    assert call("reproduce", "--list") == 0
    assert all(name in call.out for name in names())
