"""An ASGI response held back until its outcome is durable.

Small ones stay in memory, larger ones go to a temporary file. One that grows past all bounds is
given up on: its key ends as "ran, cannot be replayed", and from then on it flows through. Owns the
buffer; when to let go is the middleware's decision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from tempfile import SpooledTemporaryFile
from typing import Any, Final

from oncekey.http.message import Headers, Response

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

SPILL_BYTES: Final = 1024 * 1024  # from here on a response is in a file, not in memory
HOLD_MAX_BYTES: Final = 64 * 1024 * 1024  # from here on it is not held back any more
_CHUNK: Final = 64 * 1024


class Recording:
    """What the app sends, in order. One per run."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.settled: asyncio.Future[None] = loop.create_future()  # its outcome can be stored
        self.ended: asyncio.Future[None] = loop.create_future()  # the app has sent all of it
        self.started = False
        self.size = 0
        self._start: Message = {}
        self._file: SpooledTemporaryFile[bytes] = SpooledTemporaryFile(max_size=SPILL_BYTES)  # noqa: SIM115
        self._through: asyncio.Future[Send] = loop.create_future()

    async def send(self, message: Message) -> None:
        """The app's `send`."""
        kind = message["type"]
        if kind == "http.response.start":
            if self.started:
                raise RuntimeError("the app began its response twice")
            self.started = True
            self._start = message
        elif kind == "http.response.body":
            if not self.started:
                raise RuntimeError("the app sent a body before it began its response")
            await self._add(message)
        # Anything else is an extension; the app was told that there are none.

    async def _add(self, message: Message) -> None:
        if self.ended.done():
            return
        more = message.get("more_body", False)
        if self.settled.done():
            await (await asyncio.shield(self._through))(message)
        else:
            chunk = message.get("body", b"")
            self._file.write(chunk)
            self.size += len(chunk)
        if not more:
            self.ended.set_result(None)
        if not self.settled.done() and (not more or self.size > HOLD_MAX_BYTES):
            self.settled.set_result(None)

    @property
    def status(self) -> int:
        return int(self._start["status"])

    @property
    def headers(self) -> Headers:
        lines = self._start.get("headers", ())
        return tuple((bytes(name).lower(), bytes(value)) for name, value in lines)

    def response(self, most: int) -> Response:
        """The response as data; without its body where that is longer than `most`, or not over."""
        if self.size > most or not self.ended.done():
            return Response(self.status, self.headers, b"", omitted=True)
        self._file.seek(0)
        return Response(self.status, self.headers, self._file.read())

    async def deliver(self, send: Send, more_headers: Headers) -> None:
        """Send what is here; what the app still has to say then goes the same way at once."""
        start = {**self._start, "headers": [*self._start.get("headers", ()), *more_headers]}
        await send(start)
        is_whole = self.ended.done()
        self._file.seek(0)
        left = self.size
        while True:
            chunk = self._file.read(_CHUNK)
            left -= len(chunk)
            more = left > 0 or not is_whole
            await send({"type": "http.response.body", "body": chunk, "more_body": more})
            if left <= 0:
                break
        if not is_whole:
            self._through.set_result(send)

    def close(self) -> None:
        """Nobody wants the rest: what the app may still send goes nowhere."""
        self._file.close()
        if not self._through.done():
            self._through.set_result(_nowhere)


async def _nowhere(message: Message) -> None:
    return
