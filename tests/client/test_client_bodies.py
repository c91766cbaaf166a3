"""Bodies, both ways: read inside the retries as far as they can be held, and never changed."""

from __future__ import annotations

import asyncio
import gzip
import io
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
import requests
from tests.client.callers import HttpxCaller, RequestsCaller, calling
from tests.client.fake_time import SECOND
from tests.client.scripted import Act, Answer, Cut, Drop, Slow, serving

from oncekey.client import AsyncIdempotentTransport, NotSent, RetriesExhausted, Retry, delivery_of

PLAIN = b"as it was said, " * 50
PACKED = Answer(201, gzip.compress(PLAIN), {"Content-Encoding": "gzip"})
LARGE = Answer(200, bytes(range(256)) * 2_000)  # 512,000 bytes


# --- answers --------------------------------------------------------------------------------------


def test_an_encoded_answer_is_decoded_once(name: str) -> None:
    with serving(Cut(20, PACKED), PACKED) as server, calling(name) as caller:
        got = caller.post(server.url)
    assert got.content == PLAIN
    assert got.headers["Content-Encoding"] == "gzip"
    assert len(server.seen) == 2


def test_raw_bytes_stay_raw() -> None:
    with serving(PACKED, PACKED) as server:
        with calling("httpx") as caller:
            assert isinstance(caller, HttpxCaller)
            with caller.client.stream("POST", server.url) as response:
                assert b"".join(response.iter_raw()) == PACKED.body
        with calling("requests") as other:
            assert isinstance(other, RequestsCaller)
            with other.session.post(server.url, stream=True) as answer:
                assert answer.raw.read(decode_content=False) == PACKED.body


@pytest.mark.parametrize("chunked", [False, True])
def test_up_to_the_limit_an_answer_is_protected(name: str, chunked: bool) -> None:
    answer = Answer(body=LARGE.body, chunked=chunked)
    with (
        serving(Cut(300_000, answer), answer) as server,
        calling(name, buffer_max=len(answer.body)) as caller,
    ):
        got = caller.post(server.url)
    assert got.content == answer.body
    assert got.delivery is not None
    assert got.delivery.attempts == 2


@pytest.mark.parametrize("chunked", [False, True])
def test_beyond_the_limit_the_rest_flows_on_unprotected(name: str, chunked: bool) -> None:
    answer = Answer(body=LARGE.body, chunked=chunked)
    with serving(answer, Cut(300_000, answer)) as server, calling(name, buffer_max=1_000) as caller:
        got = caller.post(server.url)
        with pytest.raises((httpx.RemoteProtocolError, requests.exceptions.ChunkedEncodingError)):
            caller.post(server.url)
    assert got.content == answer.body
    assert caller.time.slept == []
    assert len(server.seen) == 2


def test_the_rest_is_not_waited_for() -> None:
    slow = Slow(2_000, LARGE)
    with serving(slow) as server, calling("httpx", buffer_max=1_000) as caller:
        assert isinstance(caller, HttpxCaller)
        with caller.client.stream("POST", server.url) as response:
            assert delivery_of(response) is not None
            parts = response.iter_raw()
            begun = next(parts)
            assert LARGE.body.startswith(begun)
            slow.go.set()
            assert begun + b"".join(parts) == LARGE.body


def test_the_rest_may_be_left_unread(name: str) -> None:
    """Its connection cannot be used again, and nothing of it is left behind."""
    with serving(LARGE, Answer()) as server, calling(name, buffer_max=1_000) as caller:
        if isinstance(caller, HttpxCaller):
            with caller.client.stream("POST", server.url) as response:
                assert response.status_code == 200
        elif isinstance(caller, RequestsCaller):
            with caller.session.post(server.url, stream=True) as answer:
                assert answer.status_code == 200
        else:
            _leave_unread(caller, server.url)
        assert caller.post(server.url).content == b"done"


def _leave_unread(caller: Any, url: str) -> None:
    async def leave() -> None:
        async with caller.client.stream("POST", url) as response:
            assert response.status_code == 200

    caller.runner.run(leave())


def test_a_refusal_too_large_to_hold_is_given_up(name: str) -> None:
    refusal = Answer(503, LARGE.body, {"Content-Encoding": "gzip"})
    with (
        serving(refusal, refusal) as server,
        calling(name, buffer_max=1_000, retry=Retry(attempts=2)) as caller,
        pytest.raises(RetriesExhausted) as caught,
    ):
        caller.post(server.url)
    assert (caught.value.last, caught.value.response.content) == (503, b"")


