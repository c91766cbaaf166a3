"""The consumer under chaos: it takes orders from a broker, with its keys on PostgreSQL.

    python -m tests.support.chaos.order_consumer

A variable says which broker: a Redis stream, a stream of the same name in another database of that
server, or a queue of RabbitMQ. The engine is the sync one, on psycopg, while the API uses the async
one, on asyncpg. The handler is retry-safe: it calls the provider in a step, under a child key that
the provider deduplicates on. What ends a consumer, and what it logs as an error, is in the history.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import Any, Final

from tests.support.chaos.chaos_history import history_of_environment
from tests.support.chaos.chaos_plan import LEASE_SECONDS
from tests.support.chaos.effect_provider import blocking_effect
from tests.support.chaos.payment_names import (
    BROKER_NAME_VARIABLE,
    BROKER_VARIABLE,
    GROUP,
    KEEP,
    NAME_VARIABLE,
    PARCEL_SCOPE,
    PARCELS,
    QUEUE_SCOPE,
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

from oncekey import ConfigurationError, Once, Policy, StoreUnavailable
from oncekey.core.events import Event
from oncekey.queues.rabbitmq import RabbitConsumer
from oncekey.queues.redis_streams import RedisStreamConsumer

_CONCURRENCY: Final = 4

name = os.environ[NAME_VARIABLE]
source = os.environ[SOURCE_VARIABLE]
scope = {"stream": QUEUE_SCOPE, "second": SECOND_SCOPE, "rabbitmq": PARCEL_SCOPE}[source]
history = history_of_environment(f"{name}-{os.getpid()}")


class ToldLogs(logging.Handler):
    """What the consumer logs goes into the history: a cancel by the broker is told there only."""

    def emit(self, record: logging.LogRecord) -> None:
        history.write("logged", by=name, level=record.levelname, text=record.getMessage()[:300])


def write_event(event: Event) -> None:
    history.write(
        "event", what=event.kind, tag=event.tag, fence=event.fence, attempt=event.attempt, by=name
    )


def ship(message: Any, attempt: Any) -> dict[str, str]:
    order = message.json()
    id = queue_id(order["id"], scope)
    told: dict[str, Any] = {"id": id, "fence": attempt.fence, "by": name}
    history.write("begin", attempt=attempt.number, **told)
    time.sleep(order["work_ms"] / 1_000)  # stands for work; nothing waits for it to be right

    def send(key: str) -> dict[str, str]:
        return {"effect": blocking_effect(key, id_of=id, fence=attempt.fence, by=name)}

    at = history.now()
    history.write("hold", at=at, lost=attempt.lost, **told)
    shipped: dict[str, str] = attempt.step("provider:ship", send)
    history.write("end", effect=shipped["effect"], **told)
    return shipped


def make_consumer(once: Once) -> RedisStreamConsumer | RabbitConsumer:
    options: dict[str, Any] = {
        "key": "json:$.id",
        "retry_safe": True,
        "concurrency": _CONCURRENCY,
        "backoff": "200ms",
        "lease": f"{LEASE_SECONDS}s",
    }
    if source == "rabbitmq":
        queue, url = os.environ[RABBIT_QUEUE_VARIABLE], os.environ[RABBIT_VARIABLE]
        return RabbitConsumer(once, ship, queue, url=url, name=PARCELS, **options)
    server = os.environ[BROKER_VARIABLE] + ("1" if source == "second" else "0")
    options["retention"] = "1h"
    if given := os.environ[BROKER_NAME_VARIABLE]:
        options["broker_name"] = given
    return RedisStreamConsumer(
        once, ship, STREAM, server=server, name=GROUP, start="first", **options
    )


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
        with Once(os.environ[STORE_VARIABLE], policy=policy, raw_keys=True) as once:
            once.subscribe(write_event)
            consumer = make_consumer(once)
            signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
            history.write("started", by=name, pid=os.getpid())
            consumer.run()
    except (ConfigurationError, StoreUnavailable) as error:
        history.write("refused", by=name, text=str(error)[:300])
        return REFUSED_EXIT
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
