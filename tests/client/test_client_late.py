"""The deadline inside a try: what comes late and whole is kept, what is still to come is not waited
for, and what flows on to the caller is read with the caller's own timeout."""

from __future__ import annotations

import asyncio
import io
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import requests
import urllib3
from tests.client.callers import RequestsCaller, calling
from tests.client.fake_time import SECOND, FakeTime
from tests.client.scripted import Answer, Hang, Slow, serving

from oncekey.client import (
    AsyncIdempotentTransport,
    IdempotentAdapter,
    IdempotentTransport,
    Journal,
    NotSent,
    RetriesExhausted,
    Retry,
    delivery_of,
)
from oncekey.client.body_reader import BodyBuffer, ReadDeadline
from oncekey.client.journal import EntryHandle
from oncekey.client.requests import bodies
from oncekey.client.requests.request import read_timeout_of

LARGE = Answer(200, b"x" * 200_000)

# --- whole, but late ------------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [False, True])
def test_a_whole_answer_counts_however_late(name: str, chunked: bool) -> None:
    """As after a night: by the time anything is read, the deadline has long passed."""
    whole = Slow(1_000, Answer(201, b"made", chunked=chunked))
    with serving(whole) as server, calling(name, retry=Retry(deadline="1h")) as caller:
        now = caller.time.now

        def overnight() -> int:
            if server.seen:
                assert whole.here.wait(10)
                return now() + 12 * 3_600 * SECOND
            return now()

        caller.time.now = overnight  # type: ignore[method-assign]
        got = caller.post(server.url, timeout=None)
    assert (got.status, got.content) == (201, b"made")
    assert got.delivery is not None
    assert (got.delivery.attempts, got.delivery.conclusive) == (1, True)


class Timed:
    """A deadline that has passed, from a given reading on."""

    def __init__(self, *late: bool) -> None:
        self._late = list(late)

    def now(self) -> int:
        return 10 if self._late.pop(0) else 0


def body_buffer(headers: dict[str, str], *late: bool) -> BodyBuffer:
    clock: Any = Timed(*late)
    return BodyBuffer(100, ReadDeadline(clock, 10, httpx.ReadTimeout), headers)


def test_a_further_part_is_not_waited_for_after_the_deadline() -> None:
    buffer = body_buffer({"Content-Length": "4"}, False, False, True)
    assert not buffer.overflows_with(b"ab")
    with pytest.raises(httpx.ReadTimeout, match="deadline"):
        buffer.overflows_with(b"c")


def test_but_a_body_that_is_all_there_is_kept() -> None:
    buffer = body_buffer({"Content-Length": "4"}, False, False, True)
    assert not buffer.overflows_with(b"ab")
    assert not buffer.overflows_with(b"cd")
    assert buffer.content() == b"abcd"


def test_where_only_the_end_can_tell_it_is_asked_for_once() -> None:
    buffer = body_buffer({"Transfer-Encoding": "chunked", "Content-Length": "9"}, False, True)
    assert not buffer.overflows_with(b"ab")  # and here it may end
    with pytest.raises(httpx.ReadTimeout):
        buffer.overflows_with(b"cd")


def test_what_is_begun_too_late_is_left_to_the_shortest_timeouts() -> None:
    buffer = body_buffer({"Content-Length": "4"}, True)
    assert not buffer.overflows_with(b"a")
    assert not buffer.overflows_with(b"bcd")


# --- requests: the socket's timeout ---------------------------------------------------------------


def _watch(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    seen: list[float | None] = []
    really = bodies._set_timeout

    def watched(raw: Any, seconds: float | None) -> None:
        seen.append(seconds)
        really(raw, seconds)

    monkeypatch.setattr(bodies, "_set_timeout", watched)
    return seen


@pytest.mark.parametrize(("timeout", "most"), [(None, 60.0), (7, 7.0), ((1, 90), 60.0)])
def test_each_read_of_a_body_ends_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch, timeout: Any, most: float
) -> None:
    seen = _watch(monkeypatch)
    with serving(LARGE) as server, calling("requests") as caller:
        assert caller.post(server.url, timeout=timeout).content == LARGE.body
    assert len(seen) > 1
    assert set(seen) == {most}


