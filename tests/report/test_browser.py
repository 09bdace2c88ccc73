"""The page in a real browser: figures, tabs, hovering, both themes, a phone, a print.

Left out of ``make test``; ``make test-browser`` installs chromium and runs it. What the page looks
like is kept in ``build/screenshots/``.
"""

from __future__ import annotations

import base64
import csv
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plumbline.diagnostics import DIAGNOSTICS
from plumbline.experiments import compare
from plumbline.report import read, write
from plumbline.report.next_steps import next_steps
from tests.experiments.small import recipe
from tests.report.browsing import browser, open_page, picture
from tests.report.made import comparison

pytestmark = pytest.mark.browser
SHOTS = Path(__file__).parents[2] / "build" / "screenshots"
NASTY = "<script>alert(1)</script>"
HOSTILE = (
    "</script><script>window.hacked=1</script>",
    '<img src=x onerror="window.hacked=1">',
    '" onmouseover="window.hacked=1" x="',
    "{{7*7}}",
    "javascript:window.hacked=1",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "<b>&amp;</b>",
)
BARE = '<a id="click" href="javascript:window.hacked=1">a</a>'

Open = Callable[..., Any]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small comparison that was really run, with everything measured."""
    rows = [
        {"name": "nonprivate"},
        {"name": "dpsgd", "settings": {"clip": 0.5}, "origin": "paper"},
        {"name": "dpsgd", "settings": {"clip": 0.5}, "origin": "tuned", "learning_rate": 0.5},
        {"name": "global-adapt", "label": NASTY, "learning_rate": 0.2},
    ]
    probe = {"every": 4, "records": 64, "measure": list(DIAGNOSTICS)}
    root = tmp_path_factory.mktemp("browser") / "small"
    compare(recipe(methods=rows, probe=probe, baseline="dpsgd (paper)"), root, workers=1)
    write(root)
    return root


@pytest.fixture(scope="session")
def session() -> Iterator[Any]:
    with browser() as driver:
        yield driver


@pytest.fixture
def opened(session: Any, folder: Path) -> Iterator[Open]:
    """Opens the page at a size and in a theme, and waits until it is drawn."""

    def open_(path: Path | None = None, **how: Any) -> Any:
        open_page(session, path or folder / "report.html", **how)
        return session

    yield open_
    session.execute_script("try { localStorage.clear() } catch (error) {}")
    said = [line for line in session.get_log("browser") if line["level"] in ("SEVERE", "WARNING")]
    assert said == []


def shot(driver: Any, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    width, height = driver.execute_script(
        "const e = document.documentElement; return [e.clientWidth, e.scrollHeight]"
    )
    whole = {"x": 0, "y": 0, "width": width, "height": min(height, 12_000)}
    (SHOTS / f"{name}.png").write_bytes(picture(driver, whole))


def drawn(driver: Any) -> dict[str, int]:
    """How many marks each figure that can be seen has."""
    found: dict[str, int] = driver.execute_script(
        """
        const marks = '.point, .lines path, .annotation, .hm image, .contourlevel path';
        return Object.fromEntries(
          [...document.querySelectorAll('.plot')]
            .filter((plot) => plot.offsetParent !== null)
            .map((plot) => [plot.id, plot.querySelectorAll(marks).length]));
        """
    )
    return found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_figure_is_drawn_and_has_something_in_it(opened: Open, theme: str) -> None:
    driver = opened(theme=theme)
    marks = drawn(driver)
    assert len(marks) >= 15
    assert [name for name, count in marks.items() if not count] == []
    shot(driver, f"page-{theme}")


def test_figures_behind_every_tab_are_drawn_when_it_is_chosen(opened: Open) -> None:
    from selenium.webdriver.common.by import By

    driver = opened()
    seen = dict(drawn(driver))
    for tab in driver.find_elements(By.CSS_SELECTOR, '[role="tab"]'):
        driver.execute_script("arguments[0].click()", tab)
        assert tab.get_attribute("aria-selected") == "true"
        panel = driver.find_element(By.ID, tab.get_attribute("aria-controls"))
        assert panel.is_displayed()
        seen |= drawn(driver)
    total = driver.execute_script("return document.querySelectorAll('.plot').length")
    assert len(seen) == total
    assert [name for name, count in seen.items() if not count] == []


def test_tabs_answer_to_the_keyboard(opened: Open) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    driver = opened()
    tabs = driver.find_elements(By.CSS_SELECTOR, '#statement [role="tab"]')
    tabs[0].send_keys(Keys.ARROW_RIGHT)
    assert driver.switch_to.active_element == tabs[1]
    assert [tab.get_attribute("aria-selected") for tab in tabs[:2]] == ["false", "true"]
    tabs[1].send_keys(Keys.END)
    assert driver.switch_to.active_element == tabs[-1]
    tabs[-1].send_keys(Keys.ARROW_RIGHT)
    assert tabs[0].get_attribute("aria-selected") == "true"


def test_hovering_over_a_figure_shows_its_numbers(opened: Open) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    driver = opened()
    plot = driver.find_element(By.ID, "curves-accuracy-0")
    driver.execute_script(
        "arguments[0].scrollIntoView({behavior: 'instant', block: 'center'})", plot
    )
    ActionChains(driver).move_to_element(plot).perform()
    WebDriverWait(driver, 20).until(
        lambda page: page.find_elements(By.CSS_SELECTOR, "#curves-accuracy-0 .hoverlayer text")
    )


def test_a_name_in_the_legend_hides_what_belongs_to_it(opened: Open) -> None:
    from selenium.webdriver.common.by import By

    driver = opened()
    count = "return document.querySelectorAll('#spending-epsilon .scatterlayer .trace').length"
    before = driver.execute_script(count)
    key = driver.find_element(
        By.XPATH, "//figure[.//div[@id='spending-epsilon']]//button[contains(@class, 'key')]"
    )
    driver.execute_script("arguments[0].click()", key)
    assert driver.execute_script(count) < before
    assert key.get_attribute("aria-pressed") == "false"
    driver.execute_script("arguments[0].click()", key)
    assert driver.execute_script(count) == before


def test_the_button_changes_text_and_figures_to_the_other_theme(opened: Open) -> None:
    from selenium.webdriver.common.by import By

    colours = """
        const axis = document.querySelector('#spending-epsilon .xtick text');
        return [getComputedStyle(document.body).backgroundColor, getComputedStyle(axis).fill];
    """
    driver = opened()
    light = driver.execute_script(colours)
    driver.find_element(By.ID, "theme").click()
    dark = driver.execute_script(colours)
    assert light == ["rgb(255, 255, 255)", "rgb(28, 30, 33)"]
    assert dark == ["rgb(21, 23, 26)", "rgb(232, 230, 225)"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_has_no_sideways_scroll(opened: Open, theme: str) -> None:
    from selenium.webdriver.common.by import By

    driver = opened(width=390, height=844, theme=theme)
    width = "return document.documentElement.scrollWidth"
    assert driver.execute_script(width) == 390
    for tab in driver.find_elements(By.CSS_SELECTOR, '[role="tab"]'):
        driver.execute_script("arguments[0].click()", tab)
        assert driver.execute_script(width) == 390, tab.text
    driver.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    assert driver.execute_script(width) == 390
    driver.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = false })")
    shot(driver, f"phone-{theme}")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_comparison_shows_its_first_figure_above_the_fold(opened: Open, theme: str) -> None:
    place = "return document.querySelector('.hero .plot').getBoundingClientRect().top"
    assert opened(theme=theme).execute_script(place) < 900 - 200


@pytest.fixture(scope="session")
def single(folder: Path) -> Path:
    """The page of one of its runs."""
    run = next(path for path in folder.iterdir() if path.name.startswith("dpsgd--tuned--seed0"))
    return write(run)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_single_run_shows_its_figures_above_the_fold(
    opened: Open, single: Path, theme: str
) -> None:
    driver = opened(path=single, theme=theme)
    place = "return document.getElementById(arguments[0]).getBoundingClientRect().top"
    for figure in ("learned-groups", "reliability-0"):
        assert driver.execute_script(place, figure) < 900 - 200
        assert drawn(driver)[figure]
    shot(driver, f"run-{theme}")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_single_run_on_a_phone_says_where_a_table_goes_on(
    opened: Open, single: Path, theme: str
) -> None:
    driver = opened(path=single, width=390, height=844, theme=theme)
    assert driver.execute_script("return document.documentElement.scrollWidth") == 390
    cue = """
        const table = document.querySelector('#learned .table');
        if (arguments[0]) table.scrollLeft = table.scrollWidth;
        table.dispatchEvent(new Event('scroll'));
        return [table.dataset.wide, getComputedStyle(table, '::before').content];
    """
    assert driver.execute_script(cue, False) == ["start", '"more columns \u2192"']
    assert driver.execute_script(cue, True) == ["end", '"\u2190 more columns"']
    shot(driver, f"run-phone-{theme}")


def test_a_command_is_copied_as_it_is_pasted(opened: Open, single: Path) -> None:
    driver = opened(path=single)
    code = "return document.querySelector('.next code').textContent"
    assert driver.execute_script(code).split() == next_steps(read(single.parent))[0].command.split()


def test_it_prints_in_light_colours_whatever_the_theme(opened: Open) -> None:
    driver = opened(theme="dark")
    # What the page does to itself for paper, seen while it lasts.
    driver.execute_script(
        """
        window.seen = {};
        addEventListener('beforeprint', () => {
          const plot = document.getElementById('spending-epsilon');
          const axis = plot.querySelector('.xtick text');
          window.seen = {
            fill: getComputedStyle(axis).fill,
            width: plot.querySelector('.main-svg').getBoundingClientRect().width,
          };
        });
        """
    )
    paper = {"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": True}
    printed = driver.execute_cdp_cmd("Page.printToPDF", paper)
    SHOTS.mkdir(parents=True, exist_ok=True)
    (SHOTS / "print.pdf").write_bytes(base64.b64decode(printed["data"]))
    assert driver.execute_script("return window.seen") == {"fill": "rgb(28, 30, 33)", "width": 670}
    assert "printing" not in driver.execute_script("return document.documentElement.className")


def test_names_are_shown_as_they_are_and_do_nothing(opened: Open, tmp_path: Path) -> None:
    from selenium.webdriver.common.by import By

    groups = (NASTY, '"><img src=x onerror=alert(1)>')
    driver = opened(path=write(comparison(tmp_path / "c", groups=groups, tuning=True)))
    labels = driver.find_elements(By.CSS_SELECTOR, "#results .key")
    assert [label.text for label in labels[:3]] == ["all records", *groups]
    assert driver.execute_script("return document.querySelectorAll('img').length") == 0
    driver = opened()
    ticks = driver.execute_script(
        "return [...document.querySelectorAll('#headline .ytick text')]"
        ".map((tick) => tick.textContent)"
    )
    assert "".join(ticks).replace(" ", "").count(NASTY) == 1


def test_hostile_columns_groups_and_classes_are_shown_as_text_and_do_nothing(
    opened: Open, tmp_path: Path
) -> None:
    from selenium.webdriver.common.by import By

    column, group_column, target, *cells = HOSTILE
    with (tmp_path / "hostile.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([column, group_column, target])
        rows.writerows([k % 7, cells[k % 2], cells[2 + k % 7 // 4]] for k in range(400))
    options = {
        "path": str(tmp_path / "hostile.csv"),
        "target": target,
        "sensitive": [group_column],
        "ranges": {column: [0, 7]},
        "categories": {target: cells[2:], group_column: cells[:2]},
    }
    methods = [{"name": "dpsgd", "settings": {"clip": 0.5}, "label": HOSTILE[0]}]
    data = {"name": "table", "options": options}
    made = recipe(data=data, model={"name": "mlp"}, methods=methods, seeds=[0], baseline=None)
    compare(made, tmp_path / "c", workers=1)
    page = write(tmp_path / "c")
    driver = opened(path=page)
    assert [name for name, count in drawn(driver).items() if not count] == []
    driver.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    text = driver.execute_script("return document.body.textContent")
    assert [name for name in HOSTILE if name not in text] == []
    keys = driver.find_elements(By.CSS_SELECTOR, "#results .key")
    assert {key.text for key in keys} >= set(cells[:2])
    count = "return document.querySelectorAll(arguments[0]).length"
    for harmful in ("img", "[onmouseover]", "[onerror]", "a[href^=javascript]", "iframe"):
        assert driver.execute_script(count, harmful) == 0
    assert driver.execute_script(count, "script") == 4
    assert driver.execute_script("return window.hacked") is None

    said = driver.get_log("browser")
    assert [line for line in said if line["level"] in ("SEVERE", "WARNING")] == []

    # Were one not escaped, the policy would stop it: each is refused, and the rest works.
    bare = page.read_text(encoding="utf-8").replace("<main>", f"<main>{''.join(HOSTILE)}{BARE}")
    page.write_text(bare, encoding="utf-8")
    driver = opened(path=page)
    assert driver.execute_script(count, "script") > 4
    driver.execute_script("document.getElementById('click').click()")
    assert driver.execute_script("return window.hacked") is None
    refused = [
        line["message"]
        for line in driver.get_log("browser")
        if "Content Security Policy" in line["message"]
    ]
    assert len(refused) >= 4


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_figure_can_be_saved(opened: Open, tmp_path: Path, theme: str) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    driver = opened(theme=theme)
    allowed = {"behavior": "allow", "downloadPath": str(tmp_path)}
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", allowed)
    for kind in ("svg", "png"):
        path = f"//figure[.//div[@id='bending-bias']]//button[@data-format='{kind}']"
        driver.execute_script("arguments[0].click()", driver.find_element(By.XPATH, path))
        file = tmp_path / f"bending-bias.{kind}"
        WebDriverWait(driver, 60).until(lambda _, file=file: file.is_file())
    drawing = (tmp_path / "bending-bias.svg").read_text(encoding="utf-8")
    assert "The bias along training" in drawing
    assert "norm of the bias" in drawing
    assert "dpsgd (tuned)" in drawing  # the legend, which on the page is not plotly's
    assert "rgb(255, 255, 255)" in drawing  # light, whatever the theme
    assert (tmp_path / "bending-bias.png").read_bytes()[:4] == b"\x89PNG"
    SHOTS.mkdir(parents=True, exist_ok=True)
    shutil.copy(tmp_path / "bending-bias.png", SHOTS / f"saved-{theme}.png")
    root = driver.execute_script("return document.documentElement.className")
    assert "printing" not in root


def test_nothing_is_fetched(opened: Open) -> None:
    driver = opened()
    fetched = driver.execute_script(
        "return performance.getEntriesByType('resource').map((entry) => entry.name)"
        ".filter((name) => !name.startsWith('data:') && !name.startsWith('blob:'))"
    )
    assert fetched == []
