"""The client for httpx: cancellation, timeouts by phase, the inner transport, and its errors."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from tests.client.fake_retry_clock import SECOND, AsyncFakeRetryClock, FakeRetryClock
from tests.client.scripted_server import Action, Hang, Respond, RespondSlowly, scripted_server

from oncekey.client import AsyncIdempotentTransport, IdempotentTransport, RetriesExhausted, Retry
from oncekey.client.httpx.request import failure_of
from oncekey.client.retry_effects import TransportFailure as Failure

# --- cancellation ---------------------------------------------------------------------------------


async def _until(event: Any) -> None:
    await asyncio.to_thread(event.wait, 60)
    assert event.is_set()


@pytest.mark.parametrize(
    "act", [Hang(), RespondSlowly(500, Respond(body=b"x" * 1_000))], ids=["head", "body"]
)
def test_a_cancelled_request_returns_its_connection(act: Action) -> None:
    """The pool has one connection only."""
    assert isinstance(act, (Hang, RespondSlowly))

    async def cancel() -> None:
        inner = httpx.AsyncHTTPTransport(verify=False, limits=httpx.Limits(max_connections=1))
        transport = AsyncIdempotentTransport(inner, clock=AsyncFakeRetryClock())
        async with httpx.AsyncClient(transport=transport) as client:
            task = asyncio.create_task(client.post(server.url))
            await _until(act.arrived)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            again = await client.post(server.url, timeout=httpx.Timeout(60))
            assert again.content == b"done"

    with scripted_server(act, Respond()) as server:
        asyncio.run(cancel())
        act.proceed.set()
    assert len(server.received) == 2  # a cancelled request is not tried again


def test_a_request_cancelled_while_it_waits_is_not_sent_again() -> None:
    class Patient(AsyncFakeRetryClock):
        asleep = asyncio.Event()

        async def sleep(self, us: int) -> None:
            self.asleep.set()
            await asyncio.Event().wait()

    async def cancel() -> None:
        clock = Patient()
        transport = AsyncIdempotentTransport(httpx.AsyncHTTPTransport(verify=False), clock=clock)
        async with httpx.AsyncClient(transport=transport) as client:
            task = asyncio.create_task(client.post(server.url))
            await clock.asleep.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with scripted_server(Respond(503)) as server:
        asyncio.run(cancel())
    assert len(server.received) == 1


def test_a_cancelled_request_closes_its_response_stream() -> None:
    closed: list[str] = []

    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"x"
            await anyio.sleep_forever()

        async def aclose(self) -> None:
            await anyio.lowlevel.checkpoint()  # raises if the cancellation gets through
            closed.append("closed")

    async def ask() -> None:
        inner = httpx.MockTransport(lambda request: httpx.Response(200, stream=Endless()))
        async with httpx.AsyncClient(transport=AsyncIdempotentTransport(inner)) as client:
            with anyio.move_on_after(0.01) as scope:
                await client.post("http://shop/")
            assert scope.cancelled_caught

    asyncio.run(ask())
    assert closed == ["closed"]


def test_a_transport_without_timeouts_is_cancelled_at_the_deadline() -> None:
    async def never(request: httpx.Request) -> httpx.Response:
        await anyio.sleep_forever()
        raise AssertionError

    async def ask() -> None:
        transport = AsyncIdempotentTransport(
            httpx.MockTransport(never), retry=Retry(deadline="10ms", base="1ms", cap="1ms")
        )
        async with httpx.AsyncClient(transport=transport) as client:
            await client.post("http://shop/")

    with pytest.raises(RetriesExhausted, match="no answer in time") as caught:
        asyncio.run(ask())
    assert caught.value.attempts == 1
    assert not caught.value.safe_new_key


# --- timeouts -------------------------------------------------------------------------------------


def test_timeouts_are_clipped_to_what_is_left_of_the_deadline() -> None:
    clock = FakeRetryClock([0.0, 0.0])
    seen: list[dict[str, float]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        timeouts = request.extensions["timeout"]
        seen.append({phase: timeouts[phase] for phase in ("connect", "read", "write", "pool")})
        clock.advance(50 * SECOND)
        # A later phase of the same try has less.
        assert timeouts.get("read") == min(30, seen[-1]["write"] - 50)
        assert timeouts.get("unknown") is None
        clock.advance(6 * SECOND - 1)
        return httpx.Response(503)

    def answer_late(request: httpx.Request) -> httpx.Response:
        seen.append(dict(request.extensions["timeout"]))
        return httpx.Response(200)

    def either(request: httpx.Request) -> httpx.Response:
        return answer_late(request) if seen else answer(request)

    transport = IdempotentTransport(httpx.MockTransport(either), clock=clock)
    timeout = httpx.Timeout(connect=5, read=30, write=None, pool=0.5)
    with httpx.Client(transport=transport, timeout=timeout) as client:
        response = client.post("http://shop/")
    assert response.status_code == 200
    assert seen[0] == {"connect": 5, "read": 30, "write": 60, "pool": 0.5}
    assert seen[1] == {"connect": 4.000001, "read": 4.000001, "write": 4.000001, "pool": 0.5}
    assert response.request.extensions["timeout"] == timeout.as_dict()


def test_without_retries_the_callers_timeouts_are_left_alone() -> None:
    seen: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.extensions["timeout"])
        return httpx.Response(200)

    transport = IdempotentTransport(httpx.MockTransport(answer), retry=None)
    with httpx.Client(transport=transport, timeout=None) as client:
        client.post("http://shop/")
    assert seen == [httpx.Timeout(None).as_dict()]


class Trickle(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that sends one byte each second and never pauses for longer."""

    def __init__(self, clock: FakeRetryClock | AsyncFakeRetryClock) -> None:
        self.sent = 0
        self._clock = clock

    def __iter__(self) -> Iterator[bytes]:
        for self.sent in range(1, 1_000):
            self._clock.advance(SECOND)
            yield b"x"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self:
            yield part