@pytest.mark.parametrize("timeout", [None, 7, urllib3.Timeout(connect=1, read=9)])
def test_what_flows_on_is_read_with_the_callers_own_timeout(
    monkeypatch: pytest.MonkeyPatch, timeout: Any
) -> None:
    seen = _watch(monkeypatch)
    slow = Slow(2_000, LARGE)
    retry = Retry(deadline="5s")
    with serving(slow) as server, calling("requests", buffer_max=1_000, retry=retry) as caller:
        assert isinstance(caller, RequestsCaller)
        with caller.session.post(server.url, stream=True, timeout=timeout) as response:
            head: Any = response.raw._original_response
            assert head.socket.gettimeout() == read_timeout_of(timeout)
            slow.go.set()
            assert response.content == LARGE.body
    assert seen[0] == 5.0
    assert seen[-1] == read_timeout_of(timeout)


def test_a_connection_given_back_keeps_its_timeout() -> None:
    """It may be somebody else's by then."""
    with serving(LARGE) as server, calling("requests") as caller:
        got = caller.post(server.url)
        head = got.response.raw._original_response
        before = head.socket.gettimeout()
        bodies._set_timeout(got.response.raw, 0.5)
        assert head.socket.gettimeout() == before != 0.5


def test_the_callers_own_timeout_for_reading() -> None:
    assert read_timeout_of(None) is None
    assert read_timeout_of(3) == 3
    assert read_timeout_of((1, 2)) == 2
    assert read_timeout_of(urllib3.Timeout(connect=1, read=2)) == 2
    assert read_timeout_of(urllib3.Timeout(connect=1)) is None


def test_waiting_for_a_connection_ends_at_the_deadline() -> None:
    hung = Hang()
    one = {"pool_maxsize": 1, "pool_block": True, "retry": Retry(attempts=1, deadline="50ms")}
    with serving(hung) as server, calling("requests", **one) as caller:
        assert isinstance(caller, RequestsCaller)
        # What is not guarded has no deadline, and keeps the only connection.
        other = threading.Thread(target=caller.session.get, args=(server.url,))
        other.start()
        assert hung.here.wait(10)
        with pytest.raises(RetriesExhausted, match="no connection became free") as caught:
            caller.post(server.url)
        hung.go.set()
        other.join(10)
    assert caught.value.safe_new_key


# --- httpx ----------------------------------------------------------------------------------------


def test_httpx_reads_on_with_the_callers_own_timeouts() -> None:
    seen: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        timeouts = request.extensions["timeout"]
        seen.append((timeouts, timeouts.get("read")))
        return httpx.Response(200, content=LARGE.body)

    transport = IdempotentTransport(
        httpx.MockTransport(answer), clock=FakeTime(), retry=Retry(deadline="5s"), buffer_max=1_000
    )
    with httpx.Client(transport=transport, timeout=90) as client:
        assert client.post("http://shop/").content == LARGE.body
    ((timeouts, at_first),) = seen
    assert (at_first, timeouts.get("read"), timeouts["write"]) == (5.0, 90, 90)


def test_on_an_event_loop_a_body_is_read_with_them_from_its_beginning() -> None:
    """It is cut from outside; httpx takes up its timeout once, where the body begins."""
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
            httpx.MockTransport(answer), retry=Retry(deadline="5s")
        )
        async with httpx.AsyncClient(transport=transport, timeout=None) as client:
            await client.post("http://shop/")

    asyncio.run(ask())
    assert reads[0] is not None
    assert reads[1] is None


# --- what the caller never gets -------------------------------------------------------------------


class Broken(RuntimeError):
    pass


