"""The dashboard in a real browser, on SQLite and PostgreSQL: its console stays empty, nothing that
is stored is run, and everything can be done without a mouse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from tests.dashboard.conftest import Shop
from tests.dashboard.sample_keys import CHARGES, XSS
from tests.dashboard.served_dashboard import TOKEN
from tests.demo.browser import chromium, program
from tests.support.servers import require

from oncekey.core.codec import JSON
from oncekey.engine.keys import administration
from oncekey.engine.keys.administration import run_plan

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE_MS = 90_000
# What happens in the browser alone is tried on one store.
ON_ONE_STORE = pytest.mark.parametrize("shop", ["sqlite"], indirect=True, scope="session")
PHONE_WIDTH = 390
# What the browser itself says about a response that is not 2xx is no complaint.
_EXPECTED = "the server responded with a status of 40"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium(require(program)) as started:
        yield started


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.fixture
def stranger(browser: Browser, shop: Shop, complaints: list[str]) -> Iterator[Page]:
    """A page in a browser that is not signed in; what it complains of is collected."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE_MS)

    def console(said: Any) -> None:
        if _EXPECTED not in said.text:
            complaints.append(said.text)

    def dialog(shown: Any) -> None:
        complaints.append(f"dialog: {shown.message}")
        shown.dismiss()

    opened.on("console", console)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("dialog", dialog)
    opened.on(
        "request",
        lambda asked: None if asked.url.startswith(shop.address) else complaints.append(asked.url),
    )
    yield opened
    context.close()


@pytest.fixture
def page(stranger: Page, shop: Shop) -> Page:
    stranger.goto(shop.address + shop.app.sign_in_path())
    stranger.get_by_role("heading", name="Overview").wait_for()
    return stranger


@ON_ONE_STORE
def test_a_stranger_is_refused_until_the_token_is_right(
    stranger: Page, shop: Shop, complaints: list[str]
) -> None:
    stranger.goto(f"{shop.address}/keys/{shop.ids['unknown']}")
    field = stranger.get_by_label("The dashboard's token")
    field.fill("this is not the token")
    stranger.keyboard.press("Enter")
    stranger.get_by_text("This is not the token.").wait_for()
    assert stranger.get_by_text("payout").count() == 0
    stranger.get_by_label("The dashboard's token").fill(TOKEN)
    stranger.keyboard.press("Enter")
    stranger.get_by_role("heading", name="Overview").wait_for()
    assert complaints == []


def test_an_operator_searches_opens_and_resolves_a_key(
    page: Page, shop: Shop, complaints: list[str]
) -> None:
    id = shop.keys.unknown("http", "in-the-browser", scope="acct_77", origin=CHARGES)
    page.get_by_role("link", name="Search").click()
    page.get_by_label("Scope").fill("acct_77")
    page.get_by_label("Route").fill("POST /cha")
    page.get_by_label("unknown").check()
    page.get_by_role("button", name="Search").click()
    page.get_by_role("link", name=id[:12]).click()
    page.locator(".timeline .bar.silent").wait_for()  # `count` would not wait for the page
    page.get_by_label("It succeeded").check()
    page.get_by_label("Body of the response").fill('{\n  "charge": "ch_5"\n}')
    page.get_by_label("Your name").fill("ada")
    page.get_by_label("The reason").fill("the provider has charge ch_5")
    page.get_by_role("button", name="Continue").click()
    page.get_by_role("heading", name="Write this?").wait_for()
    assert "ada answered 201: the provider has charge ch_5" in page.locator("main").inner_text()
    page.get_by_role("button", name="Yes, write it").click()
    page.get_by_text("Your decision is stored.").wait_for()
    status = run_plan(shop.store, administration.look_at(bytes.fromhex(id), JSON))
    assert status is not None
    assert status.value["body"] == {"charge": "ch_5"}
    assert status.note.endswith("ada answered 201: the provider has charge ch_5")
    page.locator(".timeline .mark.decision").wait_for()
    assert complaints == []


