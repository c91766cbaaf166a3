"""How a command that goes on and on is told to end: after what is under way, or at once.

Owns the signals while such a command runs.
"""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether we were told to end, and a sleep that ends then.

    A socket, not an Event: its lock might be held by the very code that the signal interrupts.
    """

    def __init__(self) -> None:
        self.told = False
        self._waiting, self._waking = socket.socketpair()
        self._waking.setblocking(False)

    def tell(self) -> None:
        self.told = True
        self._waking.send(b"!")

    def wait(self, seconds: float) -> None:
        select.select([self._waiting], [], [], seconds)

    def close(self) -> None:
        self._waiting.close()
        self._waking.close()


@contextmanager
def until_told() -> Iterator[Stop]:
    """SIGINT and SIGTERM end the loop after what is under way; a second one ends it at once."""
    stop = Stop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def end(number: int, frame: FrameType | None) -> None:
        stop.tell()
        restore()

    for number in before:
        signal.signal(number, end)
    try:
        yield stop
    finally:
        restore()
        stop.close()
