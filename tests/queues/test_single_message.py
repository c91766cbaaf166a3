"""`consume`: what becomes of one message, in threads and in tasks alike."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncekey import AsyncOnce, ConfigurationError, EventKind, Once
from oncekey.queues import consume
from oncekey.queues.disposition import Disposition, Kind
from oncekey.queues.queue_message import Message
from oncekey.queues.redrive import headers_of

BODY = b'{"order": 17}'


class Consumer:
    """Consumes with Once, or with AsyncOnce by an event loop of its own."""

    def __init__(self, *, is_async: bool) -> None:
        self._runner = asyncio.Runner() if is_async else None
        self.once: Any = AsyncOnce("memory://") if is_async else Once("memory://")
        self.seen: list[Message] = []
        self.body: Callable[[Message], Any] = lambda message: None

    def __call__(self, id: str = "m-1", body: bytes = BODY, **options: Any) -> Disposition:
        def handle(message: Message) -> Any:
            self.seen.append(message)
            return self.body(message)

        async def handle_async(message: Message) -> Any:
            return handle(message)

        handler = handle_async if self._runner is not None else handle
        settings = {"name": "shipping", "queue": "orders", **options}
        found = consume(self.once, id, body, handler, **settings)
        disposition: Disposition = self._wait(found)
        return disposition

    def get(self, key: str) -> Any:
        return self._wait(self.once.get("shipping", key, scope="shipping/orders"))

    def _wait(self, found: Any) -> Any:
        if self._runner is None or not inspect.isawaitable(found):
            return found

        async def wait() -> Any:
            return await found

        return self._runner.run(wait())

    def close(self) -> None:
        self._wait(self.once.close())
        if self._runner is not None:
            self._runner.close()


@pytest.fixture(params=["threads", "tasks"])
def consumer(request: pytest.FixtureRequest) -> Iterator[Consumer]:
    consumer = Consumer(is_async=request.param == "tasks")
    yield consumer
    consumer.close()


def fail(message: Message) -> None:
    raise ValueError("no such address")


def test_message_is_handled_once_and_removed_each_time(consumer: Consumer) -> None:
    assert [consumer().kind, consumer().kind] == [Kind.REMOVE] * 2
    (message,) = consumer.seen
    assert (message.body, message.queue, message.delivery_id) == (BODY, "orders", "m-1")
    assert consumer.get("m-1").state == "succeeded"


def test_failure_is_a_dead_letter_with_its_error(consumer: Consumer) -> None:
    consumer.body = fail
    for _ in range(2):
        disposition = consumer()
        assert disposition.kind is Kind.DEAD_LETTER
        assert disposition.dead_letter is not None
        assert disposition.dead_letter.error == "ValueError: no such address"
    assert len(consumer.seen) == 1


def test_retry_safe_handler_is_retried_with_backoff_until_max_tries(consumer: Consumer) -> None:
    consumer.body = fail
    options: dict[str, Any] = {"retry_safe": True, "max_tries": 3, "backoff": "2s"}
    found = [consumer(**options) for _ in range(3)]
    assert [(each.kind, each.seconds) for each in found] == [
        (Kind.RETRY, 2.0),
        (Kind.RETRY, 4.0),
        (Kind.DEAD_LETTER, 0.0),
    ]


def test_redriven_message_runs_again_once(consumer: Consumer) -> None:
    consumer.body = fail
    letter = consumer().dead_letter
    assert letter is not None
    consumer.body = lambda message: None
    for _ in range(2):
        assert consumer(headers=headers_of(letter)).kind is Kind.REMOVE
    assert len(consumer.seen) == 2


def test_other_body_under_the_same_id_is_a_dead_letter(consumer: Consumer) -> None:
    consumer()
    assert consumer(body=b"{}").kind is Kind.DEAD_LETTER
    assert len(consumer.seen) == 1


def test_message_in_flight_elsewhere_is_hidden() -> None:
    with Once("memory://") as once:
        began, end = threading.Event(), threading.Event()

        def handle(message: Message) -> None:
            began.set()
            assert end.wait(90)

        def run() -> Disposition:
            return consume(once, "m-1", BODY, handle, name="shipping", queue="orders", lease="5m")

        thread = threading.Thread(target=run)
        thread.start()
        assert began.wait(90)
        met: list[EventKind] = []
        once.subscribe(lambda event: met.append(event.kind))
        disposition = run()
        end.set()
        thread.join()
        assert disposition.kind is Kind.HIDE
        assert 0 < disposition.seconds <= 300.5
        assert met[0] is EventKind.IN_FLIGHT
        assert run().kind is Kind.REMOVE


def test_wrong_arguments_are_refused(consumer: Consumer) -> None:
    with pytest.raises(ConfigurationError, match="body must be"):
        consumer(body="text")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="unknown option"):
        consumer(leese="1s")
    with pytest.raises(ConfigurationError, match="headers must be text"):
        consumer(headers={"oncekey-fence": 12})
    assert consumer(id="").kind is Kind.DEAD_LETTER
