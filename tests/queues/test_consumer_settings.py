"""What a consumer refuses to begin with, and what it warns of."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey import AsyncOnce, ConfigurationError, Once, Policy
from oncekey.core.policy import KEEP_MAX_US
from oncekey.queues import (
    AsyncConsumer,
    AsyncMemoryBroker,
    BrokerFacts,
    Consumer,
    MemoryBroker,
    Message,
    consume,
)
from oncekey.queues.broker_identity import bound_scope
from oncekey.queues.consumer_settings import (
    BATCH_DEFAULT,
    BATCH_MAX,
    CONCURRENCY_MAX,
    MAX_TRIES_MAX,
    ConsumerPlan,
    ConsumerSettings,
    plan_of,
)
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore

DAY_S = 86_400.0
DAY_US = 86_400_000_000


def settings(options: dict[str, Any] | None = None, **changes: Any) -> ConsumerSettings:
    given: dict[str, Any] = {"name": "ship", "key": "json:$.id", "options": options or {}}
    return ConsumerSettings(**{**given, **changes})


def plan(
    options: dict[str, Any] | None = None,
    facts: BrokerFacts | None = None,
    **changes: Any,
) -> ConsumerPlan:
    given, told = settings(options, **changes), facts or BrokerFacts("orders")
    with Once("memory://") as once:
        return plan_of(given, told, once, bound_scope(once, given, told))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": ""}, "name="),
        ({"name": " "}, "name="),
        ({"name": None}, "name="),
        ({"name": "n" * 101}, "at most 100"),
        ({"name": "a\tb"}, "printable"),
        ({"key": "id"}, "key="),
        ({"request": "headers"}, "request="),
        ({"concurrency": 0}, "concurrency=0"),
        ({"concurrency": CONCURRENCY_MAX + 1}, "1 to 1024"),
        ({"concurrency": True}, "concurrency=True"),
        ({"batch": 0}, "batch=0"),
        ({"batch": BATCH_MAX + 1}, "1 to 1024"),
        ({"max_tries": 0}, "max_tries=0"),
        ({"max_tries": MAX_TRIES_MAX + 1}, "max_tries="),
        ({"backoff": "soon"}, "backoff"),
        ({"backoff_max": -1}, "backoff_max"),
        ({"stop_timeout": "never"}, "stop_timeout"),
        ({"options": {"leese": "1s"}}, "unknown option leese"),
    ],
)
def test_a_wrong_setting_is_refused_when_it_is_given(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        settings(**changes)


@pytest.mark.parametrize(
    ("batch", "concurrency", "size"), [(None, 8, BATCH_DEFAULT), (None, 100, 100), (4, 8, 8)]
)
def test_a_batch_is_never_smaller_than_the_handlers_that_run(
    batch: int | None, concurrency: int, size: int
) -> None:
    assert settings(batch=batch, concurrency=concurrency).batch_size == size


def test_i8_the_scope_is_the_consumer_and_its_queue() -> None:
    found = plan()
    assert found.scope == "ship/orders"
    assert (found.origin.surface, found.origin.route) == ("queue", "orders")
    assert plan(name="mail").scope != found.scope
    assert plan(facts=BrokerFacts("returns")).scope != found.scope


@pytest.mark.parametrize("queue", ["q" * 255, "a\nb"])
def test_a_queue_whose_name_fits_no_scope_is_refused_before_its_messages_become_dead_letters(
    queue: str,
) -> None:
    with pytest.raises(ConfigurationError, match="name with its queue"):
        plan(facts=BrokerFacts(queue))


def test_a_duplicate_does_not_wait_unless_it_is_asked_to() -> None:
    assert plan().policy.times.wait == 0
    assert plan({"wait": "2s"}).policy.times.wait == 2_000_000


# --- keep and retention ---------------------------------------------------------------------------


@given(st.floats(0, 20 * 365 * DAY_S))
def test_keep_covers_what_the_broker_can_deliver_again(retention: float) -> None:
    keep = plan(facts=BrokerFacts("orders", retention=retention)).policy.times.keep
    assert keep >= min(retention * 1_000_000, KEEP_MAX_US)
    assert keep >= DAY_US


def test_a_keep_that_was_given_and_is_too_short_is_refused() -> None:
    facts = BrokerFacts("orders", retention=4 * DAY_S)
    with pytest.raises(ConfigurationError, match="keep='1d' is shorter than the 4d"):
        plan({"keep": "1d"}, facts)
    assert plan({"keep": "5d"}, facts).policy.times.keep == 5 * DAY_US


def test_a_broker_that_sets_no_limit_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "oncekey"):
        plan(facts=BrokerFacts("orders", retention=math.inf))
    assert "no limit is known for how long a message can come back" in caplog.text


# --- the broker's own limits ----------------------------------------------------------------------


@pytest.mark.parametrize("receives_max", [1, 4, 5])
def test_a_broker_that_gives_up_before_the_tries_are_over_is_refused(receives_max: int) -> None:
    with pytest.raises(ConfigurationError, match="10 or more") as refused:
        plan(facts=BrokerFacts("orders", receives_max=receives_max))
    assert ("or less" in str(refused.value)) == (receives_max > 1)


def test_a_broker_with_room_for_the_tries_is_taken() -> None:
    assert plan(facts=BrokerFacts("orders", receives_max=6)).facts.receives_max == 6


def test_a_lease_that_is_longer_than_a_message_may_be_held_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="longer than the 10 s"):
        plan({"lease": "11s"}, BrokerFacts("orders", hold_max=10.0))


def test_delivery_keys_are_refused_at_the_start_without_an_identity() -> None:
    with pytest.raises(ConfigurationError, match="key='delivery'"):
        plan(key="delivery")
    found = plan(key="delivery", facts=BrokerFacts("orders", identity="q-1"))
    assert found.key_of(Message(b"", "orders", delivery_id="m-1")) == "q-1/m-1"


@pytest.mark.parametrize(
    ("request_choice", "read"), [("body", b"{}"), (None, None), (lambda m: m.text, "{}")]
)
def test_what_must_be_the_same_under_one_key(request_choice: Any, read: Any) -> None:
    assert plan(request=request_choice).request_of(Message(b"{}", "orders")) == read


# --- what the store cannot keep -------------------------------------------------------------------


class Ring(MemoryStore):
    """It says what a ring of PostgreSQL says."""

    terms_max = 3_600_000_000


class AsyncRing(AsyncMemoryStore):
    terms_max = Ring.terms_max


TOO_MUCH = [
    pytest.param({"keep": "30d"}, "longer than the ring holds", id="keep"),
    pytest.param({"require": "transactional", "keep": "1m", "audit": "1m"}, "require", id="level"),
]


@pytest.mark.parametrize(("options", "words"), TOO_MUCH)
def test_a_consumer_whose_store_cannot_keep_its_policy_does_not_begin(
    options: dict[str, Any], words: str
) -> None:
    """Or each of its messages would fail, until it is a dead letter."""
    broker = MemoryBroker("orders")
    broker.send(b'{"id": 1}')
    with Once(Ring()) as once:
        consumer = Consumer(once, print, broker, name="ship", key="json:$.id", **options)
        with pytest.raises(ConfigurationError, match=words):
            consumer.run()
        with pytest.raises(ConfigurationError, match=words):
            consume(once, "1", b"", print, queue="orders", name="one", **options)
    assert len(broker) == 1


@pytest.mark.parametrize(("options", "words"), TOO_MUCH)
def test_nor_does_an_async_one(options: dict[str, Any], words: str) -> None:
    async def ship(message: Message) -> None: ...

    async def main() -> None:
        broker = AsyncMemoryBroker(MemoryBroker("orders"))
        async with AsyncOnce(AsyncRing()) as once:
            consumer = AsyncConsumer(once, ship, broker, name="ship", key="json:$.id", **options)
            with pytest.raises(ConfigurationError, match=words):
                await consumer.run()

    asyncio.run(main())


def test_a_function_that_follows_too_long_a_policy_is_refused_where_it_is_written() -> None:
    with Once(Ring(), policy=Policy(keep="30d")) as once:
        with pytest.raises(ConfigurationError, match="longer than the ring holds"):
            once.guard("charge", key=str)
        once.guard("charge", key=str, keep="10m", audit="10m")
