"""The pages, as a reader without a browser gets them, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import html
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fastapi import FastAPI
from tests.dashboard.conftest import Shop
from tests.dashboard.reader import Reader, confirmation
from tests.dashboard.sample_keys import CHARGES, SampleKeys, fill, value
from tests.dashboard.served_dashboard import TOKEN, served
from tests.support.postgres_stores import DATABASE, server

from oncekey import AsyncOnce, Event, EventKind, Once
from oncekey.core.codec import JSON
from oncekey.core.record import State
from oncekey.core.step_format import intent_facts, pack_step
from oncekey.dashboard import Dashboard, search_page
from oncekey.engine.keys import administration
from oncekey.engine.keys.administration import run_plan
from oncekey.engine.keys.key_status import KeyStatus
from oncekey.engine.store_urls import blocking_store

WHO = {"by": "ada", "why": "found it at the provider"}


def status_of(shop: Shop, id: str) -> KeyStatus:
    status = run_plan(shop.store, administration.look_at(bytes.fromhex(id), JSON))
    assert status is not None
    return status


def found(page: str) -> set[str]:
    return set(re.findall(r'href="/keys/([0-9a-f]{32})"', page))


# --- overview and search --------------------------------------------------------------------------


def test_the_overview_names_unknown_and_stuck_keys_first(shop: Shop, reader: Reader) -> None:
    page = reader.get("/").text
    rows = page.partition("Keys that need somebody")[2]
    assert found(rows) >= {shop.ids[name] for name in ("unknown", "unknown-http", "silent")}
    assert found(rows) & {shop.ids[name] for name in ("http", "failed", "pending")} == set()
    assert rows.index(shop.ids["unknown"]) < rows.index(shop.ids["silent"])
    assert "not measured here" in page


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({"scope": "acct_2"}, {"unknown"}),
        ({"operation": "refund"}, {"failed"}),
        ({"route": "POST /char", "state": "succeeded"}, {"http"}),
        ({"key": "cart-17"}, {"steps"}),
        ({"state": "failed"}, {"failed"}),
        ({"state": ["pending", "failed"], "scope": "acct_3"}, {"steps"}),
        ({"scope": "nobody"}, set()),
    ],
)
def test_the_search_finds_by_each_field(
    shop: Shop, reader: Reader, query: dict[str, Any], names: set[str]
) -> None:
    page = reader.get("/keys", params=query)
    samples = found(page.text) & set(shop.ids.values())  # other tests add more
    assert samples == {shop.ids[name] for name in names}
    assert "there are no older ones" in page.text


def test_the_search_finds_by_the_beginning_of_a_tag(shop: Shop, reader: Reader) -> None:
    id = shop.ids["steps"]
    assert found(reader.get("/keys", params={"tag": id[:8]}).text) == {id}
    wrong = reader.get("/keys", params={"tag": "no-tag"})
    assert wrong.status_code == 400
    assert "is no tag" in wrong.text


def test_the_search_goes_on_where_the_page_before_has_ended(
    shop: Shop, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = found(reader.get("/keys").text)
    monkeypatch.setattr(search_page, "SEARCH_ROWS_MAX", 4)
    path = "/keys"
    seen: list[str] = []
    while path:
        page = reader.get(path).text
        seen += sorted(found(page))
        link = re.search(r'rel="next" href="([^"]+)"', page)
        path = link[1].replace("&amp;", "&") if link else ""
    assert len(seen) == len(set(seen))
    assert set(seen) == everything
    assert reader.get("/keys?after=nonsense").status_code == 400


# --- one key --------------------------------------------------------------------------------------


def test_the_page_of_a_key_draws_its_steps_and_shows_what_is_stored(
    shop: Shop, reader: Reader
) -> None:
    page = reader.get(f"/keys/{shop.ids['steps']}").text
    timeline = page.partition("Timeline")[2].partition("Facts")[0]
    assert timeline.count('class="mark done"') == 2
    assert timeline.count('class="mark begun"') == 1
    assert "step-value" in page
    assert "ok1-child" in page
    assert "ch_9" in page
    http = reader.get(f"/keys/{shop.ids['http']}").text
    assert "ch_7" in http
    assert 'class="mark end-succeeded"' in http
    assert "card number 4242" in reader.get(f"/keys/{shop.ids['failed']}").text


def test_an_unknown_id_is_404(reader: Reader) -> None:
    assert reader.get(f"/keys/{'0' * 32}").status_code == 404
    assert reader.get("/keys/nonsense").status_code == 404
    assert reader.get("/nonsense").status_code == 404


def test_bodies_are_hidden_unless_the_reader_may_see_them(shop: Shop) -> None:
    with served(Dashboard(shop.url, token=TOKEN)) as address, Reader(address) as reader:
        reader.sign_in()
        for name, secret, shown in [
            ("steps", "step-value", "ok1-child"),
            ("http", "ch_7", "201"),
            ("function", "sent", "send-receipt"),
            ("failed", "card number 4242", "ValueError"),
        ]:
            page = reader.get(f"/keys/{shop.ids[name]}").text
            facts = page.partition("Facts")[2]
            assert secret not in facts
            assert shown in page
            assert "hidden: the dashboard was started without bodies" in facts


@pytest.mark.parametrize("shop", ["postgres"], indirect=True, scope="session")
def test_a_role_that_may_only_read_is_enough_to_look(shop: Shop) -> None:
    schema = shop.url.rpartition("?schema=")[2]
    role = f"looker_of_{schema}"
    for statement in (
        f"CREATE ROLE {role} LOGIN",
        f"GRANT USAGE ON SCHEMA {schema} TO {role}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}",
    ):
        server().execute(statement, database=DATABASE)
    url = shop.url.replace("//postgres@", f"//{role}@")
    app = Dashboard(url, token=TOKEN, read_only=True)
    with served(app) as address, Reader(address) as reader:
        reader.sign_in()
        for path in ("/", "/keys", f"/keys/{shop.ids['unknown']}"):
            page = reader.get(path)
            assert page.status_code == 200, page.text
    server().execute(f"DROP OWNED BY {role}", database=DATABASE)
    server().execute(f"DROP ROLE {role}", database=DATABASE)


# --- decisions ------------------------------------------------------------------------------------


def test_an_operator_decides_that_a_function_succeeded(shop: Shop, reader: Reader) -> None:
    id = shop.keys.unknown("payout", "to-succeed")
    typed = {"action": "succeeded", "value": '{"payout": "po_1"}', **WHO}
    done = reader.confirmed(id, **typed)
    assert done.headers["location"] == f"/keys/{id}?done=resolved"
    status = status_of(shop, id)
    assert (status.state, status.value) == ("succeeded", {"payout": "po_1"})
    assert status.note.endswith("ada succeeded: found it at the provider")
    page = reader.get(done.headers["location"]).text
    assert "Your decision is stored." in page
    assert "Somebody else than its owner decided it." in page
    assert 'class="mark decision"' in page


def test_an_operator_answers_an_http_request(shop: Shop, reader: Reader) -> None:
    id = shop.keys.unknown("http", "to-answer", origin=CHARGES)
    typed = {"action": "succeeded", "status": "201", "body": '{"charge":\r\n"ch_2"}', **WHO}
    reader.confirmed(id, **typed)
    status = status_of(shop, id)
    assert status.value == {
        "status": 201,
        "headers": {"content-type": "application/json"},
        "body": {"charge": "ch_2"},
    }
    assert "ada answered 201" in status.note


def test_an_operator_decides_that_it_failed_and_another_releases_it(
    shop: Shop, reader: Reader
) -> None:
    id = shop.keys.unknown("payout", "to-fail")
    reader.confirmed(id, action="failed", message="the bank refused", **WHO)
    assert status_of(shop, id).state == "failed"
    done = reader.confirmed(id, by="grace", why="the bank was asked again")
    assert done.headers["location"].startswith("/")
    shop.keys.claim("payout", "to-fail")
    status = status_of(shop, id)
    assert status.state == "pending"
    assert "grace freed: the bank was asked again" in status.note
    page = reader.get(f"/keys/{id}").text
    assert "Earlier use of this key" in page
    assert "the bank refused" in page


def test_an_operator_frees_a_key_that_never_ran(shop: Shop, reader: Reader) -> None:
    id = shop.keys.unknown("payout", "to-free")
    done = reader.confirmed(id, action="free", **WHO)
    assert done.headers["location"] == "/?done=released"
    assert "The key is free" in reader.get("/?done=released").text
    shop.keys.claim("payout", "to-free")
    assert status_of(shop, id).state == "pending"


def test_a_key_that_has_changed_meanwhile_is_left_alone(shop: Shop, reader: Reader) -> None:
    """Between the confirmation and the click somebody else has decided it."""
    id = shop.keys.unknown("payout", "raced")
    page = reader.post(f"/keys/{id}/confirm", reader.form(id, action="free", **WHO))
    shown = status_of(shop, id)
    shop.keys.resolve(id, State.SUCCEEDED, value("first"), "somebody was faster", shown.fence)
    late = reader.post(f"/keys/{id}/decide", confirmation(page.text))
    assert late.status_code == 409
    assert "Nothing was written" in late.text
    assert "somebody was faster" in late.text
    assert status_of(shop, id).value == "first"


def test_a_key_whose_owner_came_back_meanwhile_is_left_alone(shop: Shop, reader: Reader) -> None:
    """It is unknown again, with the same fence; but what the operator found out is older."""
    held = shop.keys.claim("payout", "came-back", lease=1)
    id = held[0].hex()
    page = reader.post(f"/keys/{id}/confirm", reader.form(id, action="free", **WHO))
    shop.keys.renew(held)
    late = reader.post(f"/keys/{id}/decide", confirmation(page.text))
    assert late.status_code == 409
    assert "Lease until" in late.text
    assert status_of(shop, id).state == "unknown"


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        ({"action": ""}, "Choose what became of it"),
        ({"action": "release"}, "Choose what became of it"),
        ({"action": "free", "why": " "}, "The reason must be"),
        ({"action": "free", "by": ""}, "Your name must be"),
        ({"action": "free", "why": "x" * 501}, "The reason must be"),
        ({"action": "succeeded", "value": "{no json"}, "The value must be JSON"),
        ({"action": "failed", "message": ""}, "The error message must be"),
    ],
)
def test_a_form_that_cannot_be_taken_says_why_and_keeps_what_was_typed(
    shop: Shop, reader: Reader, typed: dict[str, str], complaint: str
) -> None:
    id = shop.ids["unknown"]
    page = reader.post(f"/keys/{id}/confirm", reader.form(id, **{**WHO, **typed}))
    assert page.status_code == 400
    assert complaint in page.text
    assert "found it at the provider" in page.text or "why" in typed
    assert status_of(shop, id).state == "unknown"


# --- in an app ------------------------------------------------------------------------------------


def test_a_mounted_dashboard_shows_the_dedup_rate_of_its_app(tmp_path: Path) -> None:
    once = AsyncOnce(f"sqlite:///{tmp_path / 'shop.db'}")
    api = FastAPI()
    api.mount("/ops", Dashboard(once, token=TOKEN, authenticate=who))
    calls, ran = list[str](), list[str]()  # counted here, and not by events

    @api.post("/pay/{key}")
    async def pay(key: str) -> Any:
        calls.append(key)

        async def body(attempt: Any) -> str:
            ran.append(key)
            return "paid"

        return (await once.run("pay", key, body)).value

    with served(api) as address, Reader(address) as reader:
        assert reader.get("/ops/").status_code == 403
        reader.http.headers["x-user"] = "ada"
        for _ in range(4):
            assert reader.http.post("/pay/k").json() == "paid"
        page = reader.get("/ops/").text
        assert (len(calls), len(ran)) == (4, 1)
        assert f"{1 - len(ran) / len(calls):.1%}" in page
        assert f"{len(calls) - len(ran)} of {len(calls)} calls" in page
        assert 'href="/ops/keys"' in page
        assert "Sign out" not in page
        assert reader.get("/ops/sign-in").status_code == 404
        (id,) = set(re.findall(r'href="/ops/keys/([0-9a-f]{32})"', reader.get("/ops/keys").text))
        assert "paid" not in reader.get(f"/ops/keys/{id}").text.partition("Facts")[2]


@pytest.mark.parametrize("kind", [Once, AsyncOnce])
def test_decisions_go_through_the_engine_of_the_app(
    kind: type[Once] | type[AsyncOnce], tmp_path: Path
) -> None:
    """Its subscribers hear of them, and its cache forgets the key."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    store = blocking_store(url)
    keys = SampleKeys(store)
    id, other = keys.unknown("payout", "p-1"), keys.unknown("payout", "p-2")
    store.close()
    once = kind(url)
    events: list[Event] = []
    once.subscribe(events.append)
    app = Dashboard(once, token=TOKEN, by="the night shift")
    with served(app) as address, Reader(address) as reader:
        reader.sign_in()
        assert "Noted under the name <b>the night shift</b>" in reader.get(f"/keys/{id}").text
        reader.confirmed(id, action="failed", message="no", why="asked")
        reader.confirmed(id, why="asked again")
        reader.confirmed(other, action="succeeded", value="7", why="asked")
        page = reader.get(f"/keys/{other}").text
    assert "the night shift succeeded: asked" in page
    assert [event.kind for event in events] == [EventKind.RESOLVED] * 3
    if isinstance(once, Once):
        once.close()
    else:
        asyncio.run(once.close())


