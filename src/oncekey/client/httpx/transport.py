"""The client for httpx: a transport around a transport, in both colours.

    client = httpx.Client(transport=IdempotentTransport())

Owns sending one try and closing what came of it. The rules are in rules.py, their order in flow.py.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self, Unpack

import anyio
import httpx

from oncekey.client import retry_rules
from oncekey.client.drivers import deliver_async, deliver_blocking
from oncekey.client.httpx.bodies import load, load_async, take, take_async
from oncekey.client.httpx.request import HttpxErrand, refuse_given
from oncekey.client.retry_clock import AsyncClock, AsyncSystemClock, Clock, SystemClock
from oncekey.client.retry_effects import SECOND_US, Answered, Broke, Send
from oncekey.client.settings import Options, Settings
from oncekey.core.errors import ConfigurationError

# How much later than the timeouts a try is cut off from outside: they say better what hung.
CUT_GRACE_US: Final = 100_000


class IdempotentTransport(httpx.BaseTransport):
    """Sends each POST and PATCH under one key, and again under the same key where that is safe.

    `transport` does the sending, httpx's own if not given. Options are those of `Settings`.
    """

    def __init__(
        self,
        transport: httpx.BaseTransport | None = None,
        *,
        clock: Clock | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._settings = Settings(**options)
        self._clock = clock or SystemClock()
        self._inner = transport or httpx.HTTPTransport()
        _check(self._inner, httpx.BaseTransport)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if not self._settings.guards(request.method):
            refuse_given(request)
            return self._inner.handle_request(request)
        body = load(request, self._settings.body_max)
        errand = HttpxErrand(self._settings, self._clock, request, body)
        return deliver_blocking(
            errand, self._clock, lambda ask: self._send(errand, ask), httpx.Response.close
        )

    def _send(self, errand: HttpxErrand, ask: Send) -> Answered | Broke:
        until = errand.until(ask)
        try:
            response = self._inner.handle_request(errand.next_try(until))
        except Exception as error:
            return errand.broke(error)
        head = errand.head(response)
        most, flows_on = self._settings.held_bytes, not retry_rules.judge(head).again
        try:
            body = take(response, most, errand.pace(until), flows_on=flows_on)
        except Exception as error:
            return errand.answered(response, head, None, error)
        errand.unclip()
        return errand.answered(response, head, body)

    def close(self) -> None:
        self._inner.close()

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._inner.__exit__(exc_type, exc_value, traceback)


class AsyncIdempotentTransport(httpx.AsyncBaseTransport):
    """The same for `httpx.AsyncClient`, on asyncio and on trio."""

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        clock: AsyncClock | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._settings = Settings(**options)
        self._clock = clock or AsyncSystemClock()
        self._inner = transport or httpx.AsyncHTTPTransport()
        _check(self._inner, httpx.AsyncBaseTransport)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not self._settings.guards(request.method):
            refuse_given(request)
            return await self._inner.handle_async_request(request)
        body = await load_async(request, self._settings.body_max)
        errand = HttpxErrand(self._settings, self._clock, request, body)
        return await deliver_async(
            errand, self._clock, lambda ask: self._cut(errand, ask), httpx.Response.aclose
        )

    async def _cut(self, errand: HttpxErrand, ask: Send) -> Answered | Broke:
        """One try, cut at the deadline even where nothing below knows of timeouts."""
        if ask.left is None:
            return await self._send(errand, ask)
        with anyio.move_on_after((ask.left + CUT_GRACE_US) / SECOND_US):
            return await self._send(errand, ask)
        return errand.broke(httpx.ReadTimeout("the deadline passed in the middle of a try"))

    async def _send(self, errand: HttpxErrand, ask: Send) -> Answered | Broke:
        until = errand.until(ask)
        try:
            response = await self._inner.handle_async_request(errand.next_try(until))
        except Exception as error:
            return errand.broke(error)
        head = errand.head(response)
        most, flows_on = self._settings.held_bytes, not retry_rules.judge(head).again
        errand.unclip()
        try:
            body = await take_async(response, most, errand.pace(until), flows_on=flows_on)
        except Exception as error:
            return errand.answered(response, head, None, error)
        return errand.answered(response, head, body)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._inner.__aexit__(exc_type, exc_value, traceback)


def _check(inner: object, kind: type) -> None:
    if not isinstance(inner, kind):
        raise ConfigurationError(
            f"a {type(inner).__name__} is no httpx.{kind.__name__}; give the transport that does "
            "the sending first, and options by name"
        )
