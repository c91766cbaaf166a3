"""Entries of a stream with more fields than a script of Redis can add."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.queues.stream_queues import ClockedServer, Stream, bodies, take

from oncekey.queues.disposition import REMOVE, DeadLetter, Disposition, Kind
from oncekey.queues.queue_message import Message
from oncekey.queues.redis_streams.consumers import RedisStreamBroker

DEAD = Disposition(Kind.DEAD_LETTER, 0.0, "", DeadLetter("ValueError: no stock", 17, 3))
PARK = Disposition(Kind.PARK, reason="nobody knows")
LATER = Disposition(Kind.RETRY, 5.0)
FIELDS = {f"field-{number}": "x" for number in range(5_000)}


@pytest.fixture(scope="module")
def clocked() -> Iterator[ClockedServer]:
    made = ClockedServer()
    yield made
    made.close()


@pytest.fixture
def stream(clocked: ClockedServer) -> Iterator[Stream]:
    made = clocked.stream()
    yield made
    made.close()


def taken(stream: Stream, broker: RedisStreamBroker) -> list[Message]:
    """A large entry between two small ones."""
    stream.add("first")
    stream.add("large", **FIELDS)
    stream.add("last")
    return take(broker)


@pytest.mark.parametrize(("ending", "suffix"), [(DEAD, ":dead"), (PARK, ":parked")])
def test_a_large_entry_is_moved_and_takes_no_neighbour_with_it(
    stream: Stream, ending: Disposition, suffix: str
) -> None:
    broker = stream.broker()
    first, large, last = taken(stream, broker)
    broker.settle([(first, REMOVE), (large, ending), (last, ending)])
    assert [fields["body"] for fields in stream.fields(suffix)] == ["large", "last"]
    assert stream.fields(suffix)[0].items() >= FIELDS.items()
    assert stream.pending() == {}
    assert stream.due() == {}


def test_a_large_dead_letter_is_redriven_with_the_others(stream: Stream) -> None:
    broker = stream.broker()
    broker.settle([(message, DEAD) for message in taken(stream, broker)])
    assert broker.redrive(2, "repair-1") == 2
    assert [fields["body"] for fields in stream.fields(":dead")] == ["last"]
    assert broker.redrive(9, "repair-2") == 1
    assert stream.fields(":dead") == []
    again = take(broker)
    assert bodies(again) == ["large", "first", "last"]
    assert [m.headers["oncekey-redrive"] for m in again] == ["repair-1", "repair-1", "repair-2"]


def test_a_large_entry_that_was_trimmed_in_hand_is_noted(stream: Stream) -> None:
    broker = stream.broker()
    first, large, last = taken(stream, broker)
    stream.client.xtrim(stream.name, maxlen=0)
    broker.settle([(first, LATER), (large, LATER), (last, REMOVE)])
    assert bodies(take(broker)) == ["first"]  # it was added again
    (note,) = stream.fields(":parked")
    assert note["oncekey-lost"] == large.raw.id
