"""A broker that settles slowly or never, or is left in the middle of something."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from tests.queues.running_consumer import PATIENCE_S, running, until, wait_until

from oncekey import AsyncOnce, Once
from oncekey.queues import AsyncConsumer, AsyncMemoryBroker, Consumer, Kind
from oncekey.queues.broker import Settled
from oncekey.queues.consumer_base import BATCHES_IN_HAND
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.memory_broker import MemoryBroker
from oncekey.queues.queue_message import Message
from oncekey.stores.memory import MemoryStore

BATCH = 4
MOST = BATCHES_IN_HAND * BATCH
OPTIONS: dict[str, Any] = {"name": "shipping", "key": "json:$.id", "retry_safe": True}


def filled(broker: MemoryBroker, count: int) -> MemoryBroker:
    for id in range(count):
        broker.send(json.dumps({"id": id}))
    return broker


class SlowBroker(MemoryBroker):
    """Settles when the gate is open; `taken` counts what was received."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.settling = threading.Event()
        self.taken = 0
        self.closed = 0
        self.asked_for_none = 0

    def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        found = super().receive(most, wait, lease)
        self.taken += len(found)
        self.asked_for_none += most == 0
        return found

    def settle(self, settled: Sequence[Settled]) -> None:
        self.settling.set()
        assert self.gate.wait(PATIENCE_S)
        super().settle(settled)

    def close(self) -> None:
        self.closed += 1


class AsyncSlowBroker(AsyncMemoryBroker):
    """The same for tasks."""

    queue: SlowBroker

    async def settle(self, settled: Sequence[Settled]) -> None:
        self.queue.settling.set()
        await until(self.queue.gate.is_set)
        await super().settle(settled)


def test_i11_no_more_than_two_batches_are_taken_while_none_is_settled() -> None:
    queue = SlowBroker()
    filled(queue, 10 * BATCH)
    with running("threads", queue) as made:
        made.start(lambda message: None, retry_safe=True, batch=BATCH, concurrency=BATCH)
        wait_until(lambda: made.consumer.in_hand == MOST, "two batches are in hand")
        asked = queue.asked_for_none
        wait_until(lambda: queue.asked_for_none > asked, "the consumer asks for no more")
        taken = queue.taken
        queue.gate.set()
        wait_until(lambda: not len(queue), "the queue is empty")
    assert taken == MOST
    assert made.consumer.in_hand == 0


def in_a_loop(
    queue: SlowBroker,
    play: Callable[[AsyncConsumer, asyncio.Task[None]], Coroutine[Any, Any, None]],
    handler: Callable[[Message], Coroutine[Any, Any, None]] | None = None,
    **options: Any,
) -> AsyncConsumer:
    """Plays a scene with a consumer that runs in a task, and leaves the loop at its end."""

    async def nothing(message: Message) -> None:
        return None

    async def main() -> AsyncConsumer:
        once = AsyncOnce("memory://")
        consumer = AsyncConsumer(
            once, handler or nothing, AsyncSlowBroker(queue), **OPTIONS, **options
        )
        await play(consumer, asyncio.create_task(consumer.run()))
        return consumer

    return asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_i11_the_same_holds_for_tasks() -> None:
    queue = SlowBroker()
    filled(queue, 10 * BATCH)
    seen: list[int] = []

    async def play(consumer: AsyncConsumer, run: asyncio.Task[None]) -> None:
        await until(lambda: consumer.in_hand == MOST)
        asked = queue.asked_for_none
        await until(lambda: queue.asked_for_none > asked)
        seen.append(queue.taken)
        queue.gate.set()
        await until(lambda: not len(queue))
        consumer.stop()
        await run
        seen.append(consumer.in_hand)

    in_a_loop(queue, play, batch=BATCH, concurrency=BATCH)
    assert seen == [MOST, 0]


def test_a_stop_does_not_wait_for_ever_for_a_broker_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("oncekey.queues.blocking.consumer.SETTLE_LAST_S", 0.05)
    queue = SlowBroker()
    filled(queue, 1)
    with running("threads", queue) as made:
        made.start(lambda message: None, stop_timeout="0s")
        assert queue.settling.wait(PATIENCE_S)
        made.stop()
        made.join()
        queue.gate.set()
    assert "the broker does not answer" in caplog.text


