"""One guarded request of an ASGI app: what the middleware and the routes of FastAPI do alike.

Owns reading a request, its run in a task of its own, and the sending of what came of it. Where the
key comes in, and how the app is begun, is up to subclasses; the rules are the exchange's.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final, Protocol
from urllib.parse import quote

from oncekey.core.errors import OncekeyError, StoreUnavailable
from oncekey.engine.aio.attempt import AsyncAttempt
from oncekey.engine.aio.once import AsyncOnce
from oncekey.engine.results import Result
from oncekey.http.exchange import STORE_DOWN_MARK, Exchange, RequestKey, RunArguments
from oncekey.http.message import Headers, Request, Response
from oncekey.http.mounted import serves
from oncekey.http.outcomes import IncompleteResponse, NotStored, outcome_to_store
from oncekey.http.request_body import Body
from oncekey.http.request_fingerprint import is_slow_to_compare
from oncekey.http.response_buffer import Message, ResponseBuffer, Send
from oncekey.http.rules import Rule
from oncekey.http.unhandled_requests import UNSTORED, is_unstored

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[Any, Any, Any], Awaitable[None]]

_CLOSE: Final[Headers] = ((b"connection", b"close"),)

_log = logging.getLogger("oncekey")


class Tasks:
    """What runs, whether or not its client is still there."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def wait(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        here = {task for task in self._tasks if task.get_loop() is loop}
        if here:
            await asyncio.wait(here, timeout=seconds)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # told to whoever waits; if nobody does, it is not the loop's business


class Owner(Protocol):
    """What a request's guard needs of whoever set it up."""

    once: AsyncOnce
    exchange: Exchange
    tasks: Tasks
    unprotected: int
    lifespans: int

    async def drain(self) -> None: ...


class Reading(enum.Enum):
    """How the reading of a request ended."""

    WHOLE = "all of it is here"
    GONE = "the client went away"
    TOO_LARGE = "it is longer than allowed"


