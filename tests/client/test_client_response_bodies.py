"""Bodies of responses: read up to a limit before the caller gets them, and never changed."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import requests
from tests.client.clients import HttpxClient, RequestsClient, open_client
from tests.client.fake_retry_clock import SECOND
from tests.client.scripted_server import (
    Action,
    CutBody,
    Respond,
    RespondSlowly,
    scripted_server,
)

from oncekey.client import AsyncIdempotentTransport, Journal, RetriesExhausted, Retry, delivery_of
from oncekey.client.journal import EntryHandle

PLAIN = b"some plain text, " * 50
PACKED = Respond(201, gzip.compress(PLAIN), {"Content-Encoding": "gzip"})
LARGE = Respond(200, bytes(range(256)) * 2_000)  # 512,000 bytes


def test_an_encoded_response_is_decoded_once(client_name: str) -> None:
    with scripted_server(CutBody(20, PACKED), PACKED) as server, open_client(client_name) as client:
        got = client.post(server.url)
    assert got.content == PLAIN
    assert got.headers["Content-Encoding"] == "gzip"
    assert len(server.received) == 2


def test_raw_bytes_of_an_encoded_response_stay_encoded() -> None:
    with scripted_server(PACKED, PACKED) as server:
        with open_client("httpx") as client:
            assert isinstance(client, HttpxClient)
            with client.httpx_client.stream("POST", server.url) as response:
                assert b"".join(response.iter_raw()) == PACKED.body
        with open_client("requests") as other:
            assert isinstance(other, RequestsClient)
            with other.session.post(server.url, stream=True) as answer:
                assert answer.raw.read(decode_content=False) == PACKED.body


@pytest.mark.parametrize("chunked", [False, True])
def test_a_response_up_to_buffer_max_is_retried_if_it_breaks_off(
    client_name: str, chunked: bool
) -> None:
    answer = Respond(body=LARGE.body, chunked=chunked)
    with (
        scripted_server(CutBody(300_000, answer), answer) as server,
        open_client(client_name, buffer_max=len(answer.body)) as client,
    ):
        got = client.post(server.url)
    assert got.content == answer.body
    assert got.delivery is not None
    assert got.delivery.attempts == 2


@pytest.mark.parametrize("chunked", [False, True])
def test_a_response_beyond_buffer_max_streams_and_is_not_retried(
    client_name: str, chunked: bool
) -> None:
    answer = Respond(body=LARGE.body, chunked=chunked)
    with (
        scripted_server(answer, CutBody(300_000, answer)) as server,
        open_client(client_name, buffer_max=1_000) as client,
    ):
        got = client.post(server.url)
        with pytest.raises((httpx.RemoteProtocolError, requests.exceptions.ChunkedEncodingError)):
            client.post(server.url)
    assert got.content == answer.body
    assert client.clock.slept == []
    assert len(server.received) == 2


def test_a_response_beyond_buffer_max_is_given_before_its_end() -> None:
    slow = RespondSlowly(2_000, LARGE)
    with scripted_server(slow) as server, open_client("httpx", buffer_max=1_000) as client:
        assert isinstance(client, HttpxClient)
        with client.httpx_client.stream("POST", server.url) as response:
            assert delivery_of(response) is not None
            parts = response.iter_raw()
            begun = next(parts)
            assert LARGE.body.startswith(begun)
            slow.proceed.set()
            assert begun + b"".join(parts) == LARGE.body


def test_a_response_beyond_buffer_max_may_be_left_unread(client_name: str) -> None:
    """Its connection is closed, and the next request gets another one."""
    with (
        scripted_server(LARGE, Respond()) as server,
        open_client(client_name, buffer_max=1_000) as client,
    ):
        if isinstance(client, HttpxClient):
            with client.httpx_client.stream("POST", server.url) as response:
                assert response.status_code == 200
        elif isinstance(client, RequestsClient):
            with client.session.post(server.url, stream=True) as answer:
                assert answer.status_code == 200
        else:
            _leave_unread(client, server.url)
        assert client.post(server.url).content == b"done"


def _leave_unread(client: Any, url: str) -> None:
    async def leave() -> None:
        async with client.httpx_client.stream("POST", url) as response:
            assert response.status_code == 200

    client.runner.run(leave())


def test_a_retried_response_beyond_buffer_max_has_no_body(client_name: str) -> None:
    refusal = Respond(503, LARGE.body, {"Content-Encoding": "gzip"})
    with (
        scripted_server(refusal, refusal) as server,
        open_client(client_name, buffer_max=1_000, retry=Retry(attempts=2)) as client,
        pytest.raises(RetriesExhausted) as caught,
    ):
        client.post(server.url)
    assert (caught.value.last, caught.value.response.content) == (503, b"")


ONLY_ONE = httpx.Limits(max_connections=1)
ONE_CONNECTION: dict[str, Callable[[], dict[str, Any]]] = {
    "httpx": lambda: {"inner": httpx.HTTPTransport(verify=False, limits=ONLY_ONE)},
    "httpx-async": lambda: {"inner": httpx.AsyncHTTPTransport(verify=False, limits=ONLY_ONE)},
    "requests": lambda: {"pool_maxsize": 1, "pool_block": True},
}


@pytest.mark.parametrize("act", [Respond(503, LARGE.body), CutBody(500), CutBody(500, reset=True)])
def test_a_retried_response_returns_its_connection(client_name: str, act: Action) -> None:
    """The pool has one connection only, so the retry would hang without it."""
    options = ONE_CONNECTION[client_name]()
    with (
        scripted_server(act, Respond()) as server,
        open_client(client_name, buffer_max=1_000, **options) as client,
    ):
        assert client.post(server.url).content == b"done"


def test_a_retried_response_that_cannot_be_decoded_is_on_the_error(client_name: str) -> None:
    refusal = Respond(503, b"not packed at all", {"Content-Encoding": "gzip", "X-Why": "load"})
    with (
        scripted_server(refusal) as server,
        open_client(client_name, retry=Retry(attempts=1)) as client,
        pytest.raises(RetriesExhausted) as caught,
    ):
        client.post(server.url)
    assert caught.value.last == 503
    assert caught.value.response.headers["X-Why"] == "load"


@pytest.mark.parametrize("how", ["read", "read1", "readinto"])
def test_requests_can_read_a_streamed_rest_in_every_way(how: str) -> None:
    with scripted_server(LARGE) as server, open_client("requests", buffer_max=1_000) as client:
        assert isinstance(client, RequestsClient)
        with client.session.post(server.url, stream=True) as answer:
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


def test_a_response_to_a_method_without_a_key_is_not_buffered(client_name: str) -> None:
    slow = RespondSlowly(2_000, LARGE)
    with scripted_server(slow) as server, open_client(client_name) as client:
        first = _first_part(client, "GET", server.url, slow)
    assert LARGE.body.startswith(first)


def test_without_retries_a_response_is_not_buffered(client_name: str) -> None:
    slow = RespondSlowly(2_000, LARGE)
    with scripted_server(slow) as server, open_client(client_name, retry=None) as client:
        first = _first_part(client, "POST", server.url, slow)
    assert LARGE.body.startswith(first)


def _first_part(client: Any, method: str, url: str, slow: RespondSlowly) -> bytes:
    """The first bytes, read while the server has not sent the rest."""

    async def later() -> bytes:
        async with client.httpx_client.stream(method, url) as response:
            first: bytes = await anext(response.aiter_raw(100))
            slow.proceed.set()
        return first

    if isinstance(client, HttpxClient):
        with client.httpx_client.stream(method, url) as response:
            first = next(response.iter_raw(100))
            slow.proceed.set()
        return first
    if isinstance(client, RequestsClient):
        with client.session.request(method, url, stream=True) as answer:
            part: bytes = answer.raw.read(100)
            slow.proceed.set()
        return part
    found: bytes = client.runner.run(later())
    return found


def test_a_response_that_stops_halfway_ends_at_the_deadline(client_name: str) -> None:
    """The test does not sleep: the clock jumps when the server has stopped sending."""
    slow = RespondSlowly(2_000, LARGE)
    with (
        scripted_server(slow) as server,
        open_client(client_name, retry=Retry(deadline="1h")) as client,
    ):
        now = client.clock.now

        def jumping() -> int:
            if server.received:
                assert slow.arrived.wait(60)
                return now() + 2 * 3_600 * SECOND
            return now()

        client.clock.now = jumping  # type: ignore[method-assign]
        with pytest.raises(RetriesExhausted, match="no answer in time") as caught:
            client.post(server.url, timeout=None)
    assert not caught.value.safe_new_key


# --- responses that the caller never gets --------------------------------------------------------


class Broken(RuntimeError):
    pass


def test_a_response_is_closed_if_closing_its_entry_fails(
    client_name: str, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is still streaming, and holds the only connection."""

    def close(*args: Any, **named: Any) -> None:
        raise Broken

    options: dict[str, Any] = {"pool_maxsize": 1, "pool_block": True}
    only = httpx.Limits(max_connections=1)
    if client_name == "httpx":
        options = {"inner": httpx.HTTPTransport(verify=False, limits=only)}
    elif client_name == "httpx-async":
        options = {"inner": httpx.AsyncHTTPTransport(verify=False, limits=only)}
    options |= {"journal": journal, "buffer_max": 1_000}
    with scripted_server(LARGE, Respond()) as server, open_client(client_name, **options) as client:
        with monkeypatch.context() as patched:
            patched.setattr(EntryHandle, "close", close)
            with pytest.raises(Broken):
                client.post(server.url)
        assert client.post(server.url, timeout=60).content == b"done"


def test_a_response_is_closed_if_it_is_cancelled_while_its_entry_closes(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, proceed = threading.Event(), threading.Event()
    original = EntryHandle.close

    def close(*args: Any, **named: Any) -> None:
        closing.set()
        assert proceed.wait(60)
        original(*args, **named)

    async def ask(url: str) -> list[bool]:
        inner = httpx.AsyncHTTPTransport(verify=False)
        transport = AsyncIdempotentTransport(inner, journal=journal, buffer_max=1_000)
        async with httpx.AsyncClient(transport=transport) as client:
            task = asyncio.create_task(client.post(url))
            await asyncio.to_thread(closing.wait, 60)
            task.cancel()
            proceed.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            return [connection.is_closed() for connection in inner._pool.connections]

    monkeypatch.setattr(EntryHandle, "close", close)
    with scripted_server(LARGE) as server:
        assert all(asyncio.run(ask(server.url)))
