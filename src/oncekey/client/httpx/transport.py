"""The client for httpx: a transport that wraps another transport, sync and async.

    client = httpx.Client(transport=IdempotentTransport())

A transport makes single tries and closes what they leave behind. When to try again is decided in
retry_flow.py.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self, Unpack

import anyio
import httpx

from oncekey.client.body_reader import ReadDeadline
from oncekey.client.client_settings import Options, Settings
from oncekey.client.httpx.bodies import (
    read_request,
    read_request_async,
    read_response,
    read_response_async,
)
from oncekey.client.httpx.request import HttpxRequest, refuse_key_or_intent
from oncekey.client.request_drivers import deliver_async, deliver_sync
from oncekey.client.retry_clock import AsyncClock, AsyncSystemClock, Clock, SystemClock
from oncekey.client.retry_effects import SECOND_US, SendRequest, TryResult
from oncekey.client.retry_rules import read_head
from oncekey.core.errors import ConfigurationError

# A try is cancelled so much later than its timeouts end: their errors say better what hung.
CANCEL_GRACE_US: Final = 100_000


class IdempotentTransport(httpx.BaseTransport):
    """Sends each POST and PATCH under one key, and again under the same key if that is safe.

    `transport` does the sending; httpx's own is the default. The options are those of `Settings`.
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
        _check_type(self._inner, httpx.BaseTransport)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if not self._settings.guards(request.method):
            refuse_key_or_intent(request)
            return self._inner.handle_request(request)
        body = read_request(request, self._settings.body_max)
        logical = HttpxRequest(self._settings, self._clock, request, body)
        return deliver_sync(
            logical, self._clock, lambda effect: self._send(logical, effect), httpx.Response.close
        )

    def _send(self, logical: HttpxRequest, effect: SendRequest) -> TryResult:
        settings = self._settings
        try:
            response = self._inner.handle_request(logical.next_try(effect.deadline))
        except Exception as error:
            return logical.failed(error)
        head = read_head(response.status_code, response.headers, settings.replay_headers)
        deadline = ReadDeadline(self._clock, effect.deadline, httpx.ReadTimeout)
        try:
            body = read_response(
                response, settings.read_ahead, deadline, may_stream=not head.retried
            )
        except Exception as error:
            return logical.received(response, head, None, error)
        logical.restore_timeouts()
        return logical.received(response, head, body)

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
        _check_type(self._inner, httpx.AsyncBaseTransport)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not self._settings.guards(request.method):
            refuse_key_or_intent(request)
            return await self._inner.handle_async_request(request)
        body = await read_request_async(request, self._settings.body_max)
        logical = HttpxRequest(self._settings, self._clock, request, body)
        return await deliver_async(
            logical,
            self._clock,
            lambda effect: self._send_within_deadline(logical, effect),
            httpx.Response.aclose,
        )

    async def _send_within_deadline(self, logical: HttpxRequest, effect: SendRequest) -> TryResult:
        """Make one try, and cancel it at the deadline even if the inner transport ignores
        timeouts."""
        if effect.deadline is None:
            return await self._send(logical, effect)
        left = effect.deadline - self._clock.now()
        with anyio.move_on_after((left + CANCEL_GRACE_US) / SECOND_US):
            return await self._send(logical, effect)
        return logical.failed(httpx.ReadTimeout("the deadline passed in the middle of a try"))

    async def _send(self, logical: HttpxRequest, effect: SendRequest) -> TryResult:
        settings = self._settings
        try:
            response = await self._inner.handle_async_request(logical.next_try(effect.deadline))
        except Exception as error:
            return logical.failed(error)
        head = read_head(response.status_code, response.headers, settings.replay_headers)
        deadline = ReadDeadline(self._clock, effect.deadline, httpx.ReadTimeout)
        logical.restore_timeouts()
        try:
            body = await read_response_async(
                response, settings.read_ahead, deadline, may_stream=not head.retried
            )
        except Exception as error:
            return logical.received(response, head, None, error)
        return logical.received(response, head, body)

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


def _check_type(inner: object, kind: type) -> None:
    if not isinstance(inner, kind):
        raise ConfigurationError(
            f"a {type(inner).__name__} is no httpx.{kind.__name__}; give the transport that does "
            "the sending first, and options by name"
        )
