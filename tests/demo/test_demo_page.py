"""The demo's page in a real browser: it loads, its buttons work, its console stays empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.demo.browser import chromium, program
from tests.support.servers import require

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from tests.demo.conftest import Running

PATIENCE_MS = 30_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium(require(program)) as started:
        yield started


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.fixture
def page(browser: Browser, demo: Running, complaints: list[str]) -> Iterator[Page]:
    opened = browser.new_page(viewport={"width": 1280, "height": 1000})
    opened.set_default_timeout(PATIENCE_MS)
    opened.on("console", lambda said: complaints.append(said.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("requestfailed", lambda asked: complaints.append(f"failed: {asked.url}"))
    opened.on(
        "request",
        lambda asked: None if asked.url.startswith(demo.url) else complaints.append(asked.url),
    )
    opened.goto(demo.url)
    yield opened
    opened.close()


def test_the_pages_buttons_play_scenarios(
    page: Page, complaints: list[str], tmp_path: Path
) -> None:
    for name in ("declined", "at-once"):
        card = page.locator(f'li[data-name="{name}"]')
        card.get_by_role("button").click()
        card.locator(".verdict").wait_for()
        verdict = card.locator(".verdict").inner_text()
        assert verdict == "✓ Provider acted once"
    answers = page.locator('li[data-name="at-once"] .answers').inner_text()
    assert "1 of 20" in answers
    assert "replayed" in answers
    rows = page.locator("#requests tr")
    assert rows.count() >= 20
    assert page.locator("#provider tr", has_text="at-once-").locator("td").last.inner_text() == "1×"
    assert page.locator("#ledger tr", has_text="at-once-").count() == 1
    assert page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert complaints == []


def test_the_page_can_be_used_without_a_mouse(page: Page, complaints: list[str]) -> None:
    """Every button has a name, every table its headings, and the keyboard presses buttons."""
    page.locator("#scenarios li").first.wait_for()
    names = page.locator("button").evaluate_all(
        "all => all.map(one => one.ariaLabel || one.textContent)"
    )
    assert len(set(names)) == len(names) == 9
    assert page.locator("th:not([scope])").count() == 0
    button = page.get_by_role("button", name="Play: A declined card")
    button.focus()
    page.keyboard.press("Enter")
    page.locator('li[data-name="declined"] .verdict').wait_for()
    assert complaints == []


def test_the_page_fits_a_narrow_window(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.locator("#scenarios li").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