def test_a_response_that_never_ends_is_cut_at_the_deadline() -> None:
    clock = FakeRetryClock()
    trickle = Trickle(clock)
    inner = httpx.MockTransport(lambda request: httpx.Response(200, stream=trickle))
    with (
        httpx.Client(
            transport=IdempotentTransport(inner, clock=clock, retry=Retry(deadline="9s"))
        ) as client,
        pytest.raises(RetriesExhausted, match="no answer in time"),
    ):
        client.post("http://shop/")
    assert trickle.sent == 10  # the ninth could have been the last


def test_an_async_response_that_never_ends_is_cut_at_the_deadline() -> None:
    clock = AsyncFakeRetryClock()
    trickle = Trickle(clock)
    inner = httpx.MockTransport(lambda request: httpx.Response(200, stream=trickle))

    async def ask() -> None:
        transport = AsyncIdempotentTransport(inner, clock=clock, retry=Retry(deadline="9s"))
        async with httpx.AsyncClient(transport=transport) as client:
            await client.post("http://shop/")

    with pytest.raises(RetriesExhausted, match="no answer in time"):
        asyncio.run(ask())
    assert trickle.sent == 10  # the ninth could have been the last


# --- the inner transport --------------------------------------------------------------------------


def test_the_inner_transport_is_opened_and_closed() -> None:
    calls: list[str] = []

    class Inner(httpx.MockTransport):
        def __enter__(self) -> Any:
            calls.append("open")
            return self

        def __exit__(self, *error: object) -> None:
            calls.append("shut")

        def close(self) -> None:
            calls.append("close")

        async def __aenter__(self) -> Any:
            calls.append("open")
            return self

        async def __aexit__(self, *error: object) -> None:
            calls.append("shut")

        async def aclose(self) -> None:
            calls.append("close")

    async def later() -> None:
        async with httpx.AsyncClient(transport=AsyncIdempotentTransport(inner)):
            pass
        await AsyncIdempotentTransport(inner).aclose()

    inner = Inner(lambda request: httpx.Response(200))
    with httpx.Client(transport=IdempotentTransport(inner)):
        pass
    IdempotentTransport(inner).close()
    assert calls == ["open", "shut", "close"]
    calls.clear()
    asyncio.run(later())
    assert calls == ["open", "shut", "close"]


def test_an_unknown_error_of_the_inner_transport_is_raised() -> None:
    def broken(request: httpx.Request) -> httpx.Response:
        raise ZeroDivisionError

    with (
        httpx.Client(transport=IdempotentTransport(httpx.MockTransport(broken))) as client,
        pytest.raises(ZeroDivisionError),
    ):
        client.post("http://shop/")


def test_a_response_stream_that_breaks_is_closed_and_retried() -> None:
    calls: list[str] = []

    class Breaking(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            try:
                yield b"half"
                raise httpx.ReadError("broken")
            finally:
                calls.append("left")

        def close(self) -> None:
            calls.append("closed")
            raise OSError("cannot even be closed")

    answers = iter([httpx.Response(200, stream=Breaking()), httpx.Response(200, text="whole")])
    transport = IdempotentTransport(
        httpx.MockTransport(lambda request: next(answers)), clock=FakeRetryClock()
    )
    with httpx.Client(transport=transport) as client:
        assert client.post("http://shop/").text == "whole"
    assert calls == ["left", "closed"]


# --- failures -------------------------------------------------------------------------------------


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def _while_handling(error: Exception, context: Exception) -> Exception:
    error.__context__ = context
    return error


CERTIFICATE = ssl.SSLCertVerificationError("self-signed")


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (httpx.ConnectError("x"), Failure.CONNECT),
        (httpx.ConnectTimeout("x"), Failure.CONNECT_TIMEOUT),
        (httpx.PoolTimeout("x"), Failure.POOL_TIMEOUT),
        (httpx.ReadError("x"), Failure.NETWORK),
        (httpx.WriteError("x"), Failure.NETWORK),
        (httpx.CloseError("x"), Failure.NETWORK),
        (httpx.ReadTimeout("x"), Failure.TIMEOUT),
        (httpx.WriteTimeout("x"), Failure.TIMEOUT),
        (httpx.RemoteProtocolError("x"), Failure.CLOSED),
        (httpx.LocalProtocolError("x"), Failure.OTHER),
        (httpx.UnsupportedProtocol("x"), Failure.OTHER),
        (httpx.ProxyError("407"), Failure.OTHER),
        (httpx.DecodingError("x"), Failure.OTHER),
        (OSError("x"), Failure.OTHER),
        (_caused(httpx.ConnectError("x"), CERTIFICATE), Failure.CERTIFICATE),
        (
            _caused(httpx.ConnectError("x"), _caused(OSError("y"), CERTIFICATE)),
            Failure.CERTIFICATE,
        ),
        (_while_handling(httpx.ConnectError("x"), CERTIFICATE), Failure.CONNECT),
        (
            _caused(
                httpx.ConnectError("x"),
                _while_handling(OSError("y"), _while_handling(OSError("z"), CERTIFICATE)),
            ),
            Failure.CONNECT,
        ),
    ],
)
def test_which_error_means_which_transport_failure(error: Exception, failure: Failure) -> None:
    assert failure_of(error) is failure
