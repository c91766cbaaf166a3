"""An HTTP/1.1 client on a plain socket, for tests that control which bytes are sent, and when.

Owns one connection, and reads exactly one response at a time. It must not repair, retry or
reconnect, so that nothing happens on the connection but what the test does.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

Headers = Iterable[tuple[str, str]]
_RESET = struct.pack("ii", 1, 0)  # close at once, without a goodbye
_BLOCK = 65_536


class ConnectionClosed(Exception):
    """The server closed the connection in the middle of a response, or before it."""


@dataclass(frozen=True, slots=True)
class Response:
    """As it came: names in their own case, in order, duplicates kept."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def one(self, name: str) -> str | None:
        """The value of a header that must not be there twice."""
        values = self.all(name)
        assert len(values) <= 1, f"{name} is there {len(values)} times: {values}"
        return values[0] if values else None


class Connection:
    """One connection, for one or several requests.

    with Connection(server.port) as connection:
        response = connection.request("GET", "/")
    """

    def __init__(self, port: int, host: str = "127.0.0.1", timeout: float = 60) -> None:
        self._host = f"{host}:{port}"
        self._socket = socket.create_connection((host, port), timeout=timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # pieces stay pieces
        self._unread = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- sending --------------------------------------------------------------------------------

    def send(self, *pieces: bytes) -> None:
        """Send bytes as they are."""
        for piece in pieces:
            self._socket.sendall(piece)

    def request_head(self, method: str, target: str, headers: Headers = ()) -> bytes:
        """The bytes of a request up to its body; says nothing of the body unless `headers` do."""
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def send_request(
        self, method: str, target: str, headers: Headers = (), body: bytes = b""
    ) -> None:
        """Send a whole request, with the length of its body."""
        length = [("Content-Length", str(len(body)))] if body or method != "GET" else []
        self.send(self.request_head(method, target, [*headers, *length]) + body)

    def request(
        self, method: str, target: str, headers: Headers = (), body: bytes = b""
    ) -> Response:
        self.send_request(method, target, headers, body)
        return self.read_response(bodiless=method == "HEAD")

    # --- reading --------------------------------------------------------------------------------

    def read_response(self, *, bodiless: bool = False) -> Response:
        """One response; an interim one (1xx) counts as one. `bodiless` is for answers to HEAD."""
        first, *lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        status = int(first.split(" ", 2)[1])
        pairs = [line.partition(":") for line in lines]
        response = Response(status, [(name, value.strip()) for name, _, value in pairs], b"")
        if bodiless or status < 200 or status in (204, 304):
            return response
        return Response(status, response.headers, self._body(response))

    def wait_for_bytes(self) -> bool:
        """Wait for the first bytes of what comes; they are left to be read."""
        return bool(self._unread or self._receive())

    def is_quiet(self) -> bool:
        """Whether nothing has come so far; does not wait."""
        return not self._unread and not select.select([self._socket], [], [], 0)[0]

    def is_closed(self) -> bool:
        """Wait for what comes next: whether it is the end rather than more bytes."""
        try:
            return not self._unread and not self._receive()
        except ConnectionError:
            return True

    def _body(self, response: Response) -> bytes:
        if (response.one("Transfer-Encoding") or "").lower() == "chunked":
            return self._chunks()
        length = response.one("Content-Length")
        if length is not None:
            return self._exactly(int(length))
        while self._receive():
            pass  # it ends with the connection
        return self._exactly(len(self._unread))

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self._until(b"\r\n").partition(b";")[0], 16):
            body += self._exactly(size)
            assert self._until(b"\r\n") == b"", "a chunk is longer than it says"
        while self._until(b"\r\n"):
            pass  # trailers
        return body

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._unread:
            self._more()
        found, _, self._unread = self._unread.partition(mark)
        return found

    def _exactly(self, count: int) -> bytes:
        while len(self._unread) < count:
            self._more()
        found, self._unread = self._unread[:count], self._unread[count:]
        return found

    def _more(self) -> None:
        try:
            got = self._receive()
        except ConnectionError as error:
            raise ConnectionClosed(f"{error} after {self._unread!r}") from error
        if not got:
            raise ConnectionClosed(f"closed after {self._unread!r}")

    def _receive(self) -> bytes:
        block = self._socket.recv(_BLOCK)
        self._unread += block
        return block

    # --- ending ---------------------------------------------------------------------------------

    def half_close(self) -> None:
        """Say that nothing more will be sent; answers can still be read."""
        self._socket.shutdown(socket.SHUT_WR)

    def abort(self) -> None:
        """End by a reset, as when the client's machine or network has gone."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._socket.close()

    def close(self) -> None:
        self._socket.close()
