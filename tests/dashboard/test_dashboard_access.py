"""Who gets in, and what every request has to pass: tokens, cookies, forms, hosts and sizes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from tests.dashboard.reader import Reader
from tests.dashboard.sample_keys import fill
from tests.dashboard.served_dashboard import TOKEN, served

from oncekey import AsyncOnce
from oncekey.core.errors import ConfigurationError
from oncekey.dashboard import Dashboard
from oncekey.dashboard.access import (
    ADDRESSES_MAX,
    CODE_SECONDS,
    CODES_MAX,
    HELD_MAX,
    PAUSE_SECONDS,
    REVOKED_MAX,
    SIGN_IN_SECONDS,
    WRONG_TOKENS_MAX,
    WRONG_TOKENS_SECONDS,
    Access,
    HeldAnswers,
    TooManyTries,
)
from oncekey.dashboard.request_checks import FORM_BODY_MAX_BYTES, LOOPBACK_HOSTS, QUERY_MAX_BYTES
from oncekey.engine.store_urls import blocking_store

PAGES = ["/", "/keys", f"/keys/{'0' * 32}"]


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def access(clock: Clock) -> Access:
    return Access(TOKEN, clock)


# --- the rules ------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "x" * 15, "x" * 513, None, 17])
def test_a_dashboard_without_a_good_token_is_not_made(token: Any) -> None:
    with pytest.raises(ConfigurationError, match="16 to 512 characters"):
        Dashboard("memory://", token=token)


def test_a_missing_package_is_named_with_the_line_that_installs_it() -> None:
    script = "import sys; sys.modules['jinja2'] = None; import oncekey.dashboard"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "the dashboard needs jinja2, which is not installed: pip install" in done.stderr


def test_a_cookie_ends_and_only_its_signer_accepts_it(access: Access, clock: Clock) -> None:
    cookie = access.sign_in(TOKEN, "a")
    assert cookie is not None
    assert access.is_cookie(cookie)
    assert Access(TOKEN, clock).is_cookie(cookie), "another process of the same app"
    assert not Access(TOKEN + "x", clock).is_cookie(cookie)
    head, _, signature = cookie.partition(".")
    assert not access.is_cookie(f"{int(head) + 1}.{signature}")
    for wrong in ("", ".", "..", "é.ü.ö", "1.2.3", cookie + "0", "\udcff.x"):
        assert not access.is_cookie(wrong)
    clock.now += SIGN_IN_SECONDS
    assert not access.is_cookie(cookie)


def test_a_form_token_belongs_to_one_cookie(access: Access) -> None:
    mine, other = access.new_cookie(), access.new_cookie()
    assert access.is_form_token(mine, access.form_token(mine))
    assert not access.is_form_token(mine, access.form_token(other))
    assert not access.is_form_token(mine, "")


def test_a_code_signs_in_once_and_not_for_long(access: Access, clock: Clock) -> None:
    code = access.new_code()
    assert access.redeem(code, "a") is not None
    assert access.redeem(code, "a") is None
    late = access.new_code()
    clock.now += CODE_SECONDS
    assert access.redeem(late, "a") is None
    codes = [access.new_code() for _ in range(CODES_MAX + 1)]
    assert access.redeem(codes[0], "b") is None, "only so many are kept"
    assert access.redeem(codes[1], "b") is not None


def test_wrong_tokens_of_an_address_are_limited_and_the_right_one_is_not(
    access: Access, clock: Clock
) -> None:
    for _ in range(WRONG_TOKENS_MAX):
        assert access.sign_in("wrong", "office") is None
    for _ in range(3):
        with pytest.raises(TooManyTries):
            access.sign_in("wrong", "office")
        with pytest.raises(TooManyTries):
            access.redeem("wrong", "office")
        assert access.sign_in(TOKEN, "office") is not None, "others are behind the same address"
        assert access.redeem(access.new_code(), "office") is not None
    assert access.sign_in("wrong", "elsewhere") is None
    clock.now += WRONG_TOKENS_SECONDS
    assert access.sign_in("wrong", "office") is None


def test_a_refused_token_is_answered_late_but_only_so_many_at_once() -> None:
    async def main() -> None:
        paused: list[float] = []
        gate = asyncio.Event()

        async def sleep(seconds: float) -> None:
            paused.append(seconds)
            await gate.wait()

        held = HeldAnswers(sleep)
        waiting = [asyncio.create_task(held.pause()) for _ in range(HELD_MAX)]
        await asyncio.sleep(0)
        await held.pause()
        assert paused == [PAUSE_SECONDS] * HELD_MAX, "one more did not have to wait"
        gate.set()
        await asyncio.gather(*waiting)
        await held.pause()
        assert len(paused) == HELD_MAX + 1

    asyncio.run(main())


def test_signing_out_ends_one_cookie_and_no_other(access: Access) -> None:
    mine, other = access.new_cookie(), access.new_cookie()
    access.revoke(mine)
    assert not access.is_cookie(mine)
    assert access.is_cookie(other)
    for wrong in ("", "..", "1.2.3", other + "0"):
        access.revoke(wrong)
    assert access.is_cookie(other)


def test_ended_cookies_are_remembered_up_to_a_limit_and_never_valid_again(
    access: Access, clock: Clock
) -> None:
    first = access.new_cookie()
    access.revoke(first)
    clock.now += 1
    for _ in range(REVOKED_MAX):
        access.revoke(access.new_cookie())
    assert len(access._revoked) <= REVOKED_MAX
    assert not access.is_cookie(first), "it was forgotten, and so all that are as old are refused"
    clock.now += 1
    assert access.is_cookie(access.new_cookie())
    clock.now += SIGN_IN_SECONDS
    for _ in range(REVOKED_MAX + 1 - len(access._revoked)):
        access.revoke(access.new_cookie())
    assert len(access._revoked) < REVOKED_MAX, "those that have run out need no memory"


def test_addresses_with_wrong_tokens_are_remembered_up_to_a_limit(access: Access) -> None:
    for number in range(ADDRESSES_MAX + 5):
        access.sign_in("wrong", str(number))
    assert len(access._wrong._tries) == ADDRESSES_MAX


# --- requests -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shop_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('access') / 'shop.db'}"
    blocking_store(url).close()
    return url


@pytest.fixture(scope="module")
def ids(shop_url: str) -> dict[str, str]:
    store = blocking_store(shop_url)
    made = fill(store)
    store.close()
    return made


@pytest.fixture(scope="module")
def app(shop_url: str) -> Dashboard:
    return Dashboard(shop_url, token=TOKEN, hosts=LOOPBACK_HOSTS)


@pytest.fixture(scope="module")
def address(app: Dashboard) -> Iterator[str]:
    with served(app) as at:
        yield at


@pytest.fixture
def stranger(address: str) -> Iterator[Reader]:
    with Reader(address) as reader:
        yield reader


@pytest.fixture
def reader(address: str) -> Iterator[Reader]:
    with Reader(address) as signed_in:
        signed_in.sign_in()
        yield signed_in


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_closed_without_a_token(stranger: Reader, path: str) -> None:
    page = stranger.get(path)
    assert page.status_code == 401
    assert "The dashboard's token" in page.text
    assert stranger.sign_in("not-the-token-at-all").status_code == 401
    assert stranger.get(path).status_code == 401
    assert not stranger.http.cookies


@pytest.mark.parametrize("action", ["confirm", "decide"])
def test_nothing_is_decided_without_a_token(
    stranger: Reader, ids: dict[str, str], action: str
) -> None:
    assert stranger.post(f"/keys/{ids['unknown']}/{action}", {}).status_code == 401


def test_every_response_has_the_headers_that_close_it(stranger: Reader) -> None:
    for path in (*PAGES, "/static/dashboard.css", "/nonsense"):
        headers = stranger.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"


def test_the_cookie_is_for_this_site_and_no_script(stranger: Reader) -> None:
    signed_in = stranger.sign_in()
    assert signed_in.status_code == 303
    cookie = signed_in.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Max-Age=28800" in cookie
    assert stranger.get("/").status_code == 200


def test_the_one_time_link_works_once(app: Dashboard, address: str) -> None:
    path = app.sign_in_path()
    with Reader(address) as first, Reader(address) as second:
        assert first.get(path).status_code == 303
        assert first.get("/").status_code == 200
        used = second.get(path)
        assert used.status_code == 401
        assert "was used already" in used.text


def test_signing_out_takes_the_form_and_ends_the_cookie(reader: Reader, address: str) -> None:
    assert reader.post("/sign-out", {"form_token": ""}).status_code == 403
    token = reader.get("/keys").text.partition('name="form_token" value="')[2].partition('"')[0]
    copied = dict(reader.http.cookies)
    with Reader(address) as other:
        other.sign_in()
        assert reader.post("/sign-out", {"form_token": token}).status_code == 303
        assert reader.get("/").status_code == 401
        reader.http.cookies.update(copied)
        assert reader.get("/").status_code == 401, "a copy of the cookie has ended with it"
        assert other.get("/").status_code == 200


def test_the_right_token_gets_in_after_many_wrong_ones(
    shop_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncekey.dashboard.access.PAUSE_SECONDS", 0)
    with served(Dashboard(shop_url, token=TOKEN)) as address, Reader(address) as reader:
        wrong = [reader.sign_in("wrong") for _ in range(WRONG_TOKENS_MAX + 2)]
        assert [one.status_code for one in wrong] == [401] * WRONG_TOKENS_MAX + [429] * 2
        assert wrong[-1].headers["retry-after"] == str(WRONG_TOKENS_SECONDS)
        assert reader.sign_in().status_code == 303
        assert reader.get("/").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_form_of_another_site_is_refused(
    reader: Reader, ids: dict[str, str], headers: dict[str, str]
) -> None:
    id = ids["unknown"]
    fields = reader.form(id, action="free", by="ada", why="x")
    assert reader.post(f"/keys/{id}/confirm", fields, **headers).status_code == 403
    assert reader.post("/sign-in", {"token": TOKEN}, **headers).status_code == 403


def test_a_form_without_its_token_is_refused(
    reader: Reader, address: str, ids: dict[str, str]
) -> None:
    id = ids["unknown"]
    fields = reader.form(id, action="free", by="ada", why="x")
    with Reader(address) as other:
        other.sign_in()
        foreign = other.form(id)["form_token"]
    for token in ("", "0" * 64, foreign):
        refused = reader.post(f"/keys/{id}/decide", {**fields, "form_token": token})
        assert refused.status_code == 403
        assert "Nothing was changed" in refused.text
    assert 'class="state unknown"' in reader.get(f"/keys/{id}").text


def test_other_host_names_are_refused(reader: Reader) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", ""):
        assert reader.get("/", headers={"Host": host}).status_code == 421
    assert reader.get("/", headers={"Host": "localhost:1"}).status_code in (200, 401)


def test_what_is_too_long_is_refused(reader: Reader, ids: dict[str, str]) -> None:
    assert reader.get(f"/keys?scope={'x' * QUERY_MAX_BYTES}").status_code == 414
    assert reader.get(f"/keys?scope={'x' * 301}").status_code == 400
    id = ids["unknown"]
    body = {"why": "x" * FORM_BODY_MAX_BYTES}
    assert reader.post(f"/keys/{id}/confirm", body).status_code == 413
    many = {f"f{number}": "1" for number in range(31)}
    assert reader.post(f"/keys/{id}/confirm", many).status_code == 400
    assert reader.http.post(f"/keys/{id}/confirm", json={}).status_code == 415
    assert reader.http.put(f"/keys/{id}").status_code == 405


def test_a_read_only_dashboard_has_no_forms_and_takes_none(
    shop_url: str, ids: dict[str, str]
) -> None:
    app = Dashboard(shop_url, token=TOKEN, read_only=True)
    with served(app) as address, Reader(address) as reader:
        reader.sign_in()
        page = ""
        for name in ("unknown", "failed"):
            page = reader.get(f"/keys/{ids[name]}").text
            assert "/confirm" not in page
            assert "This dashboard is read-only" in page
        token = page.partition('name="form_token" value="')[2].partition('"')[0]
        fields = {"form_token": token, "action": "free", "by": "ada", "why": "x"}
        for action in ("confirm", "decide"):
            refused = reader.post(f"/keys/{ids['unknown']}/{action}", fields)
            assert refused.status_code == 403
            assert "read-only" in refused.text


def test_a_store_that_does_not_answer_is_503() -> None:
    app = Dashboard("postgresql://nobody@127.0.0.1:1/none", token=TOKEN)
    with served(app) as address, Reader(address) as reader:
        reader.sign_in()
        page = reader.get("/")
        assert page.status_code == 503
        assert "The store does not answer" in page.text


def test_dashboard_on_trio_says_that_it_needs_asyncio() -> None:
    app = Dashboard(AsyncOnce("memory://"), token=TOKEN)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    for kind in ("lifespan", "http"):
        with pytest.raises(ConfigurationError, match=r"dashboard needs asyncio.*hypercorn"):
            trio.run(app, {"type": kind}, receive, send)
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    assert "hypercorn --worker-class asyncio" in sent[0]["message"]
