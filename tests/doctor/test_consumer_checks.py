"""Doctor names each fault of a consumer, and is silent on a good one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.doctor.findings import by_check, problems

from oncekey import AsyncOnce, Once
from oncekey.doctor.diagnosis import diagnose
from oncekey.queues import (
    AsyncConsumer,
    AsyncMemoryBroker,
    BrokerFacts,
    BrokerUnavailable,
    Consumer,
    MemoryBroker,
    Message,
)
from oncekey.stores.inspection import Finding

DAY_S = 86_400.0


class DownBroker(MemoryBroker):
    def facts(self) -> BrokerFacts:
        raise BrokerUnavailable("nothing answers")


def ship(message: Message) -> None: ...


def ship_with_child_key(message: Message, attempt: Any) -> str:
    return str(attempt.child_key("carrier"))


async def ship_async(message: Message) -> None: ...


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/keys.db"
    with Once(url):
        return url


def checked(url: str, app: Any) -> tuple[Finding, ...]:
    """The findings about consumers; those about the store are other tests'."""
    found = diagnose(url, app=app).findings
    return tuple(finding for finding in found if finding.check.startswith("app."))


def consumer(url: str, handler: Any = ship, broker: Any = None, **options: Any) -> Consumer:
    given = {"name": "ship", "key": "json:$.id", **options}
    once = Once(url)
    once.close()  # doctor must not need it open
    broker = MemoryBroker("orders") if broker is None else broker
    return Consumer(once, handler, broker, **given)


def test_a_good_consumer_has_no_problem(url: str) -> None:
    found = checked(url, consumer(url))
    assert problems(found) == {}
    assert by_check(found)["app.consumer"].what == "consumer 'ship' may consume orders"
    assert by_check(found)["app.store"].what == "the app's SQLiteStore is the URL's"


def test_async_consumers_and_lists_are_checked_too(url: str) -> None:
    broker = AsyncMemoryBroker(MemoryBroker("mails"))
    once = AsyncOnce(url)
    asyncio.run(once.close())
    mailer = AsyncConsumer(once, ship_async, broker, name="mail", key="json:$.id")
    whats = [finding.what for finding in checked(url, [consumer(url), mailer])]
    assert "consumer 'ship' may consume orders" in whats
    assert "consumer 'mail' may consume mails" in whats


def test_a_consumer_that_would_be_refused_is_broken(url: str) -> None:
    broker = MemoryBroker(facts=BrokerFacts("orders", retention=4 * DAY_S))
    found = checked(url, consumer(url, broker=broker, keep="1h"))
    assert problems(found) == {"app.consumer": "broken"}
    assert "keep='1h' is shorter" in by_check(found)["app.consumer"].what


def test_a_broker_that_does_not_answer_is_not_reported_as_good(url: str) -> None:
    found = checked(url, consumer(url, broker=DownBroker("orders")))
    assert by_check(found)["app.consumer"].severity == "info"
    assert "not checked" in by_check(found)["app.consumer"].what


def test_delivery_keys_are_warned_of(url: str) -> None:
    assert problems(checked(url, consumer(url, key="delivery"))) == {"app.consumer-key": "warning"}


def test_a_retry_safe_handler_without_child_keys_is_warned_of(url: str) -> None:
    found = checked(url, consumer(url, retry_safe=True))
    assert problems(found) == {"app.retry-safe": "warning"}
    assert problems(checked(url, consumer(url, ship_with_child_key, retry_safe=True))) == {}


def test_a_consumer_of_another_store_is_broken(url: str, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path}/other.db"
    assert problems(checked(url, consumer(other))) == {"app.store": "broken"}
