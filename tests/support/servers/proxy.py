"""A TCP proxy on the loopback that breaks connections on demand, as networks do.

This module owns the links between clients and one server, and what happens to the bytes in transit.
It must not know the protocol above TCP. Any thread may call a control, and the control is in effect
when the call returns.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self, TypeVar, cast

from tests.support.servers.processes import ServerFailed, wait_until

Direction = Literal["requests", "replies"]
Result = TypeVar("Result")
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 seconds: close sends a reset
_SECONDS = 30
_OPENING_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _End:
    """The end of what a sender sent: an orderly close, or a reset."""

    reset: bool


class _Pipe(asyncio.Protocol):
    """The bytes that one side sends to the other."""

    def __init__(self, link: _Link, direction: Direction) -> None:
        self.link = link
        self.direction = direction
        self.source: asyncio.Transport | None = None
        self.other: _Pipe | None = None
        self.waiting: list[bytes | _End] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.source = cast(asyncio.Transport, transport)
        if self.link not in self.link.proxy.links:
            reset(self.source)  # `cut` came before the connection was made

    def data_received(self, data: bytes) -> None:
        if self.direction == "requests" and self.link.is_rejected_after(data):
            return
        if not self.link.drops_reply(self.direction, data):
            self.push(data)

    def eof_received(self) -> None:
        return None  # asyncio closes this half too; connection_lost informs the other side

    def connection_lost(self, error: Exception | None) -> None:
        self.push(_End(reset=error is not None))

    def pause_writing(self) -> None:
        if self.other is not None and self.other.source is not None:
            self.other.source.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.source is not None:
            self.other.source.resume_reading()

    def push(self, item: bytes | _End) -> None:
        self.waiting.append(item)
        self.flush()

    def flush(self) -> None:
        """Pass on what waits, unless this direction is held."""
        target = self.other.source if self.other is not None else None
        if self.link.proxy.holds(self.direction) or target is None:
            return
        items, self.waiting = self.waiting, []
        for item in items:
            if isinstance(item, _End):
                reset(target) if item.reset else target.close()
                self.link.proxy.links.discard(self.link)
            else:
                self.link.note_passed(self.direction, item)
                target.write(item)


class _Link:
    """One client's connection, and the connection to the server that belongs to it."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.requests = _Pipe(self, "requests")
        self.replies = _Pipe(self, "replies")
        self.drops = False
        self.opening = b""
        proxy.links.add(self)

    async def connect(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self.replies, host, port)
        except OSError:
            self.cut()
            return
        if self not in self.proxy.links:
            self.cut()  # again, because `cut` came during the connect
            return
        self.requests.other, self.replies.other = self.replies, self.requests
        self.flush()

    def flush(self) -> None:
        self.requests.flush()
        self.replies.flush()

    def cut(self) -> None:
        self.proxy.links.discard(self)
        for pipe in (self.requests, self.replies):
            pipe.waiting.clear()
            pipe.other = None
        for pipe in (self.requests, self.replies):
            if pipe.source is not None:
                reset(pipe.source)

    def note_passed(self, direction: Direction, data: bytes) -> None:
        if direction == "requests" and self.proxy.wants_to_drop(data):
            self.drops = True

    def is_rejected_after(self, data: bytes) -> bool:
        """True if the client's first bytes say that it is rejected; then the link is cut."""
        self.opening = (self.opening + data)[:_OPENING_BYTES]
        if self.is_rejected():
            self.cut()
            return True
        return False

    def is_rejected(self) -> bool:
        return any(mark in self.opening for mark in self.proxy.rejected)

    def drops_reply(self, direction: Direction, data: bytes) -> bool:
        """True if this reply is to be lost, or all but its first bytes; then the link is cut."""
        if direction == "requests" or not self.drops:
            return False
        first = data[: self.proxy.kept_bytes]
        if first and self.requests.source is not None:
            self.requests.source.write(first)
        self.cut()
        self.proxy.count_drop()
        return True


