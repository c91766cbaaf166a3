"""What ends a consumer and what does not, in threads and in tasks: the rule of broker_faults.py."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from tests.queues.running_consumer import Handled, RunningConsumer, running, send, wait_until
from tests.support.log_records import Written, written_log

from oncekey import AsyncOnce
from oncekey.core.errors import ConfigurationError
from oncekey.queues import AsyncConsumer, AsyncMemoryBroker
from oncekey.queues.broker import Settled
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.memory_broker import MemoryBroker
from oncekey.queues.queue_message import Message
from oncekey.queues.redrive import GoOn, to_the_end
from oncekey.queues.work_in_hand import WorkInHand

CALLS = ("receive", "settle", "extend")


class FaultyBroker(MemoryBroker):
    """Raises an error at the next call of a method."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, BaseException] = {}

    def _meet(self, call: str) -> None:
        error = self.errors.pop(call, None)
        if error is not None:
            raise error

    def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        self._meet("receive")
        return super().receive(most, min(wait, 0.01), lease)

    def settle(self, settled: Sequence[Settled]) -> None:
        self._meet("settle")
        super().settle(settled)

    def extend(self, messages: Sequence[Message], seconds: float) -> None:
        self._meet("extend")
        super().extend(messages, seconds)

    def close(self) -> None:
        self._meet("close")
        super().close()


@pytest.fixture(params=("threads", "tasks"))
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def log() -> Iterator[Written]:
    with written_log("oncekey", 10) as written:
        yield written


def has_line(log: Written, *words: str) -> bool:
    return any(all(word in line for word in words) for line in log.lines)


@pytest.mark.parametrize("call", CALLS)
def test_an_exception_of_any_class_is_told_and_the_consumer_goes_on(
    kind: str, call: str, log: Written
) -> None:
    queue, handler = FaultyBroker(), Handled(held=True)
    queue.errors[call] = Exception("of no class that anybody names")
    send(queue, 1)
    with running(kind, queue) as made:
        made.start(handler, lease="300ms", retry_safe=True)
        if call == "extend":
            wait_until(lambda: not queue.errors, "extending has failed")
        handler.gate.set()
        wait_until(lambda: not len(queue), "the queue is empty")
        send(queue, 2)
        wait_until(lambda: not len(queue), "the queue is empty again")
    assert made.error is None
    assert handler.ids == [1, 2]
    assert has_line(log, "consumer shipping", "Exception: of no class that anybody names")
    assert has_line(log, "consumer shipping ends: it was stopped")


@pytest.mark.parametrize("call", CALLS)
def test_a_refusal_ends_the_consumer_and_the_log_says_why(
    kind: str, call: str, log: Written
) -> None:
    queue, handler = FaultyBroker(), Handled(held=True)
    queue.errors[call] = refusal = ConfigurationError("the right is missing")
    send(queue, 1)
    with running(kind, queue) as made:
        made.start(handler, lease="300ms")
        if call == "extend":
            wait_until(lambda: not queue.errors, "extending was refused")
        handler.gate.set()
        made.join()
    assert made.error is refusal
    assert has_line(log, "consumer shipping ends: ConfigurationError: the right is missing")


