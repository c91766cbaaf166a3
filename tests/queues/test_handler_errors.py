"""Errors of a handler that look like errors of its own key, and errors that nobody expects."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tests.queues.running_consumer import running, wait_until

from oncekey import InFlight, Mismatch, Once, OutcomeUnknown, StoreUnavailable
from oncekey.core.commands import Command, Look, Reply
from oncekey.queues import Kind, MemoryBroker, Message, consume
from oncekey.stores.memory import MemoryStore

NESTED = [
    StoreUnavailable("the store of another key"),
    OutcomeUnknown("another key"),
    Mismatch("another key"),
    InFlight("another key", retry_after=3600.0),
]


@pytest.mark.parametrize("kind", ["threads", "tasks"])
@pytest.mark.parametrize("error", NESTED, ids=lambda error: type(error).__name__)
def test_an_error_about_another_key_is_an_ordinary_failed_try(kind: str, error: Exception) -> None:
    """A handler that uses keys of its own may get any error of this library for those."""
    queue, calls = MemoryBroker(), []

    def handler(message: Message) -> None:
        calls.append(message.delivery_id)
        raise error

    queue.send('{"id": 1}')
    with running(kind, queue) as made:
        made.start(handler, retry_safe=True, max_tries=3, backoff="1ms")
        wait_until(lambda: not len(queue), "the message is a dead letter")
    assert len(calls) == 3
    assert made.consumer.counts == {Kind.RETRY: 2, Kind.DEAD_LETTER: 1}
    assert "failed 3 times" in queue.dead_letters[0].headers["oncekey-error"]


def test_a_message_of_a_handler_that_failed_is_not_parked_as_unknown() -> None:
    """The key has a stored failure, which its message must not contradict."""

    def handler(message: Message) -> None:
        raise OutcomeUnknown("another key")

    with Once("memory://") as once:
        ended = consume(once, "1", b"", handler, name="shipping", queue="orders")
    assert ended.kind is Kind.DEAD_LETTER
    assert ended.dead_letter is not None
    assert ended.dead_letter.fence


class BrokenStore(MemoryStore):
    """A store with a fault of its own: it raises what is no outage."""

    immediate = False
    calls = 0

    def apply(self, commands: Sequence[Command]) -> list[Reply]:
        if not all(isinstance(command, Look) for command in commands):
            return super().apply(commands)
        self.calls += 1
        raise RuntimeError("not an outage")


def test_a_look_that_fails_in_any_way_removes_nothing() -> None:
    def handler(message: Message) -> None:
        raise ValueError("no")

    with Once(BrokenStore()) as once:
        ended = consume(once, "1", b"", handler, name="s", queue="q", retry_safe=True)
    assert ended.kind is Kind.GIVE_BACK
    assert "RuntimeError: not an outage" in ended.reason


def _number() -> object:
    yield 1


async def _later() -> None: ...


@pytest.mark.parametrize("kind", ["threads", "tasks"])
@pytest.mark.filterwarnings("ignore:coroutine '_later'")
@pytest.mark.parametrize("gives", [_number, _later])
def test_i1_a_handler_that_gives_what_has_not_run_is_a_dead_letter_after_its_first_try(
    kind: str, gives: Callable[[], object]
) -> None:
    """Its effect has happened: also a retry-safe handler is not called a second time."""
    queue, effects = MemoryBroker(), list[object]()

    def handler(message: Message) -> object:
        effects.append(message.delivery_id)
        return gives()

    queue.send('{"id": 1}')
    with running(kind, queue) as made:
        made.start(handler, retry_safe=True, max_tries=3, backoff="1ms")
        wait_until(lambda: not len(queue), "the message is settled")
    assert len(effects) == 1
    if kind == "threads":
        assert "has not run" in queue.dead_letters[0].headers["oncekey-error"]
