"""Scattering features (Oyallon and Mallat 2015; for private training, Tramer and Boneh 2021).

A scattering transform is a fixed cascade of wavelets, moduli and averages: nothing is learnt, so it
costs no privacy and is computed only once, here with kymatio (the extra ``scattering``). The models
on top of the features are in ``scattering_heads``.

The features of an image are as private as the image. A cache file is readable by its owner alone
and has PRIVATE in its name.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from plumbline.checks import check_count


class Images(Protocol):
    """A data set that returns several images at once, like the parts of ``plumbline.data``."""

    def __len__(self) -> int:
        """How many there are."""

    def fetch(self, index: Tensor) -> tuple[Tensor, Any]:
        """Images ``index`` (``[R]``), ``[R, C, H, W]``, and their targets."""


def features(
    images: Tensor | Images,
    *,
    scales: int = 2,
    angles: int = 8,
    order: int = 2,
    cache: str | os.PathLike[str] | None = None,
    chunk: int = 1000,
    device: torch.device | str = "cpu",
) -> Tensor:
    """The scattering features of images, computed in chunks and kept on disk.

    Args:
        images: ``[n, C, H, W]``, floating point; or a data set whose ``fetch`` returns such images.
        scales: The number of scales, J: features are averages over 2^J pixels.
        angles: The number of orientations, L.
        order: 1 for one layer of wavelets, 2 for two.
        cache: A folder. The features of these images with these settings are read from there, or
            written there if they are new, and mapped into memory.
        chunk: How many images to transform at once.
        device: Where to transform them.

    Returns:
        ``[n, C * K, H / 2^J, W / 2^J]``, float32 on the CPU, with K = 1 + J L + L^2 J (J - 1) / 2
        for two layers: 81 channels of 7 x 7 for images of 28 x 28.

    Raises:
        ImportError: If kymatio is not installed.
        ValueError: If these are not images, or too small for ``scales``.
    """
    for name, value in (("scales", scales), ("angles", angles), ("chunk", chunk)):
        check_count(name, value)
    if order not in (1, 2):
        raise ValueError(f"order is {order!r}; it must be 1 or 2, the layers of wavelets.")
    rows = _Rows(images, chunk)
    size = rows.shape[-2:]
    if min(size) < 2**scales:
        raise ValueError(
            f"The images have {size[0]} x {size[1]} pixels, and {scales} scales need at least "
            f"{2**scales} each way. Give larger images or fewer scales."
        )
    path = None
    if cache is not None:
        settings = f"scattering {scales} {angles} {order} kymatio {_version()}"
        path = Path(cache) / f"scattering-{rows.digest(settings)}.PRIVATE.npy"
        if (stored := _read(path, len(rows))) is not None:
            return stored
    transform = _transform(scales, angles, order, size, torch.device(device))
    if path is None:
        return torch.cat([transform(chunk) for chunk in rows])
    _write(path, (transform(chunk) for chunk in rows), len(rows))
    found = _read(path, len(rows))
    assert found is not None  # it was just written
    return found


class _Rows:
    """Images in chunks, ``[R, C, H, W]`` of float32."""

    def __init__(self, images: Tensor | Images, chunk: int) -> None:
        self._images = images
        self._chunk = chunk
        if not len(images):
            raise ValueError("There are no images to transform: the data set is empty.")
        self.shape = self._some(0, 1).shape

    def __len__(self) -> int:
        return len(self._images)

    def __iter__(self) -> Iterator[Tensor]:
        for start in range(0, len(self), self._chunk):
            yield self._some(start, min(start + self._chunk, len(self)))

    def digest(self, settings: str) -> str:
        """A name for these images with these settings; other images have another."""
        digest = hashlib.sha256(f"{settings} {len(self)} {tuple(self.shape[1:])}".encode())
        for chunk in self:
            digest.update(chunk.numpy().data)
        return digest.hexdigest()[:32]

    def _some(self, start: int, stop: int) -> Tensor:
        if isinstance(self._images, Tensor):
            rows = self._images[start:stop]
        else:
            rows, _ = self._images.fetch(torch.arange(start, stop))
        if rows.dim() != 4 or not rows.is_floating_point():
            raise ValueError(
                f"The images have the shape {tuple(rows.shape)} and the type {rows.dtype}; give "
                "[n, channels, height, width] in floating point, for example with pixels in [0, 1]."
            )
        return rows.detach().cpu().float().contiguous()


def _transform(
    scales: int, angles: int, order: int, size: torch.Size, device: torch.device
) -> Callable[[Tensor], Tensor]:
    scattering = _front_end()(J=scales, shape=tuple(size), L=angles, max_order=order).to(device)

    def transform(chunk: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = scattering(chunk.to(device))
        return found.flatten(1, 2).cpu()  # [R, C, K, h, w]: every colour has its own channels

    return transform


def _front_end() -> Any:
    # Not `import kymatio.torch`: its 3-D part imports something that scipy has removed. Importing
    # kymatio also changes the global warning filters, which is undone here.
    try:
        with warnings.catch_warnings():
            front_end = importlib.import_module("kymatio.scattering2d.frontend.torch_frontend")
    except ImportError as error:
        raise _missing() from error
    return front_end.ScatteringTorch2D


def _version() -> str:
    try:
        return importlib.metadata.version("kymatio")
    except importlib.metadata.PackageNotFoundError as error:
        raise _missing() from error


def _missing() -> ImportError:
    return ImportError(
        "Scattering features need kymatio, which cannot be imported. Install it with "
        "`pip install 'plumbline[scattering]'`."
    )


def _read(path: Path, rows: int) -> Tensor | None:
    """The cached features, mapped into memory; None if missing or damaged."""
    try:
        # "c" is copy on write: changing the tensor does not change the file.
        stored = np.load(path, mmap_mode="c", allow_pickle=False)
    except Exception:  # damage can look like anything
        return None
    if stored.dtype != np.float32 or stored.ndim != 4 or len(stored) != rows:
        return None
    return torch.from_numpy(stored)


def _write(path: Path, chunks: Iterator[Tensor], rows: int) -> None:
    """Writes the file under another name first: it is complete or not there at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # mkstemp makes it readable by its owner alone.
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".npy", dir=path.parent)
    os.close(handle)
    try:
        stored, start = None, 0
        for chunk in chunks:
            if stored is None:
                shape = (rows, *chunk.shape[1:])
                stored = np.lib.format.open_memmap(name, "w+", np.float32, shape)
            stored[start : start + len(chunk)] = chunk.numpy()
            start += len(chunk)
        assert stored is not None  # there is at least one image
        stored.flush()
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
