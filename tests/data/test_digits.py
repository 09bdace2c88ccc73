import torch

from plumbline.data.digits import digits


def test_the_digits_of_scikit_learn() -> None:
    splits = digits()
    train, test = splits.train, splits.test
    assert train.x.shape == (1438, 1, 8, 8)
    assert test.x.shape == (359, 1, 8, 8)
    assert train.x.dtype == torch.float32
    assert (float(train.x.min()), float(train.x.max())) == (0, 1)
    counts = torch.bincount(torch.cat([train.y, test.y]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # as documented
    assert splits.classes == tuple("0123456789")
    assert splits.not_covered == ()
    assert train.sensitive_features is None


def test_the_seed_decides_the_parts() -> None:
    first, again, other = digits(seed=1), digits(seed=1), digits(seed=2)
    assert torch.equal(first.train.x, again.train.x)  # type: ignore[arg-type]
    assert not torch.equal(first.train.x, other.train.x)  # type: ignore[arg-type]
