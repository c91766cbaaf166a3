"""A start in an event loop that is cancelled, wherever it waits then, leaves no connection open.

aiokafka itself leaves one open if it is cancelled while it asks for the cluster, so oncekey waits
for the answer; its starts have tests of their own.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import types
import warnings
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any

import pytest
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.metadata import MetadataRequest
from tests.queues.client_seams import Seam
from tests.queues.fault_cases import CASES, FaultCase, Topics
from tests.queues.kafka_topics import SECONDS
from tests.queues.running_consumer import PATIENCE_S
from tests.support.kafka_servers import quick_kafka_mock
from tests.support.servers import processes

from oncekey import AsyncOnce
from oncekey.queues.kafka import AsyncKafkaSender
from oncekey.queues.kafka.aiokafka_topics import AiokafkaIds
from oncekey.queues.outbox.outgoing_message import OutgoingMessage
from oncekey.queues.queue_message import Message

ASYNC_CASES = ("rabbitmq-aio-pika", "kafka-aiokafka", "sqs-aiobotocore", "redis-async")
OPTIONS: dict[str, Any] = {"name": "shipping", "key": "json:$.order", "retry_safe": True}


@types.coroutine
def cancelled_at(number: int, work: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
    """Do the work in the running task, which is cancelled when it waits for the time of this
    number."""
    raised: BaseException | None = None
    waits = itertools.count(1)
    while True:
        try:
            what = work.send(None) if raised is None else work.throw(raised)
        except StopIteration:
            return
        if next(waits) == number:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        try:
            raised = None
            yield what
        except BaseException as error:
            raised = error


async def is_cancelled(case: FaultCase, queue: str, number: int) -> bool:
    """Cancel a broker's start at this wait, and leave it; False if it had started before."""

    async def nothing(message: Message) -> None: ...

    async with AsyncOnce("memory://") as once:
        broker = case.queues.async_consumer(once, queue, nothing, **OPTIONS).broker

        async def start() -> None:
            await broker.facts()
            await broker.receive(1, 0.0, 1.0)

        async def cancelled_start() -> None:
            await cancelled_at(number, start())

        starting = asyncio.ensure_future(cancelled_start())
        await asyncio.wait((starting,))
        await broker.close()
        if starting.cancelled():
            return True
        starting.result()  # raises what else has ended it
        return False


@pytest.mark.parametrize("name", ASYNC_CASES)
def test_a_broker_that_is_left_while_it_starts_leaves_nothing_open(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name](monkeypatch)
    case.watch(Seam(monkeypatch))
    queue = processes.fresh_name("orders")
    case.queues.send(queue, ['{"order": 1}'])
    gc.collect()
    left: dict[int, list[str]] = {}
    for number in itertools.count(1):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            call = is_cancelled(case, queue, number)
            is_early = asyncio.run(asyncio.wait_for(call, PATIENCE_S))
            gc.collect()
        if open_still := [each for each in told if issubclass(each.category, ResourceWarning)]:
            left[number] = [str(each.message) for each in open_still]
        if not is_early:
            break
    assert number > 1, "no start was cancelled"
    assert left == {}


# --- aiokafka ------------------------------------------------------------------------------------

Start = Callable[[str, Any], Coroutine[Any, Any, object]]


async def _send(queue: str, broker: Any) -> None:
    sender = AsyncKafkaSender({"bootstrap_servers": broker._config["bootstrap_servers"]})
    try:
        await sender.send([OutgoingMessage("id-1", queue, b"{}")])
    finally:
        await sender.close()


async def _ask_for_ids(queue: str, broker: Any) -> None:
    asking = AiokafkaIds(broker._config, SECONDS)
    try:
        await asking.ids([queue])
    finally:
        await asking.close()


# What asks for the cluster, and how often before the request that is cancelled.
STARTS: dict[str, tuple[Start, int]] = {
    "the topics are asked for": (lambda queue, broker: broker.facts(), 0),
    "their ids are asked for": (_ask_for_ids, 0),
    "the facts have been told but for the ids": (lambda queue, broker: broker.facts(), 1),
    "the producer starts": (lambda queue, broker: broker.receive(1, SECONDS, 1.0), 2),
    "the consumer starts": (lambda queue, broker: broker.receive(1, SECONDS, 1.0), 3),
    "letters are redriven": (lambda queue, broker: broker.redrive(1, "repair-1"), 0),
    "an outbox is sent": (_send, 0),
}


@pytest.mark.parametrize("what", STARTS)
def test_a_start_of_aiokafka_leaves_no_connection_open(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics, queue = Topics(quick_kafka_mock().client), processes.fresh_name("orders")
    topics.send(queue, ['{"order": 1}'])
    opened: list[AIOKafkaConnection] = []
    send = AIOKafkaConnection.send

    async def nothing(message: Message) -> None: ...

    async def main() -> None:
        start, before = STARTS[what]
        asked, go_on, left = asyncio.Event(), asyncio.Event(), before

        async def held(self: AIOKafkaConnection, request: Any, **options: Any) -> Any:
            nonlocal left
            opened.append(self)
            if type(request) is MetadataRequest and self._on_close_cb is None:
                # It is the first request of a client, over a connection that only its start knows.
                if not left:
                    asked.set()
                    await go_on.wait()
                left -= 1
            return await send(self, request, **options)

        monkeypatch.setattr(AIOKafkaConnection, "send", held)
        async with AsyncOnce("memory://") as once:
            broker = topics.async_consumer(once, queue, nothing, name="ship", key="json:$.order")
            starting = asyncio.ensure_future(start(queue, broker.broker))
            await asked.wait()
            starting.cancel()
            asyncio.get_running_loop().call_soon(go_on.set)
            with suppress(asyncio.CancelledError):
                await starting
            assert starting.cancelled()
            await broker.broker.close()

    asyncio.run(asyncio.wait_for(main(), SECONDS))
    assert opened
    assert not any(each.connected() for each in opened)
    gc.collect()  # nothing warns of what was left open