def test_what_a_reader_may_see_and_do_can_depend_on_the_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    store = blocking_store(url)
    ids = fill(store)
    store.close()
    app = Dashboard(
        url,
        token=TOKEN,
        authenticate=who,
        read_only=lambda name: name != "ada",
        bodies=lambda name: name == "ada",
    )
    with served(app) as address, Reader(address) as reader:
        pages = {}
        for name in ("ada", "grace"):
            reader.http.headers["x-user"] = name
            pages[name] = reader.get(f"/keys/{ids['failed']}").text
        assert "card number 4242" in pages["ada"]
        assert "card number 4242" not in pages["grace"]
        assert "/confirm" in pages["ada"]
        assert "/confirm" not in pages["grace"]
        refused = reader.post(f"/keys/{ids['failed']}/decide", {"why": "x"})
        assert refused.status_code == 403
        reader.http.headers["x-user"] = "ada"
        reader.confirmed(ids["failed"], why="the card works now", by="somebody else")
        reader.http.headers["x-user"] = ""
        assert reader.get("/").status_code == 403
    store = blocking_store(url)
    SampleKeys(store).claim("refund", "order-1040")
    (past,) = store.history(bytes.fromhex(ids["failed"]))
    seen = run_plan(store, administration.look_at(bytes.fromhex(ids["failed"]), JSON))
    store.close()
    assert past.state is State.FAILED
    assert seen is not None
    assert "ada freed: the card works now" in seen.note, "the name is the one that was verified"


