"""The deadline inside a try: a whole response is kept even if it is late, the rest of a late one is
not waited for, and a body that streams to the caller is read with the caller's own timeout."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest
import urllib3
from tests.client.clients import RequestsClient, open_client
from tests.client.fake_retry_clock import SECOND, FakeRetryClock
from tests.client.scripted_server import Hang, Respond, RespondSlowly, scripted_server

from oncekey.client import (
    AsyncIdempotentTransport,
    IdempotentTransport,
    RetriesExhausted,
    Retry,
)
from oncekey.client.body_reader import BodyBuffer, ReadDeadline
from oncekey.client.requests import bodies
from oncekey.client.requests.request import read_timeout_of

LARGE = Respond(200, b"x" * 200_000)

# --- late responses -------------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [False, True])
def test_a_whole_response_counts_however_late(client_name: str, chunked: bool) -> None:
    """The host slept for a night, so the deadline has passed before anything is read."""
    whole = RespondSlowly(1_000, Respond(201, b"made", chunked=chunked))
    with (
        scripted_server(whole) as server,
        open_client(client_name, retry=Retry(deadline="1h")) as client,
    ):
        now = client.clock.now

        def overnight() -> int:
            if server.received:
                assert whole.arrived.wait(60)
                return now() + 12 * 3_600 * SECOND
            return now()

        client.clock.now = overnight  # type: ignore[method-assign]
        got = client.post(server.url, timeout=None)
    assert (got.status, got.content) == (201, b"made")
    assert got.delivery is not None
    assert (got.delivery.attempts, got.delivery.conclusive) == (1, True)


class TwoTimesClock:
    """A clock whose readings are before the deadline of 10 or at it."""

    def __init__(self, *late: bool) -> None:
        self._late = list(late)

    def now(self) -> int:
        return 10 if self._late.pop(0) else 0


def body_buffer(headers: dict[str, str], *late: bool) -> BodyBuffer:
    clock: Any = TwoTimesClock(*late)
    return BodyBuffer(100, ReadDeadline(clock, 10, httpx.ReadTimeout), headers)


def test_body_buffer_raises_after_the_deadline_if_more_is_to_come() -> None:
    buffer = body_buffer({"Content-Length": "4"}, False, False, True)
    assert not buffer.overflows_with(b"ab")
    with pytest.raises(httpx.ReadTimeout, match="deadline"):
        buffer.overflows_with(b"c")


def test_body_buffer_keeps_a_body_that_ends_after_the_deadline() -> None:
    buffer = body_buffer({"Content-Length": "4"}, False, False, True)
    assert not buffer.overflows_with(b"ab")
    assert not buffer.overflows_with(b"cd")
    assert buffer.content() == b"abcd"


def test_body_buffer_allows_one_more_read_of_a_body_without_a_length() -> None:
    buffer = body_buffer({"Transfer-Encoding": "chunked", "Content-Length": "9"}, False, True)
    assert not buffer.overflows_with(b"ab")  # the body may end here
    with pytest.raises(httpx.ReadTimeout):
        buffer.overflows_with(b"cd")


def test_body_buffer_that_began_after_the_deadline_reads_on() -> None:
    buffer = body_buffer({"Content-Length": "4"}, True)
    assert not buffer.overflows_with(b"a")
    assert not buffer.overflows_with(b"bcd")


# --- requests: the socket's timeout ---------------------------------------------------------------


def _watch(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    seen: list[float | None] = []
    original = bodies._set_timeout

    def watched(raw: Any, seconds: float | None) -> None:
        seen.append(seconds)
        original(raw, seconds)

    monkeypatch.setattr(bodies, "_set_timeout", watched)
    return seen


@pytest.mark.parametrize(("timeout", "most"), [(None, 60.0), (50, 50.0), ((1, 90), 60.0)])
def test_requests_read_timeout_ends_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch, timeout: Any, most: float
) -> None:
    seen = _watch(monkeypatch)
    with scripted_server(LARGE) as server, open_client("requests") as client:
        assert client.post(server.url, timeout=timeout).content == LARGE.body
    assert len(seen) > 1
    assert set(seen) == {most}


@pytest.mark.parametrize("timeout", [None, 70, urllib3.Timeout(connect=1, read=90)])
def test_requests_streams_a_large_body_with_the_callers_timeout(
    monkeypatch: pytest.MonkeyPatch, timeout: Any
) -> None:
    seen = _watch(monkeypatch)
    slow = RespondSlowly(2_000, LARGE)
    retry = Retry(deadline="50s")
    with (
        scripted_server(slow) as server,
        open_client("requests", buffer_max=1_000, retry=retry) as client,
    ):
        assert isinstance(client, RequestsClient)
        with client.session.post(server.url, stream=True, timeout=timeout) as response:
            head: Any = response.raw._original_response
            assert head.socket.gettimeout() == read_timeout_of(timeout)
            slow.proceed.set()
            assert response.content == LARGE.body
    assert seen[0] == 50.0
    assert seen[-1] == read_timeout_of(timeout)


def test_requests_does_not_change_the_timeout_of_a_returned_connection() -> None:
    """Another request may be using the connection by then."""
    with scripted_server(LARGE) as server, open_client("requests") as client:
        got = client.post(server.url)
        head = got.response.raw._original_response
        before = head.socket.gettimeout()
        bodies._set_timeout(got.response.raw, 0.5)
        assert head.socket.gettimeout() == before != 0.5


def test_read_timeout_of_every_form_of_timeout() -> None:
    assert read_timeout_of(None) is None
    assert read_timeout_of(3) == 3
    assert read_timeout_of((1, 2)) == 2
    assert read_timeout_of(urllib3.Timeout(connect=1, read=2)) == 2
    assert read_timeout_of(urllib3.Timeout(connect=1)) is None


def test_requests_waits_for_a_connection_until_the_deadline() -> None:
    hung = Hang()
    one = {"pool_maxsize": 1, "pool_block": True, "retry": Retry(attempts=1, deadline="50ms")}
    with scripted_server(hung) as server, open_client("requests", **one) as client:
        assert isinstance(client, RequestsClient)
        # A GET has no deadline here, and keeps the only connection.
        other = threading.Thread(target=client.session.get, args=(server.url,))
        other.start()
        assert hung.arrived.wait(60)
        with pytest.raises(RetriesExhausted, match="no connection became free") as caught:
            client.post(server.url)
        hung.proceed.set()
        other.join(60)
    assert caught.value.safe_new_key


# --- httpx ----------------------------------------------------------------------------------------


def test_httpx_streams_a_large_body_with_the_callers_timeout() -> None:
    seen: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        timeouts = request.extensions["timeout"]
        seen.append((timeouts, timeouts.get("read")))
        return httpx.Response(200, content=LARGE.body)

    transport = IdempotentTransport(
        httpx.MockTransport(answer),
        clock=FakeRetryClock(),
        retry=Retry(deadline="50s"),
        buffer_max=1_000,
    )
    with httpx.Client(transport=transport, timeout=90) as client:
        assert client.post("http://shop/").content == LARGE.body
    ((timeouts, at_first),) = seen
    assert (at_first, timeouts.get("read"), timeouts["write"]) == (50.0, 90, 90)


def test_async_httpx_reads_a_body_with_the_callers_timeout() -> None:
    """A cancel scope keeps the deadline; httpx reads its own timeout once, when the body begins."""
    reads: list[Any] = []

    class Body(httpx.AsyncByteStream):
        def __init__(self, timeouts: Any) -> None:
            self.timeouts = timeouts

        async def __aiter__(self) -> Any:
            reads.append(self.timeouts.get("read"))
            yield b"x"

    def answer(request: httpx.Request) -> httpx.Response:
        reads.append(request.extensions["timeout"].get("read"))
        return httpx.Response(200, stream=Body(request.extensions["timeout"]))

    async def ask() -> None:
        transport = AsyncIdempotentTransport(
            httpx.MockTransport(answer), retry=Retry(deadline="50s")
        )
        async with httpx.AsyncClient(transport=transport, timeout=None) as client:
            await client.post("http://shop/")

    asyncio.run(ask())
    assert reads[0] is not None
    assert reads[1] is None
