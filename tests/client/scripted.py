"""A server on the loopback that does to each request what a test has written down for it.

Owns raw HTTP/1.1 over threads: it must not repair anything. The script is for the whole server, in
the order in which requests (or connections, for what happens before a request is read) come.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_RESET = struct.pack("ii", 1, 0)  # close at once, without a goodbye
_BLOCK = 65_536


@dataclass(frozen=True)
class Seen:
    """A request that was read whole, and the number of the connection it came on."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    @property
    def key(self) -> str | None:
        values = self.all("Idempotency-Key")
        assert len(values) <= 1, values
        return values[0] if values else None


@dataclass(frozen=True)
class Answer:
    """Answer, and keep the connection."""

    status: int = 200
    body: bytes = b"done"
    headers: dict[str, str] = field(default_factory=dict)
    chunked: bool = False


@dataclass(frozen=True)
class Hang:
    """Read the request, say that it is here, and go on when told; or never."""

    then: Answer | Drop = Answer()
    here: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Slow:
    """Begin to answer, say so after some bytes of the body, and go on when told."""

    after: int
    answer: Answer
    here: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Drop:
    """End the connection: without reading the request, or having read it; politely, or not."""

    read: bool = True
    reset: bool = False


@dataclass(frozen=True)
class Cut:
    """Begin to answer and end the connection after some bytes of the body."""

    after: int
    answer: Answer = Answer(body=b"x" * 1_000)
    reset: bool = False


@dataclass(frozen=True)
class Say:
    """Send these bytes as they are, and end the connection."""

    data: bytes


Act = Answer | Hang | Slow | Drop | Cut | Say


class Scripted:
    """`with serving(Drop(), Answer()) as server:` and then send to `server.url`."""

    def __init__(self, acts: Iterable[Act]) -> None:
        self.seen: list[Seen] = []
        self.connections = 0
        self._acts = list(acts)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._ended = False
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def keys(self) -> list[str | None]:
        return [seen.key for seen in self.seen]

    def is_used_up(self) -> bool:
        return not self._acts

    def stop(self) -> None:
        with self._lock:
            self._ended = True
            hanging = [act for act in self._acts if isinstance(act, (Hang, Slow))]
            waiting = list(self._open.items())
        for act in [*hanging, *self._hung]:
            act.go.set()
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for connection, _ in waiting:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in [self._thread, *(thread for _, thread in waiting)]:
            thread.join(10)
            assert not thread.is_alive()

    # --- inside -----------------------------------------------------------------------------------

    _hung: tuple[Hang | Slow, ...] = ()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._door.accept()
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
            while self._turn(wire, number):
                pass
        except OSError:
            pass  # the client was faster
        finally:
            connection.close()
            with self._lock:
                self._open.pop(connection, None)

    def _turn(self, wire: _Wire, number: int) -> bool:
        """One request. Whether the connection stays."""
        with self._lock:
            if self._acts and isinstance(self._acts[0], Drop) and not self._acts[0].read:
                act: Act = self._acts.pop(0)
                wire.end(reset=isinstance(act, Drop) and act.reset)
                return False
        request = wire.read_request(number)
        if request is None:
            return False
        with self._lock:
            self.seen.append(request)
            act = self._acts.pop(0) if self._acts else Say(b"")
            if isinstance(act, (Hang, Slow)):
                self._hung = (*self._hung, act)
        return self._act(wire, act)

    def _act(self, wire: _Wire, act: Act) -> bool:
        if isinstance(act, Hang):
            act.here.set()
            act.go.wait(60)
            act = act.then
        if isinstance(act, Answer):
            wire.send(_head(act) + _body(act))
            return True
        if isinstance(act, Slow):
            wire.send(_head(act.answer) + _body(act.answer)[: act.after])
            act.here.set()
            act.go.wait(60)
            wire.send(_body(act.answer)[act.after :])
            return True
        if isinstance(act, Cut):
            wire.send(_head(act.answer) + _body(act.answer)[: act.after])
            wire.end(reset=act.reset)
        elif isinstance(act, Say):
            wire.send(act.data)
            wire.end(reset=False)
        else:
            wire.end(reset=act.reset)
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

    def read_request(self, number: int) -> Seen | None:
        """The next request; None where the client has gone."""
        while b"\r\n\r\n" not in self._unread:
            if not self._more():
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
        return Seen(method, target, headers, body, number)

    def _read_chunks(self) -> bytes:
        body = b""
        while True:
            while b"\r\n" not in self._unread:
                assert self._more()
            size, _, self._unread = self._unread.partition(b"\r\n")
            chunk = self._read_exactly(int(size, 16))
            assert self._read_exactly(2) == b"\r\n"
            if not chunk:
                return body
            body += chunk

    def _read_exactly(self, count: int) -> bytes:
        while len(self._unread) < count:
            if not self._more():
                raise OSError("the client went away in the middle of a request")
        data, self._unread = self._unread[:count], self._unread[count:]
        return data

    def _more(self) -> bytes:
        data = self._socket.recv(_BLOCK)
        self._unread += data
        return data


def _head(answer: Answer) -> bytes:
    lines = [f"HTTP/1.1 {answer.status} So Be It"]
    lines += [f"{name}: {value}" for name, value in answer.headers.items()]
    if answer.status >= 200 and answer.status not in (204, 304):
        framing = "Transfer-Encoding: chunked" if answer.chunked else ""
        lines.append(framing or f"Content-Length: {len(answer.body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _body(answer: Answer) -> bytes:
    if answer.status < 200 or answer.status in (204, 304):
        return b""
    if not answer.chunked:
        return answer.body
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(answer.body), answer.body)


@contextmanager
def serving(*acts: Act) -> Iterator[Scripted]:
    """A server with a script; what is asked beyond it is ended without an answer."""
    server = Scripted(acts)
    try:
        yield server
    finally:
        server.stop()
