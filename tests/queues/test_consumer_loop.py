"""The loop of a consumer, in threads and in tasks: what it takes, runs, settles and leaves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest
from tests.queues.running_consumer import Handled, running, send, wait_until

from oncekey import NotStarted, Terminal
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.disposition import Kind
from oncekey.queues.memory_broker import MemoryBroker
from oncekey.queues.queue_message import Message
from oncekey.testing import FakeClock

SECOND = 1_000_000
KINDS = ("threads", "tasks")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


def test_each_key_is_handled_once_and_every_message_removed(kind: str) -> None:
    """I1 over deliveries: a message that was sent twice under one business id runs once."""
    queue, handler = MemoryBroker(), Handled()
    for id in range(100):
        send(queue, id)
    with running(kind, queue) as made:
        made.start(handler, retry_safe=True)
        wait_until(lambda: not len(queue), "the queue is empty")
        for id in range(100):
            send(queue, id)
        wait_until(lambda: not len(queue), "the duplicates are removed")
    assert sorted(handler.ids, key=int) == list(range(100))
    assert made.consumer.counts[Kind.REMOVE] == 200


def test_no_more_handlers_run_than_concurrency_allows_while_the_batch_is_claimed(kind: str) -> None:
    queue, handler = MemoryBroker(), Handled(held=True)
    for id in range(20):
        send(queue, id)
    with running(kind, queue) as made:
        made.start(handler, retry_safe=True, concurrency=3, batch=20)
        wait_until(lambda: made.commands("Claim") == 20, "the whole batch is claimed")
        wait_until(lambda: handler.running == 3, "three handlers run")
        handler.gate.set()
        wait_until(lambda: not len(queue), "the queue is empty")
    assert handler.most == 3


def test_keys_that_are_not_retry_safe_are_not_claimed_ahead(kind: str) -> None:
    """I10: a consumer that is killed leaves only those keys unknown whose handlers ran."""
    queue, handler = MemoryBroker(), Handled(held=True)
    for id in range(20):
        send(queue, id)
    with running(kind, queue) as made:
        made.start(handler, retry_safe=False, concurrency=3, batch=20)
        wait_until(lambda: handler.running == 3, "three handlers run")
        wait_until(lambda: made.consumer.in_hand == 20, "the batch is in hand")
        assert made.commands("Claim") == 3
        handler.gate.set()
        wait_until(lambda: not len(queue), "the queue is empty")
    assert len(handler.ids) == 20


def test_a_batch_is_claimed_in_few_calls_of_the_store(kind: str) -> None:
    queue, handler = MemoryBroker(), Handled(held=True)
    for id in range(64):
        send(queue, id)
    with running(kind, queue) as made:
        made.start(handler, retry_safe=True, concurrency=64, batch=64)
        wait_until(lambda: made.commands("Claim") == 64, "the whole batch is claimed")
        calls = [call for call in made.store.calls if type(call[0]).__name__ == "Claim"]
        handler.gate.set()
        wait_until(lambda: not len(queue), "the queue is empty")
    assert [len(call) for call in calls] == [1, 64], "the start, and the whole batch"


def test_copies_of_one_message_that_are_taken_together_are_removed_together(kind: str) -> None:
    """None of them is hidden for a whole lease while its twin is done in a moment."""
    queue, handler = MemoryBroker(), Handled()
    for _ in range(20):
        send(queue, 1)
    with running(kind, queue) as made:
        made.start(handler, retry_safe=True, lease="1h")
        wait_until(lambda: not len(queue), "the queue is empty")
    assert handler.ids == [1]


def test_a_message_that_fails_takes_no_other_with_it(kind: str) -> None:
    queue, handler = MemoryBroker(), Handled()
    handler.errors[7] = Terminal("never")
    for id in range(20):
        send(queue, id)
    with running(kind, queue) as made:
        made.start(handler, retry_safe=True)
        wait_until(lambda: not len(queue), "the queue is empty")
    assert sorted(handler.ids, key=int) == list(range(20))
    (letter,) = queue.dead_letters
    assert letter.json() == {"id": 7}
    assert letter.headers["oncekey-error"] == "Terminal: never"


def test_a_failed_try_is_repeated_and_the_last_one_is_a_dead_letter(kind: str) -> None:
    queue, handler = MemoryBroker(), Handled()
    handler.errors["bad"] = ValueError("no stock")
    send(queue, "bad")
    with running(kind, queue) as made:
        made.start(handler, retry_safe=True, max_tries=3, backoff="1ms")
        wait_until(lambda: len(queue.dead_letters) == 1, "it is a dead letter")
        assert handler.ids == ["bad"] * 3
        error = queue.dead_letters[0].headers["oncekey-error"]
        assert error == "TooManyTries: failed 3 times, last with ValueError: no stock"
        # Moved back, it has all its tries again; an ordinary duplicate has none.
        send(queue, "bad")
        wait_until(lambda: len(queue.dead_letters) == 2, "the duplicate is a dead letter")
        assert handler.ids == ["bad"] * 3
        queue.redrive(1, "r1")
        wait_until(lambda: len(queue.dead_letters) == 2 and not len(queue), "and again")
        assert handler.ids == ["bad"] * 6


def test_a_redriven_message_runs_once_more_and_its_copy_does_not(kind: str) -> None:
    queue, handler = MemoryBroker(), Handled()
    handler.errors["o1"] = Terminal("closed")
    send(queue, "o1")
    with running(kind, queue) as made:
        made.start(handler, wait="10s")
        wait_until(lambda: len(queue.dead_letters) == 1, "it is a dead letter")
        letter = queue.dead_letters.pop()
        handler.errors.clear()
        for _ in range(3):  # the same dead letter, delivered three times
            queue.send(letter.body, letter.headers)
        wait_until(lambda: not len(queue), "all are removed")
    assert handler.ids == ["o1", "o1"]
    assert queue.dead_letters == []


def test_a_group_is_handled_in_order_and_waits_for_a_message_that_is_tried_again(kind: str) -> None:
    queue, handler = MemoryBroker(), Handled()
    handler.errors["a1"] = NotStarted("not yet")
    for number in range(5):
        send(queue, f"a{number}", group="a")
        send(queue, f"b{number}", group="b")
    with running(kind, queue) as made:
        made.start(handler, retry_safe=True, backoff="1ms", backoff_max="5ms", max_tries=10**6)
        wait_until(lambda: handler.ids.count("a1") >= 3, "a1 is tried again")
        wait_until(lambda: handler.ids.count("b4") == 1, "the other group goes on")
        handler.errors.clear()
        wait_until(lambda: not len(queue), "the queue is empty")
    firsts = list(dict.fromkeys(handler.ids))
    assert [id for id in firsts if str(id)[0] == "a"] == [f"a{n}" for n in range(5)]
    assert [id for id in firsts if str(id)[0] == "b"] == [f"b{n}" for n in range(5)]


def test_a_stop_lets_running_handlers_end_and_gives_the_others_back(kind: str) -> None:
    """I14: a stop loses no result."""
    queue, handler = MemoryBroker(), Handled(held=True)
    for id in range(10):
        send(queue, id)
    with running(kind, queue) as made:
        made.start(handler, retry_safe=True, concurrency=2, batch=10)
        wait_until(lambda: handler.running == 2, "two handlers run")
        wait_until(lambda: made.commands("Claim") == 10, "the batch is claimed")
        made.stop()
        handler.gate.set()
        made.join()
    assert len(handler.ids) == 2
    assert len(queue) == 8
    assert made.consumer.counts[Kind.REMOVE] == 2
    assert made.consumer.counts[Kind.GIVE_BACK] == 8
    assert made.commands("Release") == 8


def test_a_handler_that_outlives_the_stop_leaves_its_message_unsettled(kind: str) -> None:
    queue, handler = MemoryBroker(), Handled(held=True)
    send(queue, 1)
    with running(kind, queue) as made:
        made.start(handler, stop_timeout="20ms")
        wait_until(lambda: handler.running == 1, "the handler runs")
        made.stop()
        wait_until(lambda: not made.consumer._is_running, "run has ended")
        assert len(queue) == 1
        handler.gate.set()


class WatchedBroker(MemoryBroker):
    """Notes what is extended; fails on demand."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(now=now)
        self.extended = 0
        self.failures = 0

    def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        if self.failures:
            self.failures -= 1
            raise BrokerUnavailable("gone for a moment")
        return super().receive(most, min(wait, 0.05), lease)

    def extend(self, messages: Sequence[Message], seconds: float) -> None:
        self.extended += len(messages)
        super().extend(messages, seconds)


