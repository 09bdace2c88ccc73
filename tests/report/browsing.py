"""A real browser for the page: chromium without a window, driven by selenium."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ALL_DRAWN = "return document.documentElement.dataset.drawn !== undefined"
PHONE = 500
"""Narrower windows are a phone's."""


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium, until the end of the block.

    Raises:
        RuntimeError: If it, or its driver, is not there.
    """
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    found = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise RuntimeError(
            f"{' and '.join(missing)} not on the PATH: `make test-browser` installs them"
        )
    options = webdriver.ChromeOptions()
    options.binary_location = str(found["chromium"])
    # Root has no sandbox, and a small /dev/shm is no reason to fail.
    for flag in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "hide-scrollbars"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(found["chromedriver"])))
    try:
        yield driver
    finally:
        driver.quit()


def open_page(
    driver: Any, page: Path, *, width: int = 1280, height: int = 900, theme: str = "light"
) -> None:
    """Opens a page at a size and in a theme, and waits until it is drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < PHONE},
    )
    preferred = [{"name": "prefers-color-scheme", "value": theme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": preferred})
    driver.get(page.resolve().as_uri())
    WebDriverWait(driver, 120).until(lambda one: one.execute_script(ALL_DRAWN))


def picture(driver: Any, clip: dict[str, float]) -> bytes:
    """A part of the page (x, y, width and height from its top left) as PNG."""
    taken = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": {**clip, "scale": 1}}
    )
    return base64.b64decode(taken["data"])