def test_nor_does_a_stop_in_a_loop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("oncekey.queues.aio.consumer.SETTLE_LAST_S", 0.05)
    queue = SlowBroker()
    filled(queue, 1)

    async def play(consumer: AsyncConsumer, run: asyncio.Task[None]) -> None:
        await until(queue.settling.is_set)
        consumer.stop()
        await run

    in_a_loop(queue, play, stop_timeout="0s")
    assert "the broker does not answer" in caplog.text
    assert queue.closed == 1


# --- left in the middle ---------------------------------------------------------------------------


async def _for_an_hour(message: Message) -> None:
    await asyncio.sleep(3600)


def test_a_loop_that_is_left_gives_messages_back_and_leaves_the_broker() -> None:
    """Its consumer runs in a task, and the main one returns: asyncio cancels every task."""
    queue = SlowBroker()
    queue.gate.set()
    filled(queue, 3)

    async def play(consumer: AsyncConsumer, run: asyncio.Task[None]) -> None:
        await until(lambda: consumer.in_hand == 3)

    consumer = in_a_loop(queue, play, _for_an_hour, lease="1h", concurrency=1)
    assert consumer.counts == {Kind.GIVE_BACK: 3}
    assert len(queue.receive(3, 0.0, 1.0)) == 3
    assert queue.closed == 1


@pytest.mark.parametrize("turns", list(itertools.product(range(4), range(3), range(4))))
def test_a_loop_ends_though_its_consumer_was_cancelled_twice(turns: tuple[int, int, int]) -> None:
    """The second one leaves the first one's graceful end behind, which the loop then cancels.
    `turns` says how often the loop turns before each of the three."""
    queue = SlowBroker()
    queue.gate.set()
    filled(queue, 3)

    async def turn(times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(0)

    async def play(consumer: AsyncConsumer, run: asyncio.Task[None]) -> None:
        while consumer.in_hand < 3:
            await turn(1)
        for times in turns[:2]:
            await turn(times)
            run.cancel()
        await turn(turns[2])

    loop = threading.Thread(target=in_a_loop, args=(queue, play, _for_an_hour), daemon=True)
    loop.start()
    loop.join(PATIENCE_S)
    assert not loop.is_alive()


class InterruptedStore(MemoryStore):
    """Ctrl-C comes while a batch of claims is under way."""

    immediate = False

    def apply(self, commands: Any) -> Any:
        replies = super().apply(commands)
        if len(commands) > 1:
            raise KeyboardInterrupt
        return replies


def test_an_interrupted_claim_gives_its_messages_back_at_once() -> None:
    queue = SlowBroker()
    queue.gate.set()
    filled(queue, 3)
    with Once(InterruptedStore()) as once:
        consumer = Consumer(once, lambda message: None, queue, **OPTIONS, stop_timeout="1h")
        with pytest.raises(KeyboardInterrupt):
            consumer.run()
    assert consumer.counts == {Kind.GIVE_BACK: 3}
    assert consumer.in_hand == 0


class CountedQueue(MemoryBroker):
    """Notes how many messages each receive has brought."""

    def __init__(self, *, ordered: bool) -> None:
        super().__init__("orders", facts=BrokerFacts("orders", ordered=ordered))
        self.brought: list[int] = []

    def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        messages = super().receive(most, wait, lease)
        if messages:
            self.brought.append(len(messages))
        return messages


@pytest.mark.parametrize("kind", ["threads", "tasks"])
@pytest.mark.parametrize("ordered", [False, True])
def test_while_work_waits_messages_are_taken_in_good_parts_of_a_batch(
    kind: str, ordered: bool
) -> None:
    """Where messages have an order, those in hand may all wait for one: then any room is used."""
    queue = CountedQueue(ordered=ordered)
    gate, passed = threading.Semaphore(0), []

    def handle(message: Message) -> None:
        assert gate.acquire(timeout=PATIENCE_S)
        passed.append(message.delivery_id)

    for number in range(40):
        queue.send(f'{{"id": {number}}}')
    with running(kind, queue) as made:
        made.start(handle, retry_safe=True, concurrency=4, batch=20)
        wait_until(lambda: queue.brought == [20], "the first batch is taken")
        gate.release(3)
        wait_until(lambda: made.consumer.counts[Kind.REMOVE] == 3, "three are settled")
        if ordered:
            wait_until(lambda: len(queue.brought) > 1, "more are taken")
        gate.release(5)
        wait_until(lambda: len(queue.brought) > 1, "more are taken")
        gate.release(40)
        wait_until(lambda: not len(queue), "the queue is empty")
    assert len(passed) == 40
    if ordered:
        assert queue.brought[1] <= 3, "any room"
    else:
        assert queue.brought[1] >= 8, "half of those that may wait"
