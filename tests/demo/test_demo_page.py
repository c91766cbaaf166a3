"""The demo's page in a real browser: it loads, its buttons and its switch work, its
numbers add up, and its console stays empty."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.demo.browser import chromium, program
from tests.demo.conftest import running
from tests.support.servers import require

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route
    from tests.demo.conftest import Running

PATIENCE_MS = 90_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium(require(program)) as started:
        yield started


@pytest.fixture
def complaints() -> list[str]:
    return []


def watch(page: Page, url: str, complaints: list[str], within: str = "") -> None:
    """Opens the page. Console messages, failed requests and other hosts are complaints."""
    page.set_default_timeout(PATIENCE_MS)
    page.on("console", lambda said: complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda asked: complaints.append(f"failed: {asked.url}"))
    page.on(
        "request",
        lambda asked: None if asked.url.startswith(within or url) else complaints.append(asked.url),
    )
    page.goto(url)


@pytest.fixture
def page(browser: Browser, demo: Running, complaints: list[str]) -> Iterator[Page]:
    opened = browser.new_page(viewport={"width": 1280, "height": 1000})
    watch(opened, demo.url, complaints)
    yield opened
    opened.close()


@pytest.fixture
def fresh_page(browser: Browser, tmp_path: Path, complaints: list[str]) -> Iterator[Page]:
    """The page of a demo in which nothing was played yet."""
    with running(tmp_path) as started:
        opened = browser.new_page(viewport={"width": 1280, "height": 1000})
        watch(opened, started.url, complaints)
        yield opened
        opened.close()


def play(page: Page, name: str, *handlers: str) -> None:
    """Presses a scenario's button and waits for the outcomes."""
    card = page.locator(f'li[data-name="{name}"]')
    card.get_by_role("button").click()
    for handler in handlers:
        card.locator(f".side.{handler} .outcome").wait_for()
    page.locator("#play-all:not([disabled])").wait_for()


def outcome(page: Page, name: str, handler: str) -> str:
    return page.locator(f'li[data-name="{name}"] .side.{handler} .outcome').inner_text()


def numbers(page: Page, table: str) -> dict[str, tuple[int, int]]:
    """The rows of a table of totals: name -> (without, with)."""
    rows = page.locator(f"#{table} tr").all()
    cells = [(row.locator("th").inner_text(), row.locator("td").all_inner_texts()) for row in rows]
    return {name.strip(): (int(without), int(ours)) for name, (without, ours) in cells}


def test_the_pages_buttons_play_scenarios(
    page: Page, complaints: list[str], tmp_path: Path
) -> None:
    for name, said in (("declined", "Declined, never charged"), ("at-once", "Charged once")):
        play(page, name, "naive", "guarded")
        assert outcome(page, name, "guarded") == f"✓ {said}"
    answers = page.locator('li[data-name="at-once"] .side.guarded .answers').inner_text()
    assert "1 of 20" in answers
    assert "replayed" in answers
    assert outcome(page, "at-once", "naive").startswith("✗ Charged ")
    assert page.locator("#requests tr").count() >= 40
    orders = page.locator("#provider tr", has_text="at-once-")
    ours = orders.filter(has=page.get_by_role("cell", name="with", exact=True))
    assert ours.locator("td").nth(1).inner_text() == "charged once"
    assert ours.locator("td").nth(3).inner_text() == "1×"
    assert page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert complaints == []


def test_the_headline_counts_the_scenarios_below(fresh_page: Page, complaints: list[str]) -> None:
    score = fresh_page.locator("#score")
    fresh_page.locator("#scenarios li").first.wait_for()
    assert score.inner_text() == "– without oncekey / – with"
    fresh_page.get_by_label("without oncekey").check()
    play(fresh_page, "flaky", "naive")
    assert score.inner_text() == "1 without oncekey / – with"
    assert fresh_page.locator(".side.guarded").count() == 0
    fresh_page.get_by_label("side by side").check()
    play(fresh_page, "declined", "naive", "guarded")
    assert score.inner_text() == "1 without oncekey / 0 with"
    fresh_page.get_by_label("with oncekey", exact=True).check()
    play(fresh_page, "flaky", "guarded")
    assert score.inner_text() == "1 without oncekey / 0 with"
    assert "of 2 played without and 2 with" in fresh_page.locator("#played").inner_text()
    assert outcome(fresh_page, "flaky", "naive") == "✗ Charged twice, asked 3 times"
    assert outcome(fresh_page, "flaky", "guarded") == "✓ Charged once, asked 3 times"
    assert complaints == []


def test_both_handlers_are_shown_side_by_side(page: Page) -> None:
    play(page, "flaky", "naive", "guarded")
    card = page.locator('li[data-name="flaky"]')
    naive, ours = (card.locator(f".side.{name}").bounding_box() for name in ("naive", "guarded"))
    assert naive is not None
    assert ours is not None
    assert naive["y"] == ours["y"]
    assert naive["x"] + naive["width"] < ours["x"]
    page.set_viewport_size({"width": 390, "height": 800})
    stacked = card.locator(".side.guarded").bounding_box()
    assert stacked is not None
    assert stacked["x"] < ours["x"]