def test_stored_markup_is_shown_as_text(page: Page, shop: Shop, complaints: list[str]) -> None:
    """In keys, scopes, operations, routes, answers and notes."""
    id = shop.ids["xss"]
    pages = ["/", "/keys", f"/keys/{id}", f"/keys/{shop.ids['xss-done']}"]
    for path in pages:
        page.goto(shop.address + path)
        assert XSS in page.locator("main").inner_text()
        assert page.locator("main img, main script").count() == 0
    page.goto(f"{shop.address}/keys/{id}")
    page.get_by_label("It failed for good").check()
    page.get_by_label("The error that retries get").fill(XSS)
    page.get_by_label("Your name").fill(XSS)
    page.get_by_label("The reason").fill(XSS)
    page.get_by_role("button", name="Continue").click()
    assert f"{XSS} failed: {XSS}" in page.locator("main").inner_text()
    page.goto(f"{shop.address}/keys?scope=%22%3E%3Cscript%3Ealert(3)%3C/script%3E&tag=%3Cb%3E")
    assert page.get_by_label("Scope").input_value() == '"><script>alert(3)</script>'
    assert complaints == []


@ON_ONE_STORE
def test_a_key_is_decided_with_the_keyboard_alone(
    page: Page, shop: Shop, complaints: list[str]
) -> None:
    id = shop.keys.unknown("payout", "by-keyboard")
    page.goto(f"{shop.address}/keys/{id}")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    for _ in range(3):  # from "it succeeded" over its value to the next choice
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.value") == "succeeded":
            break
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.value") == "free"
    page.keyboard.press("Tab")
    page.keyboard.type("ada")
    page.keyboard.press("Tab")
    page.keyboard.type("it never ran")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Write this?").wait_for()
    page.keyboard.press("Enter")  # nothing has the focus: a second Enter confirms nothing
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Yes, write it":
            break
    page.keyboard.press("Enter")
    page.get_by_text("The key is free").wait_for()
    assert complaints == []


@ON_ONE_STORE
def test_the_overview_refreshes_itself_and_can_be_paused(
    page: Page, shop: Shop, complaints: list[str]
) -> None:
    page.clock.install()
    page.goto(shop.address)
    before = page.locator("#news").text_content()
    id = shop.keys.unknown("payout", "while-it-is-open")
    page.get_by_role("button", name="Pause").click()
    page.clock.run_for(6_000)
    assert page.locator("#news").text_content() == before
    page.get_by_role("button", name="Go on refreshing").click()
    page.clock.run_for(6_000)
    page.get_by_role("link", name=id[:12]).wait_for()
    assert page.locator("#news").text_content() != before
    assert complaints == []


@ON_ONE_STORE
def test_screen_readers_find_names_for_everything(page: Page, shop: Shop) -> None:
    for path in ("/", "/keys", f"/keys/{shop.ids['unknown']}", f"/keys/{shop.ids['steps']}"):
        page.goto(shop.address + path)
        unnamed = page.evaluate(
            """[...document.querySelectorAll("input, textarea, button, a")].filter(one =>
              one.type !== "hidden" && !(one.labels?.length || one.textContent.trim() ||
              one.ariaLabel)).length"""
        )
        assert unnamed == 0
        assert page.locator("h1").count() == 1
        assert page.locator("table:not(:has(caption)), th:not([scope])").count() == 0
        drawn = "svg:not([aria-hidden]):not([role=img]):not(svg svg)"
        assert page.locator(drawn).count() == 0
        twice = page.evaluate(
            "(all => all.length - new Set(all).size)"
            "([...document.querySelectorAll('[id]')].map(one => one.id))"
        )
        assert twice == 0


@ON_ONE_STORE
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone_in_light_and_dark(page: Page, shop: Shop, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": PHONE_WIDTH, "height": 844})
    grounds = set()
    for path in ("/", "/keys", *(f"/keys/{shop.ids[name]}" for name in ("steps", "xss", "http"))):
        page.goto(shop.address + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE_WIDTH
        grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds == {"rgb(16, 19, 26)" if scheme == "dark" else "rgb(245, 246, 249)"}
