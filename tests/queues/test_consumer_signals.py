"""`stop` may be called by a signal handler, which interrupts the thread that receives anywhere."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

from oncekey import Once
from oncekey.queues import BrokerUnavailable, Consumer, MemoryBroker, Message


class InterruptingBroker(MemoryBroker):
    """Is away the first time; in the second call a signal comes."""

    calls = 0

    def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        self.calls += 1
        if self.calls == 1:
            raise BrokerUnavailable("away")
        signal.raise_signal(signal.SIGUSR1)
        return super().receive(most, 0.0, lease)  # it has missed the interruption


def test_a_signal_handler_stops_the_consumer_of_its_own_thread() -> None:
    with Once("memory://") as once:
        broker = InterruptingBroker("orders")
        consumer = Consumer(once, lambda message: None, broker, name="ship", key="json:$.id")

        def stop(number: int, frame: FrameType | None) -> None:
            consumer.stop()

        before = signal.signal(signal.SIGUSR1, stop)
        try:
            consumer.run()
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert broker.calls >= 2  # the handler runs in the main thread, and receiving goes on


def test_a_signal_in_a_waiting_receive_ends_it() -> None:
    """`interrupt` takes the queue's own lock, which the interrupted thread may hold."""
    queue = MemoryBroker("orders")
    ended: list[Sequence[Message]] = []
    with queue._changed:  # as if the signal came inside of `receive`
        queue.interrupt()
    thread = threading.Thread(target=lambda: ended.append(queue.receive(1, 60.0, 30.0)))
    thread.start()
    while not ended:
        queue.interrupt()
    thread.join()
    assert list(ended[0]) == []


def test_a_signal_in_the_middle_of_a_stop_does_not_wait_for_itself() -> None:
    """It comes in every line of the events that the receiving thread sets on its way out."""
    came: list[int] = []

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code is not threading.Event.set.__code__:
            return None
        if event == "line":
            signal.raise_signal(signal.SIGUSR1)
        return trace

    with Once("memory://") as once:
        consumer = Consumer(
            once, lambda message: None, MemoryBroker("orders"), name="ship", key="json:$.id"
        )

        def stop(number: int, frame: FrameType | None) -> None:
            came.append(number)
            consumer.stop()

        before = signal.signal(signal.SIGUSR1, stop)
        consumer.stop()
        traced = sys.gettrace()
        sys.settrace(trace)
        try:
            consumer.run()
        finally:
            sys.settrace(traced)
            signal.signal(signal.SIGUSR1, before)
    assert came
