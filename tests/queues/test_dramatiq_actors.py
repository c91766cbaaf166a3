"""Guarded Dramatiq actors on Dramatiq's own worker, with its broker in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import CurrentMessage, Retries
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend

from oncekey import AsyncOnce, ConfigurationError, EventKind, NotStarted, Once, Terminal
from oncekey.queues.dramatiq import idempotent_actor
from oncekey.stores.memory import MemoryStore
from oncekey.testing import FakeClock, FaultyStore

WAIT_S = 90


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    broker = StubBroker()
    results = Results(backend=StubBackend())  # type: ignore[no-untyped-call]
    broker.add_middleware(results)
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    worker = dramatiq.Worker(broker, worker_timeout=20, worker_threads=4)
    worker.start()
    yield broker
    worker.stop()
    broker.close()


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore(clock=FakeClock().wall))  # no lease ends


@pytest.fixture
def once(store: FaultyStore) -> Iterator[Once]:
    with Once(store) as once:
        yield once


class Shop:
    """A guarded actor, and how often it ran. `body` is what it does."""

    def __init__(self, once: Once, *, actor: dict[str, Any] | None = None, **options: Any) -> None:
        self.runs: list[str] = []
        self.body: Callable[[str], Any] = lambda name: {"shipped": name}

        def ship(name: str) -> Any:
            self.runs.append(name)
            return self.body(name)

        settings = {"store_results": True, "min_backoff": 1, "max_backoff": 1, **(actor or {})}
        self.actor = idempotent_actor(once, key=lambda name: name, **options)(
            dramatiq.actor(ship, actor_name="ship", **settings)  # type: ignore[call-overload]
        )


def finish(broker: StubBroker) -> None:
    broker.join("default", timeout=WAIT_S * 1_000, fail_fast=False)


def test_actors_sent_twice_run_once_and_all_have_the_result(broker: StubBroker, once: Once) -> None:
    shop = Shop(once)
    messages = [shop.actor.send("a") for _ in range(3)]
    results = [each.get_result(block=True, timeout=WAIT_S * 1_000) for each in messages]
    assert results == [{"shipped": "a"}] * 3
    assert shop.runs == ["a"]


@pytest.mark.parametrize("actor", [{"max_retries": 0}, {"retry_when": lambda tries, error: False}])
def test_actor_in_flight_elsewhere_is_put_off_without_using_up_retries(
    broker: StubBroker, once: Once, actor: dict[str, Any]
) -> None:
    shop = Shop(once, actor=actor, lease="1s")
    began, end, met = threading.Event(), threading.Event(), threading.Event()

    def body(name: str) -> str:
        began.set()
        assert end.wait(WAIT_S)
        return name

    shop.body = body
    once.subscribe(lambda event: met.set() if event.kind is EventKind.IN_FLIGHT else None)
    first = shop.actor.send("a")
    assert began.wait(WAIT_S)
    second = shop.actor.send("a")
    assert met.wait(WAIT_S)
    end.set()
    assert [each.get_result(block=True, timeout=WAIT_S * 1_000) for each in (first, second)]
    finish(broker)
    assert (shop.runs, broker.dead_letters) == (["a"], [])


def test_failure_is_final_and_a_dead_letter_at_once(broker: StubBroker, once: Once) -> None:
    shop = Shop(once)

    def fail(name: str) -> None:
        raise ValueError("no such address")

    shop.body = fail
    for _ in range(2):
        shop.actor.send("a")
        finish(broker)
    assert shop.runs == ["a"]
    assert [letter.options.get("retries", 0) for letter in broker.dead_letters] == [0, 0]


def test_actor_that_is_redriven_runs_again_once(broker: StubBroker, once: Once) -> None:
    shop = Shop(once)

    def fail(name: str) -> None:
        raise ValueError("no such address")

    shop.body = fail
    shop.actor.send("a")
    finish(broker)
    for _ in range(3):
        shop.actor.send_with_options(args=("a",), **{"oncekey-redrive": "monday"})
        finish(broker)
    assert shop.runs == ["a"] * 2


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (ValueError("not yet"), {"retry_safe": True}),
        (NotStarted("not yet"), {}),
        (dramatiq.Retry("not yet", delay=1), {}),
    ],
)
def test_retries_of_dramatiq_run_again_what_has_freed_its_key(
    broker: StubBroker, once: Once, error: Exception, options: dict[str, Any]
) -> None:
    shop = Shop(once, **options)

    def body(name: str) -> str:
        if len(shop.runs) < 3:
            raise error
        return name

    shop.body = body
    message = shop.actor.send("a")
    assert message.get_result(block=True, timeout=WAIT_S * 1_000) == "a"
    assert (shop.runs, broker.dead_letters) == (["a"] * 3, [])


def test_terminal_failure_of_a_retry_safe_actor_is_not_retried(
    broker: StubBroker, once: Once
) -> None:
    shop = Shop(once, retry_safe=True)

    def body(name: str) -> None:
        raise Terminal("the address is wrong for ever")

    shop.body = body
    shop.actor.send("a")
    finish(broker)
    assert (shop.runs, len(broker.dead_letters)) == (["a"], 1)


def test_store_that_is_down_removes_nothing_and_uses_up_no_retries(
    broker: StubBroker, once: Once, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Event()
    monkeypatch.setattr("oncekey.queues.dramatiq.STORE_PAUSE_S", 0.0)
    once.subscribe(lambda event: tried.set() if event.kind is EventKind.UNAVAILABLE else None)
    shop = Shop(once, actor={"max_retries": 0})
    store.down = True
    message = shop.actor.send("a")
    assert tried.wait(WAIT_S)
    store.down = False
    assert message.get_result(block=True, timeout=WAIT_S * 1_000) == {"shipped": "a"}
    assert (shop.runs, broker.dead_letters) == (["a"], [])


def test_call_by_another_actor_gets_the_value_and_the_error_itself(
    broker: StubBroker, once: Once
) -> None:
    shop = Shop(once)

    @dramatiq.actor(store_results=True)
    def outer(name: str) -> Any:
        return shop.actor(name)

    message = outer.send("a")
    assert message.get_result(block=True, timeout=WAIT_S * 1_000) == {"shipped": "a"}
    assert shop.actor("a") == {"shipped": "a"}
    assert shop.runs == ["a"]


def test_key_delivery_takes_the_message_id(broker: StubBroker, once: Once) -> None:
    runs = []

    @idempotent_actor(once, key="delivery")
    @dramatiq.actor
    def ship(name: str) -> None:
        runs.append(name)

    message = ship.send("a")
    broker.enqueue(message)
    ship.send("a")
    finish(broker)
    assert runs == ["a", "a"]


def test_guard_adds_what_it_needs_to_the_broker(broker: StubBroker, once: Once) -> None:
    Shop(once)
    assert any(isinstance(each, CurrentMessage) for each in broker.middleware)


def test_wrong_set_ups_are_refused(once: Once) -> None:
    bare = StubBroker(middleware=[])

    @dramatiq.actor(broker=bare)
    def ship(name: str) -> None: ...

    with pytest.raises(ConfigurationError, match="without the middleware Retries"):
        idempotent_actor(once, key=lambda name: name)(ship)
    bare.add_middleware(Retries())
    with pytest.raises(ConfigurationError, match="unknown option"):
        idempotent_actor(once, key=lambda name: name, leese="1s")(ship)
    with pytest.raises(ConfigurationError, match="put it above"):
        idempotent_actor(once, key=lambda name: name)(lambda name: None)  # type: ignore[type-var]
    with pytest.raises(ConfigurationError, match="needs a Once"):
        idempotent_actor(AsyncOnce, key=lambda name: name)  # type: ignore[arg-type]