async def who(scope: Any) -> str | None:
    """The app's own authentication."""
    name = dict(scope["headers"]).get(b"x-user")
    return name.decode() if name else None


def test_an_unknown_key_that_a_claim_gave_up_is_not_shown_as_ended(
    shop: Shop, reader: Reader
) -> None:
    id = shop.keys.given_up("payout", "given-up")
    page = reader.get(f"/keys/{id}").text
    assert 'class="state unknown"' in page
    assert "<dt>Ended</dt>" not in page
    assert "<dt>Lease until</dt>" in page
    assert "<dt>Value</dt>" not in page


def test_a_child_key_is_shown_in_every_form_that_a_service_may_have_got(
    shop: Shop, reader: Reader
) -> None:
    held = shop.keys.claim("payout", "every-form", lease=1)
    shop.keys.step(held, "pay", False, pack_step({"key": "ok1-7"}))  # by an older release
    page = html.unescape(reader.get(f"/keys/{held[0].hex()}").text)
    assert "<pre>ok1-7</pre>" in page
    assert '<pre>"ok1-7"</pre>' in page
    assert "UUIDs" not in page
    shop.keys.step(held, "pay", False, pack_step(intent_facts("ok1-7", UUID(int=7))))
    page = html.unescape(reader.get(f"/keys/{held[0].hex()}").text)
    assert "<pre>ok1-7</pre>" in page
    assert f"<pre>{UUID(int=7)}</pre>" in page
