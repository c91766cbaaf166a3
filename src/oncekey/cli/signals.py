"""How signals end a command that runs until it is interrupted.

The first SIGINT or SIGTERM ends it after the work in progress, the second one at once.
"""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_WAKES = 64  # bytes read at a time; more than one only mean the same


class StopRequest:
    """Whether the command should end, and a sleep that ends then.

    It uses a socket, not an Event, whose lock might be held by the code that the signal interrupts.
    """

    def __init__(self) -> None:
        self.requested = False
        self._waiting, self._waking = socket.socketpair()
        self._waking.setblocking(False)

    def request(self) -> None:
        self.requested = True
        self._waking.send(b"!")

    def wake(self) -> None:
        """End the sleep without a request, from another thread."""
        self._waking.send(b".")

    def wait(self, seconds: float) -> None:
        """Sleep; ends at once after a request, and once after each `wake`."""
        if select.select([self._waiting], [], [], seconds)[0] and not self.requested:
            self._waiting.recv(_WAKES)

    def close(self) -> None:
        self._waiting.close()
        self._waking.close()


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """While this is open, SIGINT and SIGTERM request a stop; a second signal acts as usual."""
    stop = StopRequest()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def end(number: int, frame: FrameType | None) -> None:
        stop.request()
        restore()

    for number in before:
        signal.signal(number, end)
    try:
        yield stop
    finally:
        restore()
        stop.close()