ONLY_ONE = httpx.Limits(max_connections=1)
ONE_CONNECTION: dict[str, Callable[[], dict[str, Any]]] = {
    "httpx": lambda: {"inner": httpx.HTTPTransport(verify=False, limits=ONLY_ONE)},
    "httpx-async": lambda: {"inner": httpx.AsyncHTTPTransport(verify=False, limits=ONLY_ONE)},
    "requests": lambda: {"pool_maxsize": 1, "pool_block": True},
}


@pytest.mark.parametrize("act", [Answer(503, LARGE.body), Cut(500), Cut(500, reset=True)])
def test_what_is_given_up_gives_its_connection_back(name: str, act: Act) -> None:
    """There is only one to be had, and whoever waits for it waits long."""
    options = ONE_CONNECTION[name]()
    with serving(act, Answer()) as server, calling(name, buffer_max=1_000, **options) as caller:
        assert caller.post(server.url).content == b"done"


def test_a_refusal_that_cannot_be_decoded_is_still_handed_over(name: str) -> None:
    refusal = Answer(503, b"not packed at all", {"Content-Encoding": "gzip", "X-Why": "load"})
    with (
        serving(refusal) as server,
        calling(name, retry=Retry(attempts=1)) as caller,
        pytest.raises(RetriesExhausted) as caught,
    ):
        caller.post(server.url)
    assert caught.value.last == 503
    assert caught.value.response.headers["X-Why"] == "load"


@pytest.mark.parametrize("how", ["read", "read1", "readinto"])
def test_the_rest_can_be_read_in_every_way(how: str) -> None:
    with serving(LARGE) as server, calling("requests", buffer_max=1_000) as caller:
        assert isinstance(caller, RequestsCaller)
        with caller.session.post(server.url, stream=True) as answer:
            raw = answer.raw
            got = b""
            if how == "read":
                got = raw.read()
            elif how == "read1":
                while part := raw.read1(70_000):
                    got += part
            else:
                buffer = bytearray(70_000)
                while count := raw.readinto(buffer):
                    got += buffer[:count]
    assert got == LARGE.body


def test_what_is_not_guarded_is_not_held(name: str) -> None:
    slow = Slow(2_000, LARGE)
    with serving(slow) as server, calling(name) as caller:
        first = _first_part(caller, "GET", server.url, slow)
    assert LARGE.body.startswith(first)


def test_without_retries_an_answer_is_not_held(name: str) -> None:
    slow = Slow(2_000, LARGE)
    with serving(slow) as server, calling(name, retry=None) as caller:
        first = _first_part(caller, "POST", server.url, slow)
    assert LARGE.body.startswith(first)


def _first_part(caller: Any, method: str, url: str, slow: Slow) -> bytes:
    """What can be read while the server has not sent the rest."""

    async def later() -> bytes:
        async with caller.client.stream(method, url) as response:
            first: bytes = await anext(response.aiter_raw(100))
            slow.go.set()
        return first

    if isinstance(caller, HttpxCaller):
        with caller.client.stream(method, url) as response:
            first = next(response.iter_raw(100))
            slow.go.set()
        return first
    if isinstance(caller, RequestsCaller):
        with caller.session.request(method, url, stream=True) as answer:
            part: bytes = answer.raw.read(100)
            slow.go.set()
        return part
    found: bytes = caller.runner.run(later())
    return found


def test_an_answer_that_stops_halfway_is_cut_at_the_deadline(name: str) -> None:
    """Nothing sleeps: the clock jumps when the server has stopped."""
    slow = Slow(2_000, LARGE)
    with serving(slow) as server, calling(name, retry=Retry(deadline="1h")) as caller:
        now = caller.time.now

        def jumping() -> int:
            if server.seen:
                assert slow.here.wait(10)
                return now() + 2 * 3_600 * SECOND
            return now()

        caller.time.now = jumping  # type: ignore[method-assign]
        with pytest.raises(RetriesExhausted, match="no answer in time") as caught:
            caller.post(server.url, timeout=None)
    assert not caught.value.safe_new_key


# --- requests -------------------------------------------------------------------------------------


def parts() -> Iterator[bytes]:
    yield b"first, "
    yield b"second"


async def later_parts() -> AsyncIterator[bytes]:
    for part in parts():
        yield part


SENT = b"first, second"