def test_a_message_is_held_as_long_as_its_handler_runs(kind: str) -> None:
    """I5: the lease and the broker's deadline are renewed together. Both clocks are the test's, and
    go on by less than a lease after each renewal."""
    clock = FakeClock()
    queue, handler = WatchedBroker(lambda: clock.now() / SECOND), Handled(held=True)
    send(queue, 1)
    with running(kind, queue) as made:
        made.clock = clock
        made.start(handler, lease="600ms")
        wait_until(lambda: handler.running == 1, "the handler runs")
        for _ in range(5):
            extended, renewed = queue.extended, made.commands("Renew")
            wait_until(lambda: queue.extended > extended, "the message is extended")  # noqa: B023
            wait_until(lambda: made.commands("Renew") > renewed, "the lease is renewed")  # noqa: B023
            clock.advance(SECOND // 2)
        assert handler.ids == [1]
        assert queue._stored["m1"].receipt == 1, "delivered once, though the lease is over"
        handler.gate.set()
        wait_until(lambda: not len(queue), "the queue is empty")
    assert handler.ids == [1]


def test_a_message_whose_attempt_was_overtaken_is_not_held_any_more() -> None:
    """The two end together: nobody holds a message whose lease is lost. (A handler in a task is
    cancelled when that happens, so only one in a thread can go on without its lease.)"""
    kind = "threads"
    queue, handler = WatchedBroker(), Handled(held=True)
    send(queue, 1)
    with running(kind, queue) as made:
        made.start(handler, lease="300ms", retry_safe=True, store_timeout="0s")
        wait_until(lambda: handler.running == 1, "the handler runs")
        made.store.down = True  # no renewal comes through
        wait_until(lambda: queue._stored["m1"].receipt > 1, "it is delivered again")
        made.clock.advance(SECOND)
        made.store.down = False
        handler.gate.set()
        wait_until(lambda: not len(queue), "the queue is empty")


def test_a_broker_that_is_gone_for_a_moment_is_tried_again(kind: str) -> None:
    queue, handler = WatchedBroker(), Handled()
    queue.failures = 2
    send(queue, 1)
    with running(kind, queue) as made:
        made.start(handler)
        wait_until(lambda: not len(queue), "the queue is empty")
    assert handler.ids == [1]


def test_a_handler_that_ends_its_thread_leaves_a_key_that_nobody_runs_again(kind: str) -> None:
    """I1: what SystemExit interrupted is unknown, and is parked."""
    queue, handler = MemoryBroker(), Handled()
    handler.errors[1] = SystemExit(1)
    send(queue, 1)
    with running(kind, queue) as made:
        made.start(handler)
        if kind == "tasks":  # asyncio lets SystemExit end the loop
            wait_until(lambda: made.error is not None or bool(queue.parked), "it ended")
            return
        wait_until(lambda: len(queue.parked) == 1, "the message is parked")
    assert handler.ids == [1]
