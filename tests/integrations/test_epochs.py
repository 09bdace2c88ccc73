from plumbline.integrations.epochs import epoch_steps


def test_an_epoch_draws_every_unit_once_on_average() -> None:
    assert epoch_steps(range(10), 4, None, {}) == 3
    assert epoch_steps(range(10), 4, 16, {}) == 4
    assert epoch_steps(range(10), 4, None, {"user_ids": [0, 0, 1, 1, 2, 2, 3, 3, 3, 3]}) == 1
