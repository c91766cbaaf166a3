"""The consumer under chaos: it takes orders from a broker, with its keys on PostgreSQL.

    python -m tests.support.chaos.order_consumer

A variable says which broker: a Redis stream, a stream of the same name in another database of that
server, or a queue of RabbitMQ. Threads, on psycopg, take from each of them; of the consumers of
RabbitMQ every second one is of tasks, on asyncpg. The handler is retry-safe: it calls the provider
in a step, under a child key that the provider deduplicates on. What ends a consumer, and what it
logs as an error, is in the history.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from typing import Any, Final, NamedTuple

from tests.support.chaos.chaos_history import history_of_environment
from tests.support.chaos.chaos_plan import LEASE_SECONDS
from tests.support.chaos.effect_provider import ProviderClient, blocking_effect
from tests.support.chaos.payment_names import (
    BROKER_NAME_VARIABLE,
    BROKER_VARIABLE,
    GROUP,
    KEEP,
    NAME_VARIABLE,
    PARCEL_SCOPE,
    PARCELS,
    QUEUE_SCOPE,
    RABBIT_IN_TASKS,
    RABBIT_QUEUE_VARIABLE,
    RABBIT_VARIABLE,
    REFUSED_EXIT,
    REQUIRE_VARIABLE,
    SECOND_SCOPE,
    SOURCE_VARIABLE,
    STORE_VARIABLE,
    STREAM,
    queue_id,
)

from oncekey import AsyncOnce, ConfigurationError, Once, Policy, StoreUnavailable
from oncekey.core.events import Event
from oncekey.queues.rabbitmq import AsyncRabbitConsumer, RabbitConsumer
from oncekey.queues.redis_streams import RedisStreamConsumer

_CONCURRENCY: Final = 4

name = os.environ[NAME_VARIABLE]
source = os.environ[SOURCE_VARIABLE]
scope = {"stream": QUEUE_SCOPE, "second": SECOND_SCOPE}.get(source, PARCEL_SCOPE)
history = history_of_environment(f"{name}-{os.getpid()}")


class ToldLogs(logging.Handler):
    """What the consumer logs goes into the history: a cancel by the broker is told there only."""

    def emit(self, record: logging.LogRecord) -> None:
        history.write("logged", by=name, level=record.levelname, text=record.getMessage()[:300])


def write_event(event: Event) -> None:
    history.write(
        "event", what=event.kind, tag=event.tag, fence=event.fence, attempt=event.attempt, by=name
    )


class Shipment(NamedTuple):
    """An order in hand, and what the history is told of it."""

    id: str
    work_seconds: float  # stands for work; nothing waits for it to be right
    told: dict[str, Any]

    @classmethod
    def begin(cls, message: Any, attempt: Any) -> Shipment:
        order = message.json()
        id = queue_id(order["id"], scope)
        told: dict[str, Any] = {"id": id, "fence": attempt.fence, "by": name}
        history.write("begin", attempt=attempt.number, **told)
        return cls(id, order["work_ms"] / 1_000, told)

    def hold(self, at: float, attempt: Any) -> None:
        history.write("hold", at=at, lost=attempt.lost, **self.told)

    def end(self, shipped: dict[str, str]) -> dict[str, str]:
        history.write("end", effect=shipped["effect"], **self.told)
        return shipped


def ship(message: Any, attempt: Any) -> dict[str, str]:
    shipment = Shipment.begin(message, attempt)
    time.sleep(shipment.work_seconds)

    def send(key: str) -> dict[str, str]:
        return {"effect": blocking_effect(key, id_of=shipment.id, fence=attempt.fence, by=name)}

    shipment.hold(history.now(), attempt)
    return shipment.end(attempt.step("provider:ship", send))


async def ship_in_task(message: Any, attempt: Any) -> dict[str, str]:
    shipment = Shipment.begin(message, attempt)
    await asyncio.sleep(shipment.work_seconds)
    provider = ProviderClient()

    async def send(key: str) -> dict[str, str]:
        told = {"id_of": shipment.id, "fence": attempt.fence, "by": name}
        return {"effect": await provider.effect(key, dedup=True, **told)}

    shipment.hold(history.now(), attempt)
    return shipment.end(await attempt.step("provider:ship", send))


OPTIONS: Final[dict[str, Any]] = {
    "key": "json:$.id",
    "retry_safe": True,
    "concurrency": _CONCURRENCY,
    "backoff": "200ms",
    "lease": f"{LEASE_SECONDS}s",
}


def rabbit_options() -> dict[str, Any]:
    queue, url = os.environ[RABBIT_QUEUE_VARIABLE], os.environ[RABBIT_VARIABLE]
    return {"queue": queue, "url": url, "name": PARCELS, **OPTIONS}


def make_consumer(once: Once) -> RedisStreamConsumer | RabbitConsumer:
    if source == "rabbitmq":
        return RabbitConsumer(once, ship, **rabbit_options())
    server = os.environ[BROKER_VARIABLE] + ("1" if source == "second" else "0")
    options = {**OPTIONS, "retention": "1h"}
    if given := os.environ[BROKER_NAME_VARIABLE]:
        options["broker_name"] = given
    return RedisStreamConsumer(
        once, ship, STREAM, server=server, name=GROUP, start="first", **options
    )


def run_in_threads(policy: Policy) -> None:
    with Once(os.environ[STORE_VARIABLE], policy=policy, raw_keys=True) as once:
        once.subscribe(write_event)
        consumer = make_consumer(once)
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        history.write("started", by=name, pid=os.getpid())
        consumer.run()


async def run_in_tasks(policy: Policy) -> None:
    async with AsyncOnce(os.environ[STORE_VARIABLE], policy=policy, raw_keys=True) as once:
        once.subscribe(write_event)
        consumer = AsyncRabbitConsumer(once, ship_in_task, **rabbit_options())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)
        history.write("started", by=name, pid=os.getpid())
        await consumer.run()


def main() -> int:
    logging.getLogger("oncekey").addHandler(ToldLogs(logging.WARNING))
    policy = Policy(
        lease=f"{LEASE_SECONDS}s",
        keep=KEEP,
        audit=KEEP,
        store_timeout="4s",
        require=os.environ[REQUIRE_VARIABLE],
    )
    try:
        if source == RABBIT_IN_TASKS:
            asyncio.run(run_in_tasks(policy))
        else:
            run_in_threads(policy)
    except (ConfigurationError, StoreUnavailable) as error:
        history.write("refused", by=name, text=str(error)[:300])
        return REFUSED_EXIT
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