def test_every_total_is_the_sum_of_rows_on_the_page(fresh_page: Page) -> None:
    for name in ("flaky", "declined", "refund", "redelivered"):
        play(fresh_page, name, "naive", "guarded")
    api, provider = numbers(fresh_page, "api-totals"), numbers(fresh_page, "provider-totals")
    for table in (api, provider):
        first, *others = table.values()
        assert first == tuple(map(sum, zip(*others, strict=True)))
    paths = fresh_page.locator("#requests tr td:nth-child(4)").all_inner_texts()
    without = sum("/naive/" in path for path in paths)
    assert api["requests"] == (without, len(paths) - without)
    orders = [
        row.locator("td").all_inner_texts() for row in fresh_page.locator("#provider tr").all()
    ]
    times = {"once": 1, "twice": 2}
    effects = {"charged", "refunded", "shipped", "declined"}
    for at, side in enumerate(("without", "with")):
        mine = [order for order in orders if order[2] == side]
        assert provider["requests"][at] == sum(int(asked.rstrip("×")) for *_, asked, _ in mine)
        for effect in effects:
            found = [order[1].split() for order in mine if order[1].startswith(effect)]
            assert provider[effect][at] == sum(times[often] for _, often in found)
    assert provider["charged"] == (3, 2)
    assert provider["refunded"] == (2, 1)
    assert provider["shipped"] == (2, 1)
    assert provider["declined"] == (2, 1)


def test_rows_that_are_not_listed_are_named(page: Page) -> None:
    def answer_with_more(route: Route) -> None:
        response = route.fetch()
        if response.status != 200:  # nothing has changed
            route.fulfill(response=response)
            return
        state = response.json()
        state["provider"]["count"] = len(state["provider"]["orders"]) + 7
        route.fulfill(response=response, json=state)

    play(page, "declined", "naive", "guarded")
    assert page.locator("#provider .empty").count() == 0
    page.route("**/demo/state*", answer_with_more)
    play(page, "declined", "naive", "guarded")
    last = page.locator("#provider tr").last
    assert last.inner_text().strip() == "and 7 earlier, which are counted above"
    page.unroute_all(behavior="wait")


def test_the_page_can_be_used_without_a_mouse(page: Page, complaints: list[str]) -> None:
    """Every button has a name, every table its headings, and the keyboard presses buttons."""
    page.locator("#scenarios li").first.wait_for()
    names = page.locator("button").evaluate_all(
        "all => all.map(one => one.ariaLabel || one.textContent)"
    )
    assert len(set(names)) == len(names) == 10
    assert page.locator("th:not([scope])").count() == 0
    assert page.get_by_role("group", name="Play each scenario").count() == 1
    page.get_by_label("side by side").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.get_by_label("with oncekey", exact=True).is_checked()
    button = page.get_by_role("button", name="Play: A declined card")
    button.focus()
    page.keyboard.press("Enter")
    page.locator('li[data-name="declined"] .side.guarded .outcome').wait_for()
    assert complaints == []


def test_the_page_fits_a_narrow_window(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.locator("#scenarios li").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_answers_are_in_sight_on_a_phone(page: Page) -> None:
    """Nobody has to scroll a table sideways to see what a request was answered."""
    play(page, "declined", "naive", "guarded")
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.locator("th", has_text="Answer").count() == 1
    answers = page.locator("#requests tr td:nth-child(2)").all()
    assert len(answers) >= 4
    for badge in [*answers, page.locator("th", has_text="Answer")]:
        box = badge.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390


def test_the_log_shows_milliseconds(page: Page) -> None:
    play(page, "declined", "naive", "guarded")
    for row in page.locator("#requests tr").all()[:4]:
        time, _, took, *_ = row.locator("td").all_inner_texts()
        assert re.fullmatch(r"\d\d:\d\d:\d\d[.,]\d{3}", time)
        assert took.isdigit()


def test_the_page_links_to_the_documentation(
    page: Page, demo: Running, complaints: list[str]
) -> None:
    documentation = page.get_by_role("navigation", name="Documentation")
    links = documentation.get_by_role("link").evaluate_all("all => all.map(one => one.href)")
    assert links == [f"{demo.url}/docs"]
    assert complaints == []


def test_the_apis_description_is_a_page_of_its_own(
    browser: Browser, demo: Running, complaints: list[str]
) -> None:
    page = browser.new_page()
    watch(page, f"{demo.url}/docs", complaints, within=demo.url)
    page.get_by_role("heading", name="POST /charges/{id}/refunds").wait_for()
    headings = page.locator("section h2").all_inner_texts()
    assert set(headings) >= {"GET /ledger", "POST /charges", "GET /accounts/me"}
    named = set(page.locator("h3").evaluate_all("all => all.map(one => one.id)"))
    linked = page.locator('a[href^="#"]').evaluate_all(
        "all => all.map(one => one.getAttribute('href').slice(1))"
    )
    assert set(linked) <= named
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert complaints == []
    page.close()
