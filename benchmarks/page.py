"""How large the page is, and how soon it is drawn: `python -m benchmarks.page [FOLDER]`.

Opens the page of a comparison in chromium a few times, each in a new tab process with nothing
cached, and prints the time from the start of loading until the first screen is drawn, and
until everything that can be seen by scrolling is. Without a folder it is the page of a made-up
comparison of five methods with every section. Needs `pip install .[browser]`, chromium and
chromedriver; `make test-browser` installs them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from plumbline.report import write
from tests.report.made import comparison

SECONDS_MARK, BYTES_MARK = 2.0, 8_000_000
SIZES = {"desk": (1280, 900), "phone": (390, 844)}
METHODS = [
    {"name": "nonprivate"},
    {"name": "dpsgd", "origin": "paper", "settings": {"clip": 0.5}},
    {"name": "dpsgd", "origin": "tuned", "settings": {"clip": 0.5}, "learning_rate": 0.5},
    {"name": "global-adapt", "learning_rate": 0.2},
    {"name": "bam"},
]


def browser() -> Any:
    """A headless chromium."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in ("headless=new", "no-sandbox", "disable-dev-shm-usage"):
        options.add_argument(f"--{flag}")
    return webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))


def opened(path: Path, size: tuple[int, int]) -> tuple[float, float]:
    """Seconds until the first screen is drawn, and until everything is."""
    driver = browser()
    try:
        shape = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
        driver.get(path.resolve().as_uri())
        facts = "return {...document.documentElement.dataset}"
        while "drawn" not in (found := driver.execute_script(facts)):
            time.sleep(0.05)
        return float(found["first"]) / 1000, float(found["drawn"]) / 1000
    finally:
        driver.quit()


def main() -> None:
    """Prints the figures, as JSON too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="of a comparison or a run")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or comparison(
            Path(scratch) / "made", methods=METHODS, seeds=range(5), baseline=None, tuning=True
        )
        path = write(folder, Path(scratch) / "report.html")
        found: dict[str, Any] = {"megabytes": path.stat().st_size / 1e6}
        for name, size in SIZES.items():
            times = [opened(path, size) for _ in range(arguments.rounds)]
            found[name] = {
                "first screen": statistics.median(first for first, _ in times),
                "everything": statistics.median(drawn for _, drawn in times),
            }
    print(json.dumps(found, indent=2))
    slowest = max(found[name]["everything"] for name in SIZES)
    print(f"{found['megabytes']:.1f} MB of at most {BYTES_MARK / 1e6:g}")
    print(f"drawn in {slowest:.2f} s, of at most {SECONDS_MARK:g}")


if __name__ == "__main__":
    main()