class Responder:
    """One guarded request. How the app is begun and asked who calls is up to subclasses."""

    def __init__(
        self, owner: Owner, rule: Rule, scope: Scope, receive: Receive, send: Send
    ) -> None:
        serves(owner, scope)
        self._owner = owner
        self._exchange = owner.exchange.under(scope.get("root_path", ""))
        self._rule = rule
        self._scope = scope
        self._receive = receive
        self._send = send
        self._headers: Headers = tuple((bytes(n).lower(), bytes(v)) for n, v in scope["headers"])
        self._body = Body()
        self._given: Iterator[bytes] | None = None  # to the app, once it asks
        self._body_given = False
        self._part = b""
        self._recording: ResponseBuffer | None = None
        self._task: asyncio.Task[None] | None = None
        self._app_error: BaseException | None = None
        self._began = False
        self._unstored: list[int] = []

    async def _read(self, *, keep: bool = True) -> Reading:
        """Read the whole request, or what is left of it: a refused one too, for the connection's
        next one comes behind it, but without keeping it. Nothing is read of what is too large by
        its own word."""
        if self._exchange.declared_too_large(self._rule, self._headers):
            return Reading.TOO_LARGE
        size = self._body.size
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return Reading.GONE
            chunk = message.get("body") or b""
            size += len(chunk)
            if size > self._rule.max_request:
                return Reading.TOO_LARGE
            if keep:
                self._body.write(bytes(chunk))  # the server may use its buffer again
            if not message.get("more_body", False):
                return Reading.WHOLE

    async def _guarded(self, keyed: RequestKey, caller: str) -> None:
        request = self._request()
        if is_slow_to_compare(request):
            asking = await asyncio.to_thread(self._exchange.run_arguments, keyed, caller, request)
        else:
            asking = self._exchange.run_arguments(keyed, caller, request)
        if isinstance(asking, Response):
            await self._give(asking)
            return
        try:
            await self._run(asking)
        finally:
            if self._recording is not None:
                self._recording.close()

    async def _run(self, asking: RunArguments) -> None:
        try:
            result = await self._ask(asking)
        except NotStored:
            assert self._recording is not None
            await self._deliver(self._recording, ())
            return
        except OncekeyError as error:
            if error is self._app_error:
                raise  # the handler's own, from an engine of its own
            await self._failed(error)
            return
        if result.replayed or not self._began:
            await self._give(self._exchange.replay(result.value, result.expires_in))
        else:
            assert self._recording is not None
            marks = self._exchange.marks(result.expires_in, replayed=False)
            await self._deliver(self._recording, marks)

    async def _ask(self, asking: RunArguments) -> Result[Response]:
        once = self._owner.once
        return await once.run(asking.operation, asking.key, self._body_of, **asking.options)

    async def _failed(self, error: OncekeyError) -> None:
        is_down = isinstance(error, StoreUnavailable) and not error.final and not self._began
        if is_down and self._rule.store_down == "run":
            self._owner.unprotected += 1
            _log.warning("the store is down, a request runs without protection: %s", error)
            await self._run_unprotected()
            return
        await self._give(self._exchange.refusal_of(error, self._rule))

    # --- the run ------------------------------------------------------------------------------

    async def _body_of(self, attempt: AsyncAttempt) -> Response:
        """Run the app until its outcome is known: at the last part of its response, not at its
        end, for background tasks come in between."""
        self._began = True
        began = time.monotonic()
        task, recording = self._begin(attempt)
        with recording:
            await self._settle(task, recording)
            self._exchange.latency.record(self._rule, time.monotonic() - began)
            if is_unstored(self._unstored, recording.status):
                raise NotStored
            response = recording.response(self._rule.max_response)
        return outcome_to_store(response, self._rule, self._owner.once.policy)

    def _begin(self, attempt: AsyncAttempt) -> tuple[asyncio.Task[None], ResponseBuffer]:
        raise NotImplementedError

    async def _run_unprotected(self) -> None:
        raise NotImplementedError

    async def _settle(self, task: asyncio.Task[None], recording: ResponseBuffer) -> None:
        task.add_done_callback(recording.app_ended)
        try:
            await recording.known  # nobody else waits for it, so it may be cancelled with us
        except asyncio.CancelledError:  # another attempt has taken over, or all is shut down
            task.cancel()
            await asyncio.wait({task})
            raise
        if not recording.settled.done():
            self._app_error = error_of(task)
            raise self._app_error

    def _private_scope(self) -> Scope:
        """The scope for an app whose response is held back."""
        return {**self._scope, "extensions": {}, UNSTORED: self._unstored}

    async def _private_receive(self) -> Message:
        """The request, and then nothing until the response is over: whether the client is still
        there is not the handler's concern."""
        if not self._body_given:
            return await self._given_body()
        assert self._recording is not None
        await asyncio.shield(self._recording.ended)
        return {"type": "http.disconnect"}

    async def _given_body(self) -> Message:
        if self._body_given:
            return await self._receive()
        return self._next_part()

    def _next_part(self, start: int = 0) -> Message:
        """What was read, part by part; the last one says so."""
        if self._given is None:
            self._given = self._body.chunks(start)
            self._part = next(self._given, b"")
        part, self._part = self._part, next(self._given, b"")
        self._body_given = not self._part
        return {"type": "http.request", "body": part, "more_body": not self._body_given}

    # --- responses ----------------------------------------------------------------------------

    async def _send_unprotected(self, message: Message) -> None:
        """Send what the app says, marked as the answer of a run that no key protects."""
        if message["type"] == "http.response.start":
            lines = [*message.get("headers", ()), *STORE_DOWN_MARK]
            message = {**message, "headers": lines}
        await self._send(message)

    async def _deliver(self, recording: ResponseBuffer, more: Headers) -> None:
        """The app's own response; then the app's own end, as if we were not there."""
        assert self._task is not None
        await recording.deliver(self._send, more)
        if self._task.done():
            self._task.result()  # its error is the server's to see
        else:
            await asyncio.shield(self._task)

    async def _give(self, response: Response, more: Headers = ()) -> None:
        await self._send(
            {
                "type": "http.response.start",
                "status": response.status,
                "headers": [*response.headers, *more],
            }
        )
        await self._send({"type": "http.response.body", "body": response.body})

    def _request(self) -> Request:
        scope = self._scope
        path: bytes = scope.get("raw_path") or quote(scope["path"], errors="surrogatepass").encode(
            "ascii"
        )
        query: bytes = scope.get("query_string", b"")
        return Request(scope["method"], path.partition(b"?")[0], query, self._headers, self._body)

    def _last(self) -> Headers:
        """Says that the connection ends with this answer: the rest of the request was not read.
        From HTTP/2 on there is no such header, and a request of its own can be ended."""
        return _CLOSE if str(self._scope.get("http_version", "1.1")).startswith("1") else ()


def error_of(task: asyncio.Task[None]) -> BaseException:
    """Why the app ended without a whole response."""
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception() or IncompleteResponse("the app ended before its response was complete")
