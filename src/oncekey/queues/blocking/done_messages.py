"""What the workers of a consumer have done, on its way to the thread that settles it."""

from __future__ import annotations

import queue

from oncekey.queues.broker import Settled


def take_done(
    done: queue.SimpleQueue[list[Settled] | None], wait: float
) -> tuple[list[Settled], bool]:
    """Everything that is done by now, after waiting for the first of it; and whether that is all
    there will be, which a None says."""
    settled: list[Settled] = []
    try:
        part = done.get(timeout=wait)
        while part is not None:
            settled += part
            part = done.get_nowait()
    except queue.Empty:
        return settled, False
    return settled, True