class Proxy:
    """One proxy: `with Proxy(server.port) as proxy:`, then connect to `proxy.port` instead."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._target = (host, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._listener: asyncio.Server | None = None
        self._held: set[Direction] = set()
        self._drop_after: bytes = b""
        self._to_drop = 0
        self.kept_bytes = 0
        self._dropped = threading.Semaphore(0)
        self.links: set[_Link] = set()
        self.rejected: set[bytes] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    # --- lifetime -------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        self._thread.start()
        self.accept()

    def close(self) -> None:
        """Reset every connection and end. A closed proxy cannot be started again."""
        if self._thread.is_alive():
            self.refuse()
            self.cut()
            self._run(self._finish_tasks)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    # --- controls -------------------------------------------------------------------------------

    def cut(self) -> None:
        """Reset every open connection, on both sides. New connections are accepted."""

        def cut_all() -> None:
            for link in tuple(self.links):
                link.cut()

        self._call(cut_all)

    def drop_replies(self, after: bytes = b"", times: int = 1, keep: int = 0) -> None:
        """Lose replies: the server gets the request, and the client gets a reset.

        after   loses the replies only to requests that contain it, such as b"COMMIT"
        times   how many replies are lost
        keep    how many bytes of each reply the client gets before the reset
        """

        def arm() -> None:
            self._drop_after, self._to_drop, self.kept_bytes = after, times, keep

        self._call(arm)

    def wait_until_dropped(self, seconds: float = _SECONDS) -> None:
        """Wait until one more reply was lost; the server has then done its work."""
        if not self._dropped.acquire(timeout=seconds):
            raise ServerFailed(f"no reply was lost within {seconds:g} s")

    def hold(self, *directions: Direction) -> None:
        """Hold back everything until `resume`, in both directions or in those given."""
        self._call(lambda: self._held.update(directions or ("requests", "replies")))

    def wait_until_held(self, direction: Direction = "requests", seconds: float = _SECONDS) -> None:
        """Wait until something is held back in that direction."""

        def is_waiting() -> bool:
            return any(getattr(link, direction).waiting for link in self.links)

        wait_until(lambda: self._call(is_waiting), f"{direction} are held", seconds)

    def resume(self) -> None:
        """Pass on what is held, and hold back nothing more."""

        def flush() -> None:
            self._held.clear()
            for link in tuple(self.links):
                link.flush()

        self._call(flush)

    def refuse(self) -> None:
        """Refuse new connections. Open ones stay open."""

        async def stop_listening() -> None:
            if self._listener is None:
                return
            for listening in self._listener.sockets:
                self._loop.remove_reader(listening.fileno())
            # Connections that are being accepted are waited for: asyncio's server forgets them when
            # it closes, and nothing else would close them.
            accepting = asyncio.all_tasks() - {asyncio.current_task()} - self._tasks
            if accepting:
                await asyncio.wait(accepting, timeout=_SECONDS)
            self._listener.close()
            self._listener = None

        self._run(stop_listening)

    def reject(self, opening: bytes) -> None:
        """Reset connections, open and new, whose first bytes from the client contain `opening`.

        So one of several clients is cut off, if it names itself.
        """

        def reject_now() -> None:
            self.rejected.add(opening)
            for link in tuple(self.links):
                if link.is_rejected():
                    link.cut()

        self._call(reject_now)

    def accept(self) -> None:
        """Accept connections again, on the same port."""

        async def listen() -> None:
            if self._listener is None:
                self._listener = await self._loop.create_server(
                    self._new_link, "127.0.0.1", self.port, reuse_address=True
                )
                self.port = self._listener.sockets[0].getsockname()[1]

        self._run(listen)

    def heal(self) -> None:
        """Undo every control: nothing is lost, held, refused or rejected any more."""
        self._call(self.rejected.clear)
        self.drop_replies(times=0)
        self.resume()
        self.accept()

    @property
    def is_open(self) -> bool:
        """True between `start` and `close`."""
        return self._thread.is_alive()

    @property
    def connections(self) -> int:
        return self._call(lambda: len(self.links))

    # --- what links call, on the loop's thread ----------------------------------------------------

    def holds(self, direction: Direction) -> bool:
        return direction in self._held

    def wants_to_drop(self, request: bytes) -> bool:
        if self._to_drop == 0 or self._drop_after not in request:
            return False
        self._to_drop -= 1
        return True

    def count_drop(self) -> None:
        self._dropped.release()

    def _new_link(self) -> asyncio.Protocol:
        link = _Link(self)
        task = self._loop.create_task(link.connect(*self._target))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return link.requests

    async def _finish_tasks(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # in the first, closed transports call connection_lost

    # --- calls from other threads ---------------------------------------------------------------

    def _call(self, function: Callable[[], Result]) -> Result:
        async def called() -> Result:
            return function()

        return self._run(called)

    def _run(self, make: Callable[[], Coroutine[None, None, Result]]) -> Result:
        return asyncio.run_coroutine_threadsafe(make(), self._loop).result(_SECONDS)


def reset(transport: asyncio.Transport) -> None:
    """Close with a reset, as a machine does that has lost the connection by a restart."""
    sock = transport.get_extra_info("socket")
    if sock is not None and not transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()
