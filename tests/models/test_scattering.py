"""Scattering features: what they are, and that they are computed once."""

import stat
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from plumbline.models import scattering
from plumbline.models.scattering import features

pytest.importorskip("kymatio")

SMALL: dict[str, Any] = {"scales": 2, "angles": 2}


def images(count: int = 5, channels: int = 1, size: int = 8) -> Tensor:
    return torch.rand(count, channels, size, size)


class Part:
    """As in ``plumbline.data``: stored as bytes, prepared when fetched."""

    def __init__(self, stored: Tensor) -> None:
        self.stored = stored
        self.most = 0

    def __len__(self) -> int:
        return len(self.stored)

    def fetch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        self.most = max(self.most, len(index))
        return self.stored[index].float() / 255, torch.zeros(len(index))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each chunk that was transformed had."""
    seen: list[int] = []
    usual = scattering._transform

    def watched(*settings: Any) -> Any:
        transform = usual(*settings)

        def run(chunk: Tensor) -> Tensor:
            seen.append(len(chunk))
            return transform(chunk)

        return run

    monkeypatch.setattr(scattering, "_transform", watched)
    return seen


def test_mnist_has_81_channels_of_7_by_7() -> None:
    found = features(images(1, size=28))
    assert found.shape == (1, 81, 7, 7)
    assert found.dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "channels", "size"),
    [
        ({"scales": 1, "angles": 2}, 3, 4),
        ({"scales": 2, "angles": 2}, 9, 2),
        ({"scales": 2, "angles": 3}, 16, 2),
        ({"scales": 2, "angles": 2, "order": 1}, 5, 2),
        ({"scales": 3, "angles": 2}, 19, 1),
    ],
)
def test_shapes(options: dict[str, Any], channels: int, size: int) -> None:
    assert features(images(2), **options).shape == (2, channels, size, size)


def test_a_constant_image_has_no_wavelet_coefficients() -> None:
    found = features(torch.full((1, 1, 16, 16), 0.7))
    torch.testing.assert_close(found[:, 0], torch.full((1, 4, 4), 0.7), rtol=1e-4, atol=1e-4)
    assert float(found[:, 1:].abs().max()) < 1e-4


def test_first_order_coefficients_are_averaged_moduli_of_wavelets() -> None:
    """One path by hand, in the Fourier domain, from the wavelets that kymatio builds."""
    from kymatio.scattering2d.filter_bank import filter_bank

    x = images(1, size=16)
    padded = torch.nn.functional.pad(x.double(), (4, 4, 4, 4), mode="reflect")[0, 0]
    filters = filter_bank(24, 24, 2, 4)
    wavelet = torch.from_numpy(filters["psi"][2]["levels"][0]).double()
    low_pass = torch.from_numpy(filters["phi"]["levels"][0]).double()
    modulus = torch.fft.ifft2(torch.fft.fft2(padded) * wavelet).abs()
    averaged = torch.fft.ifft2(torch.fft.fft2(modulus) * low_pass).real
    expected = averaged[4:-4:4, 4:-4:4]
    found = features(x, scales=2, angles=4)
    torch.testing.assert_close(found[0, 3].double(), expected, rtol=1e-4, atol=1e-5)


def test_images_are_transformed_one_by_one_whatever_the_chunks() -> None:
    x = images(7)
    whole = features(x, **SMALL)
    for chunk in (1, 3):
        torch.testing.assert_close(features(x, **SMALL, chunk=chunk), whole, rtol=1e-5, atol=1e-6)
    other = x.clone()
    other[3] += 1
    moved = (features(other, **SMALL) != whole).flatten(1).any(1)
    assert moved.tolist() == [False, False, False, True, False, False, False]


def test_colours_are_transformed_each_by_itself() -> None:
    x = images(3, channels=2)
    found = features(x, **SMALL)
    assert found.shape == (3, 18, 2, 2)
    torch.testing.assert_close(found[:, :9], features(x[:, :1], **SMALL))
    torch.testing.assert_close(found[:, 9:], features(x[:, 1:], **SMALL))


def test_they_are_computed_once(tmp_path: Path, computed: list[int]) -> None:
    x = images(5)
    expected = features(x, **SMALL)
    computed.clear()
    first = features(x, **SMALL, cache=tmp_path, chunk=2)
    assert computed == [2, 2, 1]
    again = features(x, **SMALL, cache=tmp_path)
    assert computed == [2, 2, 1]
    torch.testing.assert_close(first, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(first, again)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("change", ["pixel", "order", "count", "angles", "scales", "layers"])
def test_other_images_or_settings_are_others(
    tmp_path: Path, computed: list[int], change: str
) -> None:
    x = images(4)
    features(x, **SMALL, cache=tmp_path)
    settings = dict(SMALL)
    match change:
        case "pixel":
            x = x.clone()
            x[2, 0, 3, 3] += 1e-6
        case "order":
            x = x.flip(0)
        case "count":
            x = x[:3]
        case "angles":
            settings["angles"] = 3
        case "scales":
            settings["scales"] = 1
        case "layers":
            settings["order"] = 1
    found = features(x, **settings, cache=tmp_path)
    assert computed == [4, len(x)]
    assert torch.equal(found, features(x, **settings))


def test_a_data_set_is_read_in_chunks(tmp_path: Path) -> None:
    stored = torch.randint(0, 256, (7, 1, 8, 8), dtype=torch.uint8)
    part = Part(stored)
    found = features(part, **SMALL, cache=tmp_path, chunk=3)
    assert part.most == 3
    expected = features(stored.float() / 255, **SMALL, cache=tmp_path)
    assert torch.equal(found, expected)
    assert len(list(tmp_path.iterdir())) == 1  # they are the same images


def test_the_file_is_mapped_and_stays_as_it_is(tmp_path: Path) -> None:
    x = images(4)
    found = features(x, **SMALL, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()
    found.zero_()  # a copy on write
    assert path.read_bytes() == before
    assert float(features(x, **SMALL, cache=tmp_path).abs().sum()) > 0


def test_the_file_is_private(tmp_path: Path) -> None:
    features(images(), **SMALL, cache=tmp_path / "a" / "folder")
    (path,) = (tmp_path / "a" / "folder").iterdir()
    assert path.name.endswith(".PRIVATE.npy")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", ["empty", "short", "another shape", "another type"])
def test_a_damaged_file_is_computed_again(tmp_path: Path, computed: list[int], damage: str) -> None:
    x = images(4)
    expected = features(x, **SMALL, cache=tmp_path).clone()
    (path,) = tmp_path.iterdir()
    match damage:
        case "empty":
            path.write_bytes(b"")
        case "short":
            path.write_bytes(path.read_bytes()[:-20])
        case "another shape":
            np.save(path, np.zeros((3, 9, 2, 2), np.float32))
        case "another type":
            np.save(path, np.zeros((4, 9, 2, 2), np.float64))
    assert torch.equal(features(x, **SMALL, cache=tmp_path), expected)
    assert computed == [4, 4]


def test_a_transform_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> Any:
        calls: list[Tensor] = []

        def run(chunk: Tensor) -> Tensor:
            calls.append(chunk)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return torch.zeros(len(chunk), 9, 2, 2)

        return run

    monkeypatch.setattr(scattering, "_transform", failing)
    with pytest.raises(KeyboardInterrupt):
        features(images(4), **SMALL, cache=tmp_path, chunk=2)
    assert not list(tmp_path.iterdir())


def test_importing_kymatio_leaves_the_filters_of_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "kymatio"]:
        monkeypatch.delitem(sys.modules, name)
    before = list(warnings.filters)
    features(images(1), **SMALL)
    assert warnings.filters == before


@pytest.mark.parametrize("cached", [False, True])
def test_without_kymatio_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "kymatio"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kymatio", None)

    def unknown(_: str) -> str:
        raise scattering.importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(scattering.importlib.metadata, "version", unknown)
    with pytest.raises(ImportError, match=r"pip install 'plumbline\[scattering\]'"):
        features(images(1), cache=tmp_path if cached else None)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (torch.zeros(2, 8, 8), {}, r"shape \(1, 8, 8\).*\[n, channels, height, width\]"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), {}, "type torch.uint8; give"),
        (torch.zeros(0, 1, 8, 8), {}, "no images"),
        (torch.zeros(2, 1, 8, 3), {}, r"8 x 3 pixels, and 2 scales need at least 4"),
        (images(), {"scales": 0}, "scales is 0; it must be a whole number of at least 1"),
        (images(), {"angles": 2.5}, "angles is 2.5"),
        (images(), {"chunk": 0}, "chunk is 0"),
        (images(), {"order": 3}, "order is 3; it must be 1 or 2"),
    ],
)
def test_what_is_given_is_checked(given: Tensor, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        features(given, **options)
