"""A store that is down while messages are in hand: nothing is taken, removed or parked."""

from __future__ import annotations

import pytest
from tests.queues.running_consumer import Handled, running, send, wait_until

from oncekey.queues.memory_broker import MemoryBroker


@pytest.fixture(params=["threads", "tasks"])
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


def _is_up(made: object) -> bool:
    up = made.consumer._store_is_up  # type: ignore[attr-defined]
    return up if isinstance(up, bool) else up.is_set()


def test_while_the_store_is_down_nothing_is_taken_or_removed(kind: str) -> None:
    queue, handler = MemoryBroker(), Handled()
    with running(kind, queue) as made:
        made.start(handler, retry_safe=True, batch=8)
        made.wait_until_begun()
        made.store.down = True
        for id in range(30):
            send(queue, id)
        wait_until(lambda: made.consumer.in_hand > 0, "some are taken")
        wait_until(lambda: not _is_up(made), "the consumer has noticed")
        assert handler.ids == []
        assert len(queue) == 30
        received = [stored.receipt for stored in queue._stored.values()]
        assert sum(received) <= 8, "what is in hand, once"
        made.store.down = False
        wait_until(lambda: not len(queue), "the queue is empty")
    assert sorted(handler.ids, key=int) == list(range(30))


def test_an_outage_longer_than_a_lease_parks_no_message_that_is_done(kind: str) -> None:
    """Its owner has the outcome, and stores it before anybody asks for the key again."""
    queue, handler = MemoryBroker(), Handled(held=True)
    for id in range(3):
        send(queue, id)
    with running(kind, queue) as made:
        made.start(
            handler, retry_safe=False, lease="300ms", store_timeout="0s", concurrency=3, batch=3
        )
        wait_until(lambda: handler.running == 3, "all handlers run")
        made.store.down = True
        handler.gate.set()
        wait_until(lambda: not _is_up(made), "the consumer has noticed")
        made.clock.advance(1_000_000)  # the leases are over
        made.store.down = False
        wait_until(lambda: not len(queue), "the queue is empty")
    assert sorted(handler.ids, key=int) == [0, 1, 2]
    assert queue.parked == queue.dead_letters == []