@pytest.mark.parametrize("kind", ["bytes", "text", "iterator", "file"])
def test_a_body_of_any_kind_is_sent_again_as_it_was(name: str, kind: str) -> None:
    body: Any = {
        "bytes": SENT,
        "text": SENT.decode(),
        "iterator": later_parts() if name == "httpx-async" else parts(),
        "file": SENT if name == "httpx-async" else io.BytesIO(SENT),
    }[kind]
    with serving(Drop(), Answer(503), Answer()) as server, calling(name) as caller:
        assert caller.post(server.url, body=body).status == 200
    assert [seen.body for seen in server.seen] == [SENT] * 3
    assert len(set(server.keys)) == 1
    framing = [bool(seen.all("Transfer-Encoding")) for seen in server.seen]
    assert len(set(framing)) == 1


def test_a_file_is_read_from_where_it_stands() -> None:
    file = io.BytesIO(b"not this" + SENT)
    file.seek(8)
    with serving(Drop(), Answer()) as server, calling("requests") as caller:
        caller.post(server.url, body=file)
    assert [seen.body for seen in server.seen] == [SENT] * 2


@pytest.mark.parametrize("kind", ["bytes", "iterator"])
def test_a_body_too_large_to_hold_is_refused_before_anything_is_sent(name: str, kind: str) -> None:
    iterator = later_parts() if name == "httpx-async" else parts()
    body: Any = SENT if kind == "bytes" else iterator
    with serving(Answer()) as server, calling(name, body_max=len(SENT) - 1) as caller:
        with pytest.raises(NotSent, match="body_max"):
            caller.post(server.url, body=body)
        assert server.seen == []
        assert caller.post(server.url, body=SENT[:-1]).status == 200


def test_a_body_at_the_limit_is_sent(name: str) -> None:
    iterator = later_parts() if name == "httpx-async" else parts()
    with serving(Answer()) as server, calling(name, body_max=len(SENT)) as caller:
        assert caller.post(server.url, body=iterator).status == 200


def test_a_form_with_a_file_is_sent_again_as_it_was() -> None:
    with serving(Drop(), Answer()) as server, calling("httpx") as caller:
        assert isinstance(caller, HttpxCaller)
        caller.client.post(server.url, files={"f": ("a.txt", b"content")}, data={"a": "b"})
    first, again = server.seen
    assert first.body == again.body
    assert first.all("Content-Type") == again.all("Content-Type")
    assert b"content" in first.body


# --- what sends on --------------------------------------------------------------------------------


def test_a_redirect_takes_the_key_along(name: str) -> None:
    away = Answer(307, b"", {"Location": "/there"})
    with serving(away, Drop(), Answer()) as server, calling(name) as caller:
        if isinstance(caller, RequestsCaller):
            got = caller.session.post(server.url, data=io.BytesIO(SENT))
            assert got.status_code == 200
        else:
            caller.client.follow_redirects = True
            assert caller.post(server.url, body=SENT).status == 200
    assert [seen.target for seen in server.seen] == ["/", "/there", "/there"]
    assert [seen.body for seen in server.seen] == [SENT] * 3
    assert len(set(server.keys)) == 1


def test_logging_in_on_demand_takes_the_key_along(name: str) -> None:
    asks = {"WWW-Authenticate": 'Digest realm="shop", nonce="abc", qop="auth"'}
    with serving(Answer(401, b"", asks), Answer()) as server, calling(name) as caller:
        if isinstance(caller, RequestsCaller):
            caller.session.auth = requests.auth.HTTPDigestAuth("jo", "pw")
        else:
            caller.client.auth = httpx.DigestAuth("jo", "pw")
        assert caller.post(server.url).status == 200
    assert len(set(server.keys)) == 1
    assert [bool(seen.all("Authorization")) for seen in server.seen] == [False, True]


def test_cookies_of_an_answer_reach_the_session(name: str) -> None:
    with serving(Answer(headers={"Set-Cookie": "a=1"})) as server, calling(name) as caller:
        caller.post(server.url)
        if isinstance(caller, RequestsCaller):
            assert caller.session.cookies["a"] == "1"
        else:
            assert caller.client.cookies["a"] == "1"


def test_an_async_transport_takes_what_both_colours_can_read() -> None:
    seen: list[bytes] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        seen.append(await request.aread())
        return httpx.Response(503 if len(seen) == 1 else 200, headers={"Retry-After": "0"})

    async def ask() -> None:
        transport = AsyncIdempotentTransport(
            httpx.MockTransport(answer), retry=Retry(base="1ms", cap="1ms")
        )
        async with httpx.AsyncClient(transport=transport) as client:
            await client.post("http://shop/", files={"f": ("a.txt", b"content")})

    asyncio.run(ask())
    first, again = seen
    assert first == again
    assert b"content" in first
