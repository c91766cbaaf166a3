"""How a consumer starts: what it waits for, in threads and in tasks, and what ends it at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.queues.running_consumer import Handled, running, send, wait_until
from tests.support import postgres_stores, redis_stores
from tests.support.log_records import Written, written_log

from oncekey import AsyncOnce, Once
from oncekey.core.errors import ConfigurationError, OncekeyError, StoreUnavailable
from oncekey.queues import AsyncConsumer, AsyncMemoryBroker, Consumer
from oncekey.queues.broker import BrokerUnavailable, LoginRefused
from oncekey.queues.consumer_base import ConsumerBase
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.disposition import describe
from oncekey.queues.memory_broker import MemoryBroker
from oncekey.queues.queue_message import Message


class LateBroker(MemoryBroker):
    """Raises an error when it is asked for the first time."""

    def __init__(self, *errors: BaseException) -> None:
        super().__init__()
        self.errors = list(errors)

    def facts(self) -> BrokerFacts:
        if self.errors:
            raise self.errors.pop(0)
        return super().facts()


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


@pytest.mark.parametrize(
    "error",
    [
        BrokerUnavailable("it is not up yet"),
        StoreUnavailable("it is not up yet"),
        Exception("it is not up yet"),
        ConnectionResetError("it is not up yet"),
    ],
    ids=describe,
)
def test_a_consumer_that_starts_first_waits_for_its_broker_and_its_store(
    kind: str, error: Exception, log: Written
) -> None:
    """Whatever class the broker's client gives its errors."""
    queue, handled = LateBroker(error), Handled()  # that of a store comes from `_start` too
    send(queue, 1)
    with running(kind, queue) as made:
        made.start(handled)
        wait_until(lambda: not len(queue), "the message is handled")
    assert made.error is None
    said = str(error) if isinstance(error, OncekeyError) else describe(error)
    assert has_line(log, f"consumer shipping cannot begin yet: {said}; trying again")
    traces = [record.exc_info[1] for record in log.records if record.exc_info]
    assert traces == ([] if isinstance(error, OncekeyError) else [error])


def test_a_cancellation_of_the_client_at_the_start_is_a_fault(log: Written) -> None:
    queue = LateBroker(asyncio.CancelledError())
    send(queue, 1)
    with running("tasks", queue) as made:
        made.start(Handled())
        wait_until(lambda: not len(queue), "the message is handled")
    assert made.error is None
    assert has_line(log, "cannot begin yet", "client has cancelled it", "trying again")


def _run_in_thread(url: str) -> None:
    once = Once(url)
    try:
        Consumer(once, print, MemoryBroker(), name="ship", key="json:$.id").run()
    finally:
        once.close()


def _run_in_task(url: str) -> None:
    async def handle(message: Message) -> None: ...

    async def main() -> None:
        once, broker = AsyncOnce(url), AsyncMemoryBroker(MemoryBroker())
        try:
            await AsyncConsumer(once, handle, broker, name="ship", key="json:$.id").run()
        finally:
            await once.close()

    asyncio.run(main())


@pytest.mark.parametrize("store", ["postgres", "valkey"])
def test_a_store_that_refuses_the_login_ends_a_consumer_at_its_start(
    kind: str, store: str, log: Written
) -> None:
    """Nobody but an operator can help, so it does not look as if it were waiting."""
    if store == "postgres":
        url = postgres_stores.server().url("no_such_database")
    else:
        url = redis_stores.valkey().url().replace("://", "://nobody:wrong@", 1)

    run = _run_in_thread if kind == "threads" else _run_in_task
    with pytest.raises((StoreUnavailable, ConfigurationError)):
        run(url)
    assert has_line(log, "consumer ship ends")


def test_a_stop_ends_a_consumer_that_waits_for_its_broker(kind: str) -> None:
    class Down(MemoryBroker):
        asked = 0

        def facts(self) -> BrokerFacts:
            self.asked += 1
            raise BrokerUnavailable("it is not up yet")

    queue = Down()
    with running(kind, queue) as made:
        made.start(Handled())
        wait_until(lambda: queue.asked > 1, "it was asked twice")
    assert made.error is None


@pytest.mark.parametrize(
    "error", [ConfigurationError("there is no such queue"), LoginRefused("the password is wrong")]
)
def test_a_refusal_at_the_start_ends_it_and_the_log_says_why(
    kind: str, error: OncekeyError, log: Written
) -> None:
    queue = LateBroker(error)
    with running(kind, queue) as made:
        made.start(Handled())
        made.join()
    assert made.error is error
    assert has_line(log, f"consumer shipping ends: {type(error).__name__}: {error}")


def test_an_error_at_the_start_that_is_not_the_brokers_ends_it(
    kind: str, log: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise ValueError("a mistake of the consumer")

    monkeypatch.setattr(ConsumerBase, "_plan_for", fails)
    with running(kind, LateBroker()) as made:
        made.start(Handled())
        made.join()
    assert isinstance(made.error, ValueError)
    assert has_line(log, "consumer shipping ends: ValueError: a mistake of the consumer")


def test_an_engine_that_is_closed_ends_a_consumer_at_its_start(kind: str, log: Written) -> None:
    """It would wait for ever: no server that comes up opens an engine again."""
    error = StoreUnavailable("this Once was closed", final=True)
    queue = LateBroker(error)
    with running(kind, queue) as made:
        made.start(Handled())
        made.join()
    assert made.error is error
    assert has_line(log, "consumer shipping ends: StoreUnavailable: this Once was closed")
