from plumbline.cli.chart import chart, columns


def test_columns_are_as_high_as_their_values() -> None:
    assert columns([0, 1, 2, 4], 2) == ["   █", " ▄██"]
    assert columns([0, 0], 1) == ["  "]
    assert columns([1, 8], 1, blocks=False) == [".:"]


def test_a_chart_has_its_scales() -> None:
    drawn = chart([1.0, 2.0, 3.0] * 5, last=30, unit="epochs", height=4)
    assert drawn[0].startswith("  3 ┤")
    assert drawn[2].startswith("1.5 ┤")
    assert drawn[-2] == "  0 └" + "─" * 15
    assert drawn[-1].split() == ["0", "30", "epochs"]
    assert len({len(line.rstrip()) for line in drawn[-2:]}) == 1
