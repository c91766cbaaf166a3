"""Runs an ASGI app once, in a task of its own, and holds its response back in a buffer.

The response is sent when its outcome is durable. A small response stays in memory, a larger one
goes to a temporary file. A response that grows past `HOLD_MAX_BYTES` cannot be replayed: its key
ends as "ran, not replayable", what was held is sent, and the rest passes through.

Owns the buffer and what becomes of a run. How the app is started and how its request is read is up
to the users: asgi.py and fastapi/guarded_request.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from tempfile import TemporaryFile
from typing import IO, Any, Final, Protocol

from oncekey.core.errors import OncekeyError, StoreUnavailable
from oncekey.engine.aio.once import AsyncOnce
from oncekey.engine.results import Result
from oncekey.http.exchange import Exchange
from oncekey.http.lifespan import Drainable
from oncekey.http.message import Headers, Message, Response, Send
from oncekey.http.outcomes import IncompleteResponse, NotStored, outcome_to_store
from oncekey.http.request_tasks import Latch, RequestTask, RequestTasks
from oncekey.http.rules import Rule
from oncekey.http.unhandled_requests import is_unstored

SPILL_BYTES: Final = 1024 * 1024  # a longer response is held in a file, not in memory
HOLD_MAX_BYTES: Final = 64 * 1024 * 1024  # a longer response is not held back to its end
_CHUNK: Final = 64 * 1024

_log = logging.getLogger("oncekey")


class ResponseBuffer:
    """The response of one run of an ASGI app.

    outcome_known   set when the response can be stored, or the app has ended without one
    is_storable     whether it can be: it is complete, or too long to be held
    all_sent        set when the app has sent the last part

    Its run and the request that sends the response both use it, and either may be the last one: a
    server that cancels a request does not end its run.
    """

    is_storable = False
    status = 0
    _size = 0
    _users = 1
    _start: Message | None = None
    _file: IO[bytes] | None = None  # instead of the chunks, once they are too long
    _send_rest: Latch[Send] | None = None  # for what is too long to be held

    def __init__(self) -> None:
        self.outcome_known: Latch[None] = Latch()
        self.all_sent: Latch[None] = Latch()
        self._chunks: list[bytes] = []

    async def send(self, message: Message) -> None:
        """The app's `send`."""
        kind = message["type"]
        if kind == "http.response.start":
            if self._start is not None:
                raise RuntimeError("the app began its response twice")
            self._start = {**message, "headers": list(message.get("headers", ()))}
            self.status = int(message["status"])
        elif kind == "http.response.body" and not self.all_sent.is_set:
            if self._start is None:
                raise RuntimeError("the app sent a body before it began its response")
            is_last = not message.get("more_body", False)
            if self._send_rest is not None:
                send = await self._send_rest.wait()
                await send(message)
            elif self._users > 0:
                self._hold(message.get("body") or b"")
            if is_last:
                self.all_sent.set(None)
            if not self.is_storable and (is_last or self._size > HOLD_MAX_BYTES):
                self.is_storable = True
                if not is_last:
                    self._send_rest = Latch()
                self.outcome_known.set(None)
        # Any other message belongs to an extension, and the app's scope offers none.

    def _hold(self, chunk: bytes) -> None:
        if type(chunk) is not bytes:
            chunk = bytes(chunk)  # the app may use its buffer again
        self._size += len(chunk)
        if self._file is None and self._size <= SPILL_BYTES:
            self._chunks.append(chunk)
            return
        if self._file is None:
            self._file = TemporaryFile()  # noqa: SIM115
            self._file.writelines(self._chunks)
            self._chunks = []
        self._file.write(chunk)

    def wake(self) -> None:
        """Set `outcome_known`. Also called when the app has ended."""
        self.outcome_known.set(None)

    def response(self, body_max: int) -> Response:
        """The response as data, its headers as the app wrote them; without its body if that is too
        long or incomplete."""
        assert self._start is not None
        headers = tuple(self._start["headers"])
        if self._size > body_max or not self.all_sent.is_set:
            return Response(self.status, headers, b"", True)
        return Response(self.status, headers, self._held())

    async def deliver(self, send: Send, more_headers: Headers) -> None:
        """Send what is held. The rest of a response that is too long to be held then passes
        through."""
        assert self._start is not None
        await send({**self._start, "headers": [*self._start["headers"], *more_headers]})
        is_complete = self.all_sent.is_set
        if self._file is None:
            await send(
                {"type": "http.response.body", "body": self._held(), "more_body": not is_complete}
            )
        else:
            await self._deliver_file(self._file, send, is_complete)
        if self._send_rest is not None:
            self._send_rest.set(send)

    async def _deliver_file(self, file: IO[bytes], send: Send, is_complete: bool) -> None:
        left = self._size
        file.seek(0)
        while part := file.read(_CHUNK):
            left -= len(part)
            more = left > 0 or not is_complete
            await send({"type": "http.response.body", "body": part, "more_body": more})

    def _held(self) -> bytes:
        """All that is held."""
        if self._file is not None:
            self._file.seek(0)
            return self._file.read()
        chunks = self._chunks
        if len(chunks) != 1:
            self._chunks = chunks = [b"".join(chunks)]
        return chunks[0]

    def add_user(self) -> None:
        self._users += 1

    def close(self) -> None:
        """One user has finished. After the last one, whatever the app still sends is discarded."""
        self._users -= 1
        if self._users > 0:
            return
        if self._file is not None:
            self._file.close()
        if self._send_rest is not None:
            self._send_rest.set(_discard)


