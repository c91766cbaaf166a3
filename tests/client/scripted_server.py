"""A server on the loopback that deals with each request as a test's script says.

It speaks raw HTTP/1.1 in threads, and repairs nothing. The script holds for the whole server, in
the order in which requests come; an action that reads no request takes the next connection.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: reset the connection on close
_BLOCK = 65_536


@dataclass(frozen=True)
class ReceivedRequest:
    """A request that was read to its end, and the number of its connection."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int

    def header_values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    @property
    def key(self) -> str | None:
        values = self.header_values("Idempotency-Key")
        assert len(values) <= 1, values
        return values[0] if values else None


@dataclass(frozen=True)
class Respond:
    """Respond, and keep the connection."""

    status: int = 200
    body: bytes = b"done"
    headers: dict[str, str] = field(default_factory=dict)
    chunked: bool = False


@dataclass(frozen=True)
class Hang:
    """Read the request, set `arrived`, wait for `proceed`, and go on with `then`."""

    then: Respond | DropConnection = Respond()
    arrived: threading.Event = field(default_factory=threading.Event)
    proceed: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class RespondSlowly:
    """Send a response up to some bytes of its body, set `arrived`, and wait for `proceed`."""

    after: int
    answer: Respond
    arrived: threading.Event = field(default_factory=threading.Event)
    proceed: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class DropConnection:
    """End the connection, after reading the request or before, by closing or by a reset."""

    read: bool = True
    reset: bool = False


@dataclass(frozen=True)
class CutBody:
    """Send a response up to some bytes of its body, and end the connection."""

    after: int
    answer: Respond = Respond(body=b"x" * 1_000)
    reset: bool = False


@dataclass(frozen=True)
class SendBytes:
    """Send these bytes as they are, and close the connection."""

    data: bytes


Action = Respond | Hang | RespondSlowly | DropConnection | CutBody | SendBytes


class ScriptedServer:
    """Used as `with scripted_server(DropConnection(), Respond()) as server:`."""

    def __init__(self, actions: Iterable[Action]) -> None:
        self.received: list[ReceivedRequest] = []
        self.connections = 0
        self._actions = list(actions)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._ended = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def keys(self) -> list[str | None]:
        return [request.key for request in self.received]

    def script_has_ended(self) -> bool:
        return not self._actions

    def stop(self) -> None:
        with self._lock:
            self._ended = True
            hanging = [
                action for action in self._actions if isinstance(action, (Hang, RespondSlowly))
            ]
            waiting = list(self._open.items())
        for action in [*hanging, *self._hung]:
            action.proceed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection, _ in waiting:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in [self._thread, *(thread for _, thread in waiting)]:
            thread.join(60)
            assert not thread.is_alive()

    # --- inside -----------------------------------------------------------------------------------

    _hung: tuple[Hang | RespondSlowly, ...] = ()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._ended:
                    connection.close()
                    return
                self.connections += 1
                thread = threading.Thread(
                    target=self._serve, args=(connection, self.connections), daemon=True
                )
                self._open[connection] = thread
                thread.start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        wire = _Wire(connection)
        try:
            while self._serve_one(wire, number):
                pass
        except OSError:
            pass  # the client closed it first
        finally:
            connection.close()
            with self._lock:
                self._open.pop(connection, None)

    def _serve_one(self, wire: _Wire, number: int) -> bool:
        """Serve one request; True if the connection stays open."""
        with self._lock:
            if (
                self._actions
                and isinstance(self._actions[0], DropConnection)
                and not self._actions[0].read
            ):
                action: Action = self._actions.pop(0)
                wire.end(reset=isinstance(action, DropConnection) and action.reset)
                return False
        request = wire.read_request(number)
        if request is None:
            return False
        with self._lock:
            self.received.append(request)
            action = self._actions.pop(0) if self._actions else SendBytes(b"")
            if isinstance(action, (Hang, RespondSlowly)):
                self._hung = (*self._hung, action)
        return self._play(wire, action)

    def _play(self, wire: _Wire, action: Action) -> bool:
        if isinstance(action, Hang):
            action.arrived.set()
            action.proceed.wait(60)
            action = action.then
        if isinstance(action, Respond):
            wire.send(_head(action) + _body(action))
            return True
        if isinstance(action, RespondSlowly):
            wire.send(_head(action.answer) + _body(action.answer)[: action.after])
            action.arrived.set()
            action.proceed.wait(60)
            wire.send(_body(action.answer)[action.after :])
            return True
        if isinstance(action, CutBody):
            wire.send(_head(action.answer) + _body(action.answer)[: action.after])
            wire.end(reset=action.reset)
        elif isinstance(action, SendBytes):
            wire.send(action.data)
            wire.end(reset=False)
        else:
            wire.end(reset=action.reset)
        return False


class _Wire:
    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._unread = b""

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def end(self, *, reset: bool) -> None:
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        else:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def read_request(self, number: int) -> ReceivedRequest | None:
        """The next request; None if the client closed the connection."""
        while b"\r\n\r\n" not in self._unread:
            if not self._receive():
                return None
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = [(name, value.strip()) for name, _, value in (ln.partition(":") for ln in lines)]
        fields = {name.lower(): value for name, value in headers}
        if fields.get("transfer-encoding") == "chunked":
            body = self._read_chunks()
        else:
            body = self._read_exactly(int(fields.get("content-length", "0")))
        return ReceivedRequest(method, target, headers, body, number)

    def _read_chunks(self) -> bytes:
        body = b""
        while True:
            while b"\r\n" not in self._unread:
                assert self._receive()
            size, _, self._unread = self._unread.partition(b"\r\n")
            chunk = self._read_exactly(int(size, 16))
            assert self._read_exactly(2) == b"\r\n"
            if not chunk:
                return body
            body += chunk

    def _read_exactly(self, count: int) -> bytes:
        while len(self._unread) < count:
            if not self._receive():
                raise OSError("the client went away in the middle of a request")
        data, self._unread = self._unread[:count], self._unread[count:]
        return data

    def _receive(self) -> bytes:
        data = self._socket.recv(_BLOCK)
        self._unread += data
        return data


def _head(answer: Respond) -> bytes:
    lines = [f"HTTP/1.1 {answer.status} So Be It"]
    lines += [f"{name}: {value}" for name, value in answer.headers.items()]
    if answer.status >= 200 and answer.status not in (204, 304):
        framing = "Transfer-Encoding: chunked" if answer.chunked else ""
        lines.append(framing or f"Content-Length: {len(answer.body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _body(answer: Respond) -> bytes:
    if answer.status < 200 or answer.status in (204, 304):
        return b""
    if not answer.chunked:
        return answer.body
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(answer.body), answer.body)


@contextmanager
def scripted_server(*actions: Action) -> Iterator[ScriptedServer]:
    """A server with a script. Requests beyond the script get no response."""
    server = ScriptedServer(actions)
    try:
        yield server
    finally:
        server.stop()
