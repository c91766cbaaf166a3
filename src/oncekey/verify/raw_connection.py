"""One HTTP/1.1 connection, driven a step at a time: hold back the last byte, leave in the middle.

Ordinary clients cannot do either, and both decide what a verifier can see. h11 writes and parses
the messages. A connection serves one exchange.
"""

from __future__ import annotations

import asyncio
import enum
import ipaddress
import socket
import ssl
import struct
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from oncekey.http.missing_dependency import needs
from oncekey.verify.recorded_exchange import Headers, WireRequest, WireResponse

with needs("verify"):
    import h11

RESPONSE_MAX_BYTES = 64 * 1024 * 1024
# Responses that are read at the same time share this, so that a hundred large ones fit in memory.
RESPONSES_TOGETHER_MAX_BYTES = 256 * 1024 * 1024
RESPONSE_HEAD_MAX_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_USER_AGENT = b"oncekey-verify"


class DropPoint(enum.StrEnum):
    """Where a client leaves a response."""

    BEFORE_HEADERS = "before the headers"
    AFTER_HEADERS = "after the headers"
    MID_BODY = "in the middle of the body"
    BEFORE_LAST_BYTE = "before the last byte"


class ConnectionFailed(Exception):
    """The exchange could not be completed; the message says why."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the API listens."""

    scheme: str
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """True if only this machine is meant; a name that merely looks like that is not."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        usual = {"http": 80, "https": 443}[self.scheme]
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == usual else f":{self.port}")

    @property
    def authority(self) -> bytes:
        """The value of the Host header."""
        return str(self).split("://", 1)[1].encode("ascii")


class RawConnection:
    """A connection for one exchange; leave its context to close it."""

    def __init__(
        self,
        origin: Origin,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        max_bytes: int,
    ) -> None:
        self._origin = origin
        self._reader = reader
        self._writer = writer
        self._parser = h11.Connection(h11.CLIENT, RESPONSE_HEAD_MAX_BYTES)
        self._held = b""
        self._max_bytes = max_bytes
        self._last_bytes = b""
        self._response: h11.Response | None = None
        self._body = bytearray()
        self._is_finished = False

    @classmethod
    async def open(
        cls, origin: Origin, *, tls: ssl.SSLContext | None = None, together: int = 1
    ) -> Self:
        """Connect. Raises ConnectionFailed.

        `together` is the number of connections that read their responses at the same time.
        """
        context = (tls or ssl.create_default_context()) if origin.scheme == "https" else None
        try:
            reader, writer = await asyncio.open_connection(origin.host, origin.port, ssl=context)
        except (OSError, UnicodeError) as error:  # a UnicodeError for a name that cannot be one
            raise ConnectionFailed(f"cannot connect to {origin}: {error}") from error
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        most = min(RESPONSE_MAX_BYTES, RESPONSES_TOGETHER_MAX_BYTES // together)
        return cls(origin, reader, writer, most)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            pass  # the peer has closed it first

    async def send_all_but_last_byte(self, request: WireRequest) -> None:
        """Send what there is but for one byte, so that the request is not complete yet."""
        data = self._serialized(request)
        self._held = data[-1:]
        self._writer.write(data[:-1])
        await self._drain()

    async def send_last_byte(self) -> float:
        """Complete the request; return the time at which the byte was handed over."""
        self._writer.write(self._held)
        sent_at = time.monotonic()
        await self._drain()
        return sent_at

    async def send(self, request: WireRequest) -> float:
        """Send the whole request; return the time at which it was handed over."""
        await self.send_all_but_last_byte(request)
        return await self.send_last_byte()

    async def read_response(self) -> WireResponse:
        """Return the complete response. Raises ConnectionFailed."""
        while not self._is_finished:
            await self._advance(_READ_BYTES)
        return self._read_so_far(is_complete=True)

    async def read_until(self, point: DropPoint) -> WireResponse | None:
        """Read up to a point of the response; None if that is before its headers.

        The server has begun to respond then. A response without a body ends with its headers.
        """
        await self._read_one()
        if point is DropPoint.BEFORE_HEADERS:
            return None
        while self._response is None:
            await self._read_one()
        length = self._content_length()
        if point is DropPoint.AFTER_HEADERS or self._is_finished:
            pass
        elif length is None:
            await self._read_chunked_until(point)
        else:
            wanted = length // 2 if point is DropPoint.MID_BODY else length - 1
            while len(self._body) < wanted:
                await self._advance(min(wanted - len(self._body), _READ_BYTES))
        return self._read_so_far(is_complete=False)

    def abort(self) -> None:
        """Leave at once: the peer meets a reset, not an orderly end."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def _serialized(self, request: WireRequest) -> bytes:
        headers = [(b"Host", self._origin.authority)]
        headers += [(name.encode("ascii"), value) for name, value in request.headers]
        if not request.header_lines("user-agent"):
            headers.append((b"User-Agent", _USER_AGENT))
        if request.body or request.method in ("POST", "PUT", "PATCH"):
            headers.append((b"Content-Length", b"%d" % len(request.body)))
        try:
            head = h11.Request(method=request.method, target=request.path, headers=headers)
            parts = [self._parser.send(head)]
            if request.body:
                parts.append(self._parser.send(h11.Data(data=request.body)))
            parts.append(self._parser.send(h11.EndOfMessage()))
        except h11.LocalProtocolError as error:
            # The message may end with the value of a header, which may be a secret.
            what = str(error).partition(" b'")[0].partition(' b"')[0]
            raise ConnectionFailed(f"this is no HTTP/1.1 request: {what}") from None
        return b"".join(part or b"" for part in parts)

    async def _advance(self, most: int) -> None:
        """Read once and parse."""
        try:
            data = await self._reader.read(most)
        except OSError as error:
            raise ConnectionFailed(f"the connection broke: {error}") from error
        self._last_bytes = (self._last_bytes + data)[-len(_LAST_CHUNK) :]
        try:
            self._parser.receive_data(data)
            self._take_events()
        except h11.RemoteProtocolError as error:
            if not data:
                began = (
                    "in the middle of its response" if self._last_bytes else "without a response"
                )
                raise ConnectionFailed(f"the server closed the connection {began}") from error
            raise ConnectionFailed(f"the response is not HTTP/1.1: {error}") from error

    def _take_events(self) -> None:
        while True:
            event = self._parser.next_event()
            if isinstance(event, h11.Response):
                self._response = event
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > self._max_bytes:
                    raise ConnectionFailed(f"the response is over {self._max_bytes} bytes")
            elif isinstance(event, h11.EndOfMessage):
                self._is_finished = True
            elif event is h11.NEED_DATA or event is h11.PAUSED:
                return
            elif isinstance(event, h11.ConnectionClosed):
                if self._is_finished:
                    return
                raise ConnectionFailed("the server closed the connection without a response")

    async def _read_one(self) -> None:
        await self._advance(1)

    async def _read_chunked_until(self, point: DropPoint) -> None:
        """Read a body of unknown length up to one byte of it, or up to its last byte.

        A body that ends with the connection has no last byte that could be known before.
        """
        while not self._body and not self._is_finished:
            await self._read_one()
        if point is DropPoint.MID_BODY:
            return
        while not self._is_finished and not self._last_bytes.endswith(_LAST_CHUNK[:-1]):
            await self._read_one()

    def _content_length(self) -> int | None:
        assert self._response is not None
        for name, value in self._response.headers:
            if name == b"content-length":
                return int(value)
        return None

    def _read_so_far(self, *, is_complete: bool) -> WireResponse:
        assert self._response is not None
        headers: Headers = tuple(
            (name.decode("ascii"), value) for name, value in self._response.headers.raw_items()
        )
        status = self._response.status_code
        return WireResponse(status, headers, bytes(self._body), is_complete)

    async def _drain(self) -> None:
        try:
            await self._writer.drain()
        except OSError as error:
            raise ConnectionFailed(f"the connection broke: {error}") from error