def test_a_response_that_nobody_gets_is_closed(
    name: str, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It flows still, and holds the only connection."""

    def close(*args: Any, **named: Any) -> None:
        raise Broken

    options: dict[str, Any] = {"pool_maxsize": 1, "pool_block": True}
    only = httpx.Limits(max_connections=1)
    if name == "httpx":
        options = {"inner": httpx.HTTPTransport(verify=False, limits=only)}
    elif name == "httpx-async":
        options = {"inner": httpx.AsyncHTTPTransport(verify=False, limits=only)}
    options |= {"journal": journal, "buffer_max": 1_000}
    with serving(LARGE, Answer()) as server, calling(name, **options) as caller:
        with monkeypatch.context() as patched:
            patched.setattr(EntryHandle, "close", close)
            with pytest.raises(Broken):
                caller.post(server.url)
        assert caller.post(server.url, timeout=5).content == b"done"


def test_cancelled_while_the_journal_writes_it_is_closed_too(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, go = threading.Event(), threading.Event()
    really = EntryHandle.close

    def close(*args: Any, **named: Any) -> None:
        here.set()
        assert go.wait(10)
        really(*args, **named)

    async def ask(url: str) -> list[bool]:
        inner = httpx.AsyncHTTPTransport(verify=False)
        transport = AsyncIdempotentTransport(inner, journal=journal, buffer_max=1_000)
        async with httpx.AsyncClient(transport=transport) as client:
            task = asyncio.create_task(client.post(url))
            await asyncio.to_thread(here.wait, 10)
            task.cancel()
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            return [connection.is_closed() for connection in inner._pool.connections]

    monkeypatch.setattr(EntryHandle, "close", close)
    with serving(LARGE) as server:
        assert all(asyncio.run(ask(server.url)))


# --- a body that was refused ----------------------------------------------------------------------

SENT = b"0123456789"


class Pipe:
    """A stream that cannot be read again."""

    def __init__(self) -> None:
        self._file = io.BytesIO(SENT)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._file)

    def read(self, size: int = -1) -> bytes:
        return self._file.read(min(size, 4) if size >= 0 else 4)


@pytest.mark.parametrize("kind", ["file", "undeclared file", "parts", "pipe"])
def test_a_refused_body_is_never_sent_in_part(kind: str) -> None:
    body: Any = {
        "file": io.BytesIO(SENT),
        "undeclared file": io.BytesIO(SENT),
        "parts": (SENT[at : at + 3] for at in range(0, len(SENT), 3)),
        "pipe": Pipe(),
    }[kind]
    request = requests.Request("POST", "http://shop/", data=body).prepare()
    if kind == "undeclared file":
        del request.headers["Content-Length"]
    with serving(Answer()) as server, calling("requests", body_max=5) as caller:
        request.url = server.url + "/"
        assert isinstance(caller, RequestsCaller)
        with pytest.raises(NotSent, match="body_max"):
            caller.session.send(request)
        caller.session.mount("http://", IdempotentAdapter(clock=FakeTime()))
        if "file" in kind:
            assert caller.session.send(request).status_code == 200
            assert [seen.body for seen in server.seen] == [SENT]
        else:
            with pytest.raises(NotSent, match="Make the request anew"):
                caller.session.send(request)
            assert server.seen == []


def test_a_file_that_is_said_to_be_too_long_is_not_read() -> None:
    class Unread(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise AssertionError("read")

    with calling("requests", body_max=5) as caller, pytest.raises(NotSent, match="body_max"):
        caller.post("http://shop/", body=Unread(SENT))


def test_a_response_keeps_its_delivery_in_a_pickle() -> None:
    with serving(Answer()) as server, calling("requests") as caller:
        response = caller.post(server.url).response
    again = pickle.loads(pickle.dumps(response))
    assert delivery_of(again) == delivery_of(response) is not None
    assert again.content == b"done"