class DeafBroker(MemoryBroker):
    """Never returns from one call, and ignores interruptions."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = call
        self.is_called = threading.Event()
        self.never = threading.Event()

    def _meet(self, call: str) -> None:
        if call == self.call:
            self.is_called.set()
            self.never.wait()

    def facts(self) -> BrokerFacts:
        self._meet("facts")
        return super().facts()

    def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        if not len(self):
            self._meet("receive")
        return super().receive(most, min(wait, 0.01), lease)

    def settle(self, settled: Sequence[Settled]) -> None:
        self._meet("settle")
        super().settle(settled)

    def close(self) -> None:
        self._meet("close")


class AsyncDeafBroker(AsyncMemoryBroker):
    """The same for tasks. It lets nobody cancel it, as a client that catches everything."""

    queue: DeafBroker

    async def _meet(self, call: str) -> None:
        if call == self.queue.call and (call != "receive" or not len(self.queue)):
            self.queue.is_called.set()
            while not self.queue.never.is_set():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.05)

    async def facts(self) -> BrokerFacts:
        await self._meet("facts")
        return self.queue._facts

    async def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        await self._meet("receive")
        await asyncio.sleep(0.01)
        return MemoryBroker.receive(self.queue, most, 0.0, lease)

    async def settle(self, settled: Sequence[Settled]) -> None:
        await self._meet("settle")
        MemoryBroker.settle(self.queue, settled)

    async def extend(self, messages: Sequence[Message], seconds: float) -> None: ...

    async def redrive(
        self, most: int, id: str, *, parked: bool = False, go_on: GoOn = to_the_end
    ) -> int:
        return 0

    async def close(self) -> None:
        await self._meet("close")


@pytest.mark.parametrize("call", ["facts", "receive", "settle", "close"])
def test_a_stop_ends_a_consumer_whose_broker_never_answers(
    kind: str, call: str, log: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("blocking", "aio"):
        for limit in ("RECEIVE_LAST_S", "SETTLE_LAST_S", "LEAVE_LAST_S"):
            monkeypatch.setattr(f"oncekey.queues.{module}.consumer.{limit}", 0.05)
    queue = DeafBroker(call)
    send(queue, 1)
    made = RunningConsumer(kind, queue)
    ended: list[object] = []

    async def run_async() -> None:
        async def handle(message: Message) -> None: ...

        async with AsyncOnce("memory://") as once:
            consumer = AsyncConsumer(
                once,
                handle,
                AsyncDeafBroker(queue),
                name="deaf",
                key="json:$.id",
                stop_timeout="0s",
            )
            run = asyncio.create_task(consumer.run())
            while not queue.is_called.is_set():
                await asyncio.sleep(0.01)
                if call == "close" and not len(queue):
                    consumer.stop()
            consumer.stop()
            await run
            ended.append(consumer)
            queue.never.set()  # the loop waits for what is left in it

    if kind == "tasks":
        asyncio.run(run_async())
    else:
        made.start(Handled(), name="deaf", stop_timeout="0s")
        if call == "close":
            wait_until(lambda: not len(queue), "the message is handled")
        else:
            wait_until(queue.is_called.is_set, "the broker is deaf")
        made.stop()
        made.join()  # while the call still waits
        assert made.error is None
        queue.never.set()
    assert has_line(log, "consumer deaf: the broker does not answer")
    assert has_line(log, "consumer deaf ends: it was stopped")


def test_a_broker_that_cannot_be_left_is_told_and_run_returns(kind: str, log: Written) -> None:
    queue = FaultyBroker()
    queue.errors["close"] = Exception("the door is stuck")
    with running(kind, queue) as made:
        made.start(Handled())
    assert made.error is None
    assert has_line(log, "leaving the broker failed: Exception: the door is stuck")


def test_a_worker_that_fails_ends_the_consumer_and_not_in_silence(
    kind: str, log: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message would be handled by it any more, and nobody would know."""
    bug, end = RuntimeError("a bug"), WorkInHand.end
    was_raised: list[bool] = []

    def fails_once(hand: WorkInHand, *arguments: Any) -> Any:
        settled = end(hand, *arguments)
        if not was_raised:
            was_raised.append(True)
            raise bug
        return settled

    monkeypatch.setattr(WorkInHand, "end", fails_once)
    queue = FaultyBroker()
    send(queue, 1)
    with running(kind, queue) as made:
        made.start(Handled())
        made.join()
    assert made.error is bug
    assert has_line(log, "consumer shipping ends: RuntimeError: a bug")


class CancellingBroker(AsyncMemoryBroker):
    """Cancels calls as aiormq does: nobody has asked for it."""

    cancelled = 0

    async def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        if self.cancelled < 2:
            self.cancelled += 1
            raise asyncio.CancelledError
        return await super().receive(most, min(wait, 0.01), lease)

    async def settle(self, settled: Sequence[Settled]) -> None:
        if self.cancelled < 4:
            self.cancelled += 1
            raise asyncio.CancelledError
        await super().settle(settled)


def test_a_cancellation_of_the_client_is_a_fault_and_one_of_the_task_is_not(log: Written) -> None:
    queue, handled = MemoryBroker(), []

    async def handler(message: Message) -> None:
        handled.append(message.json()["id"])

    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            broker = CancellingBroker(queue)
            options: dict[str, Any] = {"name": "shipping", "key": "json:$.id", "lease": "300ms"}
            consumer = AsyncConsumer(once, handler, broker, **options)
            task = asyncio.create_task(consumer.run())
            send(queue, 1)
            await asyncio.to_thread(wait_until, lambda: not len(queue), "the queue is empty")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(asyncio.wait_for(main(), 60))
    assert handled == [1]
    assert has_line(log, "client has cancelled it", "trying again")
    assert has_line(log, "client has cancelled it", "the messages will come again")
    assert has_line(log, "consumer shipping ends: its task was cancelled")
