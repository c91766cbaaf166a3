"""A member of a group that loses its partitions while a record or a commit of it is under way.

The partition of a record must not wait for it for ever: the next member gets its message again. A
commit must not be sent for whichever member its client is later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import RequestTimedOutError
from tests.queues.fault_cases import Topics
from tests.queues.running_consumer import until
from tests.support.kafka_servers import quick_kafka_mock
from tests.support.servers import processes

from oncekey import AsyncOnce, Once
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.disposition import DeadLetter, Disposition, Kind
from oncekey.queues.kafka.confluent_member import GroupMember
from oncekey.queues.queue_message import Message

DEAD = Disposition(Kind.DEAD_LETTER, dead_letter=DeadLetter("never"))
DONE = Disposition(Kind.REMOVE)
OPTIONS: dict[str, Any] = {"name": "shipping", "key": "json:$.order", "order": "partition"}
TIMES = 1_000
WAIT_S = 0.2


@pytest.fixture
def topics() -> Topics:
    return Topics(quick_kafka_mock().client)


async def received(broker: Any) -> Sequence[Message]:
    for _ in range(TIMES):
        if found := await broker.receive(1, WAIT_S, 1.0):
            return list(found)
    raise AssertionError("the message does not come")


@pytest.mark.parametrize("is_late", [False, True], ids=["written before", "written after"])
def test_aiokafka_frees_the_partition_of_a_write_that_was_given_up(
    topics: Topics, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = processes.fresh_name("orders")
    topics.send(queue, ['{"order": 1}'])

    async def nothing(message: Message) -> None: ...

    async def never(*record: object, **more: object) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            broker: Any = topics.async_consumer(once, queue, nothing, **OPTIONS).broker
            (message,) = await received(broker)
            with monkeypatch.context() as patch:
                patch.setattr(type(broker._producer), "send_and_wait", never)
                if not is_late:
                    await broker.settle([(message, DEAD)])
                broker._fail(Exception("the client is broken"))
                with pytest.raises(BrokerUnavailable, match="the client is broken"):
                    await broker.receive(1, WAIT_S, 1.0)
            if is_late:
                await broker._drop()
                await broker.settle([(message, DEAD)])
            (again,) = await received(broker)
            assert again.delivery_id == message.delivery_id
            await broker.settle([(again, DEAD)])
            await broker.close()

    asyncio.run(main())
    assert topics.is_drained(queue)


@pytest.mark.parametrize("is_put_out", [False, True], ids=["rebalanced", "put out"])
def test_i1_a_commit_of_aiokafka_is_not_sent_again_by_a_later_member(
    topics: Topics, is_put_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would set back what another member has committed meanwhile."""
    queue = processes.fresh_name("orders")
    topics.send(queue, ['{"order": 1}'])
    send_commit = GroupCoordinator._do_commit_offsets
    sent: list[tuple[int, int]] = []  # generations, and the offsets that they committed
    is_under_way, may_fail = asyncio.Event(), asyncio.Event()

    async def failing(self: Any, assignment: object, offsets: Any) -> None:
        sent.extend((self.generation, each.offset) for each in offsets.values())
        if sent[-1][1] and not is_under_way.is_set():
            is_under_way.set()
            await may_fail.wait()
            raise RequestTimedOutError  # after which aiokafka sends it again
        await send_commit(self, assignment, offsets)

    async def nothing(message: Message) -> None: ...

    async def main() -> None:
        monkeypatch.setattr(GroupCoordinator, "_do_commit_offsets", failing)
        async with AsyncOnce("memory://") as once:
            broker: Any = topics.async_consumer(once, queue, nothing, **OPTIONS).broker
            (message,) = await received(broker)
            coordinator = broker._consumer._coordinator
            first = coordinator.generation
            await broker.settle([(message, DONE)])
            await is_under_way.wait()
            if is_put_out:
                await coordinator._maybe_leave_group()
                coordinator.reset_generation()
            else:
                coordinator.request_rejoin()
            held = broker._work._assigned._assignments
            await until(lambda: not held or any(each.is_ending for each in held.values()))
            assert held, "partitions were given back before the commit had ended"
            may_fail.set()
            await until(lambda: coordinator.generation not in (first, -1) and bool(held))
            assert not [offset for generation, offset in sent if generation > first and offset]
            await broker.close()

    asyncio.run(main())


@pytest.mark.parametrize("is_late", [False, True], ids=["written before", "written after"])
def test_confluent_frees_the_partition_of_a_write_that_was_given_up(
    topics: Topics, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = processes.fresh_name("orders")
    topics.send(queue, ['{"order": 1}'])

    class Silent:
        """A producer that takes everything and reports nothing."""

        def produce(self, *record: object, **more: object) -> None: ...

        def poll(self, seconds: float) -> None: ...

        def flush(self, seconds: float) -> None:
            raise Exception("of no class that anybody names")

    with Once("memory://") as once:
        broker: Any = topics.consumer(once, queue, print, **OPTIONS).broker

        def received() -> Message:
            for _ in range(TIMES):
                if found := broker.receive(1, WAIT_S, 1.0):
                    return found[0]  # type: ignore[no-any-return]
            raise AssertionError("the message does not come")

        message = received()
        member: GroupMember = broker._member
        monkeypatch.setattr(member, "_producer", Silent())
        if not is_late:
            broker.settle([(message, DEAD)])
        monkeypatch.setattr(member, "_advance", _broken)
        processes.wait_until(lambda: member.is_closing, "the member has failed")
        with pytest.raises(BrokerUnavailable, match="the client is broken"):
            broker.receive(1, WAIT_S, 1.0)
        if is_late:
            member.close()
            broker.settle([(message, DEAD)])
        again = received()
        assert again.delivery_id == message.delivery_id
        broker.settle([(again, DEAD)])
        broker.close()
    assert topics.is_drained(queue)


def _broken() -> None:
    raise Exception("the client is broken")
