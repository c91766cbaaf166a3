"""Checks of consumers of queues: whether they may begin, their keys, and what a crash leaves.

They ask the broker what it tells about the queue, as a consumer does before it begins. No message
is received, and no handler is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final

from oncekey.core.errors import ConfigurationError
from oncekey.doctor.app_checks import RETRY_SAFE, store_finding
from oncekey.doctor.handler_code import mentions_attempt
from oncekey.engine.port import AnyPort
from oncekey.queues import AsyncConsumer, BrokerFacts, BrokerUnavailable, Consumer
from oncekey.queues.consumer_settings import plan_of
from oncekey.queues.message_key import DELIVERY
from oncekey.stores.inspection import Check, Finding

START: Final = Check(
    "app.consumer",
    "whether a consumer may begin: its settings against what the broker tells about the queue",
    "a consumer that is refused at its start handles nothing",
    "change what it says",
)
KEY: Final = Check(
    "app.consumer-key",
    "whether a consumer's keys are business ids",
    "the broker's own id does not recognise a message that its producer has sent twice",
    "key='json:$.path', 'header:NAME' or a function, if messages have an id of their own",
)
CONSUMER_CHECKS: Final = (START, KEY)

AnyConsumer = Consumer | AsyncConsumer


def consumers_in(app: Any) -> list[AnyConsumer]:
    """The consumers that were given as the app: one, or a list of them; none if it is an app."""
    given = app if isinstance(app, (list, tuple)) else [app]
    return [one for one in given if isinstance(one, (Consumer, AsyncConsumer))]


def consumer_findings(
    consumers: Sequence[AnyConsumer], store_module: Any, url: str
) -> Iterator[Finding]:
    """The checks of consumers, one after the other."""
    for consumer in consumers:
        yield _start(consumer)
        yield _key(consumer)
        yield store_finding(store_module, url, AnyPort(consumer.once).store)
        yield _retry_safe(consumer)


def _start(consumer: AnyConsumer) -> Finding:
    name = f"consumer {consumer.name!r}"
    try:
        facts = _facts(consumer)
        is_inbox = consumer.is_transactional
        plan_of(consumer.settings, facts, consumer.once, consumer.name, in_transaction=is_inbox)
    except BrokerUnavailable as error:
        return START.info(f"not checked: {name}: {error}", "see that the broker answers")
    except ConfigurationError as error:
        return START.broken(f"{name}: {error}")
    return START.ok(f"{name} may consume {facts.queue}")


def _facts(consumer: AnyConsumer) -> BrokerFacts:
    if isinstance(consumer, AsyncConsumer):
        return asyncio.run(_facts_async(consumer))
    try:
        return consumer.broker.facts()
    finally:
        consumer.broker.close()


async def _facts_async(consumer: AsyncConsumer) -> BrokerFacts:
    try:
        return await consumer.broker.facts()
    finally:
        await consumer.broker.close()


def _key(consumer: AnyConsumer) -> Finding:
    if consumer.settings.key == DELIVERY:
        return KEY.warning(f"consumer {consumer.name!r} has key='delivery'")
    return KEY.ok(f"consumer {consumer.name!r} has keys of its messages' own")


def _retry_safe(consumer: AnyConsumer) -> Finding:
    """A handler in a transaction needs neither steps nor child keys: it is rolled back."""
    policy = consumer.once.policy.with_options(**consumer.settings.options)
    name = f"consumer {consumer.name!r}"
    if not policy.retry_safe:
        return RETRY_SAFE.ok(f"{name} runs nothing again; a crash parks its messages")
    if not consumer.is_transactional and mentions_attempt(consumer.handler) is False:
        return RETRY_SAFE.warning(
            f"retry_safe=True without a step, a child key or the fence: {name}"
        )
    return RETRY_SAFE.ok(f"{name} can be run again")
