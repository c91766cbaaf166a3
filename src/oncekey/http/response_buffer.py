"""An ASGI response held back until its outcome is durable.

Small ones stay in memory, larger ones go to a temporary file. One that grows past all bounds is
given up on: its key ends as "ran, cannot be replayed", and from then on it flows through. Owns the
buffer; when to let go is the middleware's decision. The run (`with recording`) and who delivers it
both need it, and either may be the last: a server that cancels a request does not end its run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from tempfile import SpooledTemporaryFile, TemporaryFile
from types import TracebackType
from typing import IO, Any, Final, Self

from oncekey.http.message import Headers, Response

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

SPILL_BYTES: Final = 1024 * 1024  # from here on a response is in a file, not in memory
HOLD_MAX_BYTES: Final = 64 * 1024 * 1024  # from here on it is not held back any more
_CHUNK: Final = 64 * 1024


class ResponseBuffer:
    """What the app sends, in order. One per run."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.settled: asyncio.Future[None] = loop.create_future()  # its outcome can be stored
        self.known: asyncio.Future[None] = loop.create_future()  # settled, or the app has ended
        self.ended: asyncio.Future[None] = loop.create_future()  # the app has sent all of it
        self.started = False
        self.size = 0
        self._users = 1
        self._start: Message = {}
        self._chunks: list[bytes] = []
        self._file: IO[bytes] | None = None  # instead of them, once they are too many
        self._through: asyncio.Future[Send] = loop.create_future()

    async def send(self, message: Message) -> None:
        """The app's `send`."""
        kind = message["type"]
        if kind == "http.response.start":
            if self.started:
                raise RuntimeError("the app began its response twice")
            self.started = True
            self._start = {**message, "headers": list(message.get("headers", ()))}
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
            self._hold(message.get("body") or b"")
        if not more:
            self.ended.set_result(None)
        if not self.settled.done() and (not more or self.size > HOLD_MAX_BYTES):
            self.settled.set_result(None)
            self._know()

    def _hold(self, chunk: bytes) -> None:
        chunk = bytes(chunk)  # the app may use its buffer again
        self.size += len(chunk)
        if self._file is None and self.size <= SPILL_BYTES:
            self._chunks.append(chunk)
            return
        if self._file is None:
            self._file = TemporaryFile()  # noqa: SIM115
            self._file.writelines(self._chunks)
            self._chunks = []
        self._file.write(chunk)

    def app_ended(self, task: asyncio.Task[None]) -> None:
        """The app is through, with or without a whole response."""
        self._know()

    def _know(self) -> None:
        if not self.known.done():
            self.known.set_result(None)

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
        return Response(self.status, self.headers, b"".join(self._held()))

    async def deliver(self, send: Send, more_headers: Headers) -> None:
        """Send what is here; what the app still has to say then goes the same way at once."""
        start = {**self._start, "headers": [*self._start.get("headers", ()), *more_headers]}
        await send(start)
        is_whole = self.ended.done()
        left = self.size
        for chunk in self._held():
            left -= len(chunk)
            more = left > 0 or not is_whole
            await send({"type": "http.response.body", "body": chunk, "more_body": more})
        if not is_whole:
            self._through.set_result(send)

    def _held(self) -> Iterator[bytes]:
        """What is here, in parts; one at least."""
        if self._file is None:
            yield b"".join(self._chunks)
            return
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK):
            yield chunk

    def __enter__(self) -> Self:
        self._users += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """One needs it no more. After the last, what the app may still send goes nowhere."""
        self._users -= 1
        if self._users > 0:
            return
        if self._file is not None:
            self._file.close()
        if not self._through.done():
            self._through.set_result(_nowhere)


async def _nowhere(message: Message) -> None:
    return


class SyncResponseBuffer:
    """The parts of a body, in order. One per run; iterate it once to send them.

    `status`, `headers` and `unhandled` are set by whoever holds the response.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.size = 0
        self.unhandled = False  # whether no handler has made it, see unhandled_requests.py
        self._file: SpooledTemporaryFile[bytes] = SpooledTemporaryFile(max_size=SPILL_BYTES)  # noqa: SIM115
        self._source: Any = None
        self._rest: Iterator[bytes] | None = None  # what was not read yet of a very long one

    def add(self, chunk: bytes) -> None:
        self._file.write(chunk)
        self.size += len(chunk)

    def fill(self, source: Iterable[bytes]) -> None:
        """Read all of it, and close it; or as much as is ever held back."""
        self._source = source
        try:
            parts = iter(source)
            for chunk in parts:
                self.add(chunk)
                if self.size > HOLD_MAX_BYTES:
                    self._rest = parts
                    return
        except BaseException:
            self.close()
            raise
        self._close_source()

    def response(self, most: int) -> Response:
        """The response as data; without its body where that is longer than `most`, or not over."""
        if self.size > most or self._rest is not None:
            return Response(self.status, self.headers, b"", omitted=True)
        self._file.seek(0)
        return Response(self.status, self.headers, self._file.read())

    def __iter__(self) -> Iterator[bytes]:
        try:
            self._file.seek(0)
            while chunk := self._file.read(_CHUNK):
                yield chunk
            if self._rest is not None:
                yield from self._rest
        finally:
            self.close()

    def close(self) -> None:
        """All is sent, or nobody wants it."""
        self._file.close()
        self._close_source()

    def _close_source(self) -> None:
        source, self._source = self._source, None
        close = getattr(source, "close", None)
        if close is not None:
            close()