async def _discard(message: Message) -> None:
    return


class AppGuard(Drainable, Protocol):
    """What a run needs of the middleware or FastAPI set-up that guards the app."""

    once: AsyncOnce
    exchange: Exchange
    tasks: RequestTasks
    unprotected: int  # counts runs without a key's protection


class BufferedRun:
    """One run of an app under a key: its task, its buffered response, and what came of it.

    is_started  whether the app was started: only then it has a task and a buffer
    is_claimed  whether the engine has called the body: the app runs under the key
    error       the app's own error, if it ended without a complete response
    """

    is_started = False
    task: RequestTask
    buffer: ResponseBuffer
    is_claimed = False
    error: BaseException | None = None
    _claimed_at = 0.0

    def __init__(self, guard: AppGuard, exchange: Exchange, rule: Rule) -> None:
        self._guard = guard
        self._exchange = exchange
        self._rule = rule
        self.unstored: list[int] = []  # filled if the app says that no handler has run

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start the app. What it sends goes to the buffer. It may have ended when this returns."""
        self.is_started = True
        self.buffer = buffer = ResponseBuffer()
        self.task = self._guard.tasks.start(work, buffer.wake)

    def claim(self) -> None:
        """The engine has called the body."""
        self.is_claimed = True
        self._claimed_at = time.monotonic()

    def fail(self, error: BaseException) -> None:
        """The app has failed, though it has not ended."""
        self.error = error
        self.buffer.wake()

    async def outcome(self) -> Response:
        """Wait until the outcome is known, and return what is stored of it. It is known at the last
        part of the response, not when the app ends, because background tasks come in between.
        Raises the app's error, or NotStored for a response that ends no key."""
        buffer = self.buffer
        buffer.add_user()
        try:
            if not buffer.outcome_known.is_set:
                try:
                    await buffer.outcome_known.wait()
                except asyncio.CancelledError:  # another attempt has taken over, or the loop ends
                    await self.task.cancel()
                    raise
            if self.error is None and not buffer.is_storable:
                self.error = self.incomplete_error()
            if self.error is not None:
                raise self.error
            self._exchange.latency.record(self._rule, time.monotonic() - self._claimed_at)
            if self.unstored and is_unstored(self.unstored, buffer.status):
                raise NotStored
            response = buffer.response(self._rule.max_response)
        finally:
            buffer.close()
        return outcome_to_store(response, self._rule, self._guard.once.policy)

    def incomplete_error(self) -> BaseException:
        """Why the app ended without a complete response."""
        error = self.task.ended.value
        if isinstance(error, asyncio.CancelledError):
            return asyncio.CancelledError()
        return error or IncompleteResponse("the app ended before its response was complete")

    def reply(self, result: Result[Response]) -> Response | Headers:
        """What is to be sent when the engine's `run` has returned: the app's own response with
        these headers added, or the stored one of an earlier attempt, or of an attempt that has
        overtaken ours."""
        if result.replayed or not self.is_claimed:
            return self._exchange.replay(result.value, result.expires_in)
        return self._exchange.fresh_headers(result.expires_in)

    def reply_to_error(self, error: NotStored | OncekeyError) -> Response | Headers | None:
        """What is to be sent when the engine's `run` has raised:

        1. the app's own response, if it ends no key
        2. None if the store was down before the app began, and the rule lets it run unprotected
        3. else a refusal

        Raises the error again if it is the app's own.
        """
        if isinstance(error, NotStored):
            return ()
        if error is self.error:
            raise error  # from an engine of the handler's own
        is_down = isinstance(error, StoreUnavailable) and not error.final
        if is_down and not self.is_claimed and self._rule.store_down == "run":
            self._guard.unprotected += 1
            _log.warning("the store is down, a request runs without protection: %s", error)
            return None
        return self._exchange.error_response(error, self._rule)
