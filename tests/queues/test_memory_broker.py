"""The embedded broker keeps what the port promises: deadlines, counts, and order."""

from __future__ import annotations

import asyncio

import pytest

from oncekey.queues import (
    AsyncMemoryBroker,
    BrokerFacts,
    DeadLetter,
    Disposition,
    Kind,
    MemoryBroker,
    Message,
)
from oncekey.queues.disposition import REMOVE, STOPPED
from oncekey.queues.redrive import ERROR_HEADER, FENCE_HEADER, REDRIVE_HEADER

LEASE_S = 30.0


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> MemoryBroker:
    return MemoryBroker("orders", now=clock)


def received(queue: MemoryBroker, most: int = 10) -> list[Message]:
    return list(queue.receive(most, 0.0, LEASE_S))


def test_a_received_message_is_hidden_until_its_deadline(queue: MemoryBroker, clock: Clock) -> None:
    id = queue.send("{}", {"Order-Id": "o1"})
    (first,) = received(queue)
    assert (first.delivery_id, first.body, first.receive_count) == (id, b"{}", 1)
    assert first.headers == {"order-id": "o1"}
    clock.now += LEASE_S - 1
    assert received(queue) == []
    clock.now += 1
    (again,) = received(queue)
    assert (again.delivery_id, again.receive_count) == (id, 2)


def test_an_extended_message_stays_hidden(queue: MemoryBroker, clock: Clock) -> None:
    queue.send("{}")
    taken = received(queue)
    clock.now += LEASE_S - 1
    queue.extend(taken, LEASE_S)
    clock.now += LEASE_S - 1
    assert received(queue) == []


def test_only_the_latest_delivery_settles_a_message(queue: MemoryBroker, clock: Clock) -> None:
    queue.send("{}")
    (late,) = received(queue)
    clock.now += LEASE_S
    (now,) = received(queue)
    queue.settle([(late, REMOVE)])
    assert len(queue) == 1
    queue.settle([(now, REMOVE)])
    assert len(queue) == 0


@pytest.mark.parametrize(
    ("disposition", "after"),
    [(Disposition(Kind.HIDE, 5.0), 5.0), (Disposition(Kind.RETRY, 2.0), 2.0), (STOPPED, 0.0)],
)
def test_what_is_to_come_again_comes_after_its_time(
    queue: MemoryBroker, clock: Clock, disposition: Disposition, after: float
) -> None:
    queue.send("{}")
    queue.settle([(message, disposition) for message in received(queue)])
    if after:
        clock.now += after - 0.1
        assert received(queue) == []
        clock.now += 0.1
    assert len(received(queue)) == 1


def test_dead_letters_carry_their_error_and_parked_ones_nothing_new(queue: MemoryBroker) -> None:
    queue.send("a", {FENCE_HEADER: "1"})
    queue.send("b")
    first, second = received(queue)
    letter = DeadLetter("Terminal: no", fence=77, tries=2)
    dead = Disposition(Kind.DEAD_LETTER, 0.0, letter.error, letter)
    queue.settle([(first, dead), (second, Disposition(Kind.PARK))])
    assert len(queue) == 0
    assert queue.dead_letters[0].headers[ERROR_HEADER] == "Terminal: no"
    assert queue.dead_letters[0].headers[FENCE_HEADER] == "77"
    assert [message.body for message in queue.parked] == [b"b"]


def test_a_redrive_moves_the_oldest_dead_letters_back_with_its_mark(queue: MemoryBroker) -> None:
    letter = DeadLetter("Terminal: no", fence=77, tries=2)
    for body in ("a", "b", "c"):
        queue.send(body)
    dead = Disposition(Kind.DEAD_LETTER, 0.0, letter.error, letter)
    queue.settle([(message, dead) for message in received(queue)])
    assert queue.redrive(2, "INC-7") == 2
    back = received(queue)
    assert [message.body for message in back] == [b"a", b"b"]
    assert back[0].headers[REDRIVE_HEADER] == "INC-7"
    assert back[0].headers[FENCE_HEADER] == "77"
    assert [message.body for message in queue.dead_letters] == [b"c"]
    assert queue.redrive(2, "INC-7") == 1
    assert queue.redrive(2, "INC-7") == 0


def test_a_group_waits_for_its_first_message(queue: MemoryBroker) -> None:
    for body, group in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("c", None)):
        queue.send(body, order_group=group)
    (first,) = received(queue, 1)
    assert [message.body for message in received(queue)] == [b"b1", b"c"]
    queue.settle([(first, REMOVE)])
    assert [message.body for message in received(queue)] == [b"a2"]


def test_nothing_is_taken_with_most_0(queue: MemoryBroker) -> None:
    queue.send("{}")
    assert list(queue.receive(0, 5.0, LEASE_S)) == []
    assert len(received(queue)) == 1


def test_two_queues_of_one_name_have_identities_of_their_own() -> None:
    identities = [MemoryBroker("orders").facts().identity for _ in range(10)]
    assert len(set(identities)) == 10, "one that is gone has left its identity to another"
    assert MemoryBroker(facts=BrokerFacts("bare")).facts() == BrokerFacts("bare")


def test_the_same_queue_serves_tasks(queue: MemoryBroker) -> None:
    async def use() -> None:
        broker = AsyncMemoryBroker(queue)
        queue.send("{}")
        (message,) = await broker.receive(10, 0.0, LEASE_S)
        await broker.extend([message], LEASE_S)
        letter = DeadLetter("Terminal: no", fence=1, tries=1)
        await broker.settle([(message, Disposition(Kind.DEAD_LETTER, 0.0, "", letter))])
        assert await broker.redrive(5, "INC-7") == 1
        assert (await broker.facts()).queue == "orders"
        assert await broker.receive(0, 5.0, LEASE_S) == ()
        await broker.close()

    asyncio.run(use())
