"""Holds the response of an ASGI app back until its outcome is durable.

A small response stays in memory, a larger one goes to a temporary file. A response that grows past
`HOLD_MAX_BYTES` cannot be replayed: what was held is sent, and the rest passes through.

Owns the buffer. When it is sent, and what is stored of it, is up to buffered_run.py.
"""

from __future__ import annotations

from collections.abc import Awaitable
from tempfile import TemporaryFile
from typing import IO

from oncekey.core.commands import from_fields
from oncekey.http.asgi.request_tasks import Latch
from oncekey.http.message import (
    CHUNK_BYTES,
    HOLD_MAX_BYTES,
    SPILL_BYTES,
    Headers,
    Message,
    Response,
    Send,
)


class AsyncResponseBuffer:
    """The response of one run of an ASGI app.

    is_storable     whether it can be stored: it is complete, or too long to be held
    is_complete     whether the app has sent the last part

    Its run and the request that sends the response both use it, and either may be the last one: a
    server that cancels a request does not end its run.
    """

    is_storable = False
    is_complete = False
    status = 0
    _headers: Headers | None = None  # as the app wrote them, once it began its response
    _body = b""  # the first chunk
    _more: list[bytes] | None = None  # all chunks, if there are several
    _size = 0
    _file: IO[bytes] | None = None  # instead of the chunks, once they are too long
    _send_rest: Latch[Send] | None = None  # for what is too long to be held
    _completed: Latch[None] | None = None  # if somebody waits for that

    def __init__(self, users: int = 1) -> None:
        self._users = users

    def take(self, message: Message) -> Awaitable[None] | None:
        """Hold what the app sends. Returns what the app must wait for, if there is anything: for
        the rest of a response that is too long to be held, until it is passed on."""
        kind = message["type"]
        if kind == "http.response.start":
            if self._headers is not None:
                raise RuntimeError("the app began its response twice")
            self._headers = tuple(message.get("headers", ()))
            self.status = int(message["status"])
        elif kind == "http.response.body" and not self.is_complete:
            if self._headers is None:
                raise RuntimeError("the app sent a body before it began its response")
            if self._send_rest is not None:
                return self._pass_on(message, self._send_rest)
            if self._users > 0 and (chunk := message.get("body")):
                self._hold(chunk)
            if not message.get("more_body"):
                self.is_storable = True
                self._complete()
            elif self._size > HOLD_MAX_BYTES:
                self.is_storable = True
                self._send_rest = Latch()
        # Any other message belongs to an extension, and the app's scope offers none.
        return None

    async def _pass_on(self, message: Message, send_rest: Latch[Send]) -> None:
        send = await send_rest.wait()
        await send(message)
        if not message.get("more_body"):
            self._complete()

    def _complete(self) -> None:
        self.is_complete = True
        if self._completed is not None:
            self._completed.set(None)

    async def wait_complete(self) -> None:
        """Wait until the app has sent the last part."""
        if not self.is_complete:
            if self._completed is None:
                self._completed = Latch()
            await self._completed.wait()

    def _hold(self, chunk: bytes) -> None:
        if type(chunk) is not bytes:
            chunk = bytes(chunk)  # the app may use its buffer again
        size = self._size
        self._size = size + len(chunk)
        if self._file is not None:
            self._file.write(chunk)
        elif self._size > SPILL_BYTES:
            held = self._held()
            self._file = TemporaryFile()  # noqa: SIM115
            self._file.writelines([held, chunk])
            self._body, self._more = b"", None
        elif size == 0:
            self._body = chunk
        elif self._more is None:
            self._more = [self._body, chunk]
        else:
            self._more.append(chunk)

    def response(self, body_max: int) -> Response:
        """The response as data, its headers as the app wrote them; without its body if that is too
        long or incomplete."""
        headers = self._headers
        assert headers is not None
        if self._size > body_max or not self.is_complete:
            return Response(self.status, headers, b"", True)
        body = self._body if self._size == len(self._body) else self._held()
        return from_fields(Response, (self.status, headers, body, False))

    async def deliver(self, send: Send, more_headers: Headers) -> None:
        """Send what is held. The rest of a response that is too long to be held then passes
        through."""
        headers = self._headers
        assert headers is not None
        head = [*headers, *more_headers]
        await send({"type": "http.response.start", "status": self.status, "headers": head})
        is_complete = self.is_complete
        if self._file is None:
            body = self._held()
            await send({"type": "http.response.body", "body": body, "more_body": not is_complete})
        else:
            await self._deliver_file(self._file, send, is_complete)
        if self._send_rest is not None:
            self._send_rest.set(send)

    async def _deliver_file(self, file: IO[bytes], send: Send, is_complete: bool) -> None:
        left = self._size
        file.seek(0)
        while part := file.read(CHUNK_BYTES):
            left -= len(part)
            more = left > 0 or not is_complete
            await send({"type": "http.response.body", "body": part, "more_body": more})

    def _held(self) -> bytes:
        """All that is held."""
        if self._file is not None:
            self._file.seek(0)
            return self._file.read()
        if self._more is not None:
            self._body, self._more = b"".join(self._more), None
        return self._body

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
