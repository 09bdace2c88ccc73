"""The costs of a step on many machines: the arithmetic, and the page that shows it."""

import pytest

from benchmarks import cluster


@pytest.mark.parametrize("machines", [2, 3, 8])
def test_bytes_are_those_of_a_ring(machines: int) -> None:
    parts = 5  # words of a part; the sum has one part for each machine
    words = [[{rank} for _ in range(machines)] for rank in range(machines)]
    rounds = 0
    for offset, gather in [(0, False)] * (machines - 1) + [(1, True)] * (machines - 1):
        turn = rounds % (machines - 1)
        moved = []
        for rank in range(machines):  # each sends one part to the next, all at once
            part = (rank + offset - turn) % machines
            moved.append(((rank + 1) % machines, part, words[rank][part]))
        for to, part, summands in moved:
            words[to][part] = summands if gather else words[to][part] | summands
        rounds += 1
    assert all(part == set(range(machines)) for rank in words for part in rank)
    sent = rounds * parts * cluster.WORD
    assert sent == pytest.approx(cluster.sent(machines * parts, machines))


def test_the_network_is_the_limit_where_it_says() -> None:
    speed, machines, parameters = 1e12, 64, 10**9
    positions = cluster.even(10, speed, machines)
    gradients = cluster.OPERATIONS * parameters * positions / speed
    assert gradients == pytest.approx(cluster.network_seconds(parameters, machines, 10), rel=0.01)


def test_the_page_has_these_tables() -> None:
    page = cluster.PAGE.read_text()
    for name, text in (("cluster", cluster.costs()), ("network", cluster.limits())):
        kept = page.partition(f"<!-- {name}:begin -->\n")[2].partition(f"<!-- {name}:end -->")[0]
        assert kept == text, "run `python -m benchmarks.cluster`"
