"""The consumer under chaos: it takes orders from a Redis stream, with its keys on PostgreSQL.

    python -m tests.support.chaos.order_consumer

The engine is the sync one, on psycopg, while the API uses the async one, on asyncpg. The handler is
retry-safe: it calls the provider in a step, under a child key that the provider deduplicates on.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Final

from tests.support.chaos.chaos_history import history_of_environment
from tests.support.chaos.chaos_plan import LEASE_SECONDS
from tests.support.chaos.effect_provider import blocking_effect
from tests.support.chaos.payment_names import (
    BROKER_VARIABLE,
    GROUP,
    KEEP,
    NAME_VARIABLE,
    STORE_VARIABLE,
    STREAM,
    queue_id,
)

from oncekey import Once, Policy
from oncekey.core.events import Event
from oncekey.queues.redis_streams import RedisStreamConsumer

_CONCURRENCY: Final = 4

name = os.environ[NAME_VARIABLE]
history = history_of_environment(f"{name}-{os.getpid()}")


def write_event(event: Event) -> None:
    history.write(
        "event", what=event.kind, tag=event.tag, fence=event.fence, attempt=event.attempt, by=name
    )


def ship(message: Any, attempt: Any) -> dict[str, str]:
    order = message.json()
    id = queue_id(order["id"])
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


def main() -> None:
    policy = Policy(lease=f"{LEASE_SECONDS}s", keep=KEEP, audit=KEEP, store_timeout="4s")
    with Once(os.environ[STORE_VARIABLE], policy=policy, raw_keys=True) as once:
        once.subscribe(write_event)
        consumer = RedisStreamConsumer(
            once,
            ship,
            STREAM,
            server=os.environ[BROKER_VARIABLE],
            name=GROUP,
            start="first",
            key="json:$.id",
            retry_safe=True,
            concurrency=_CONCURRENCY,
            backoff="200ms",
            retention="1h",
            lease=f"{LEASE_SECONDS}s",
        )
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        history.write("started", by=name, pid=os.getpid())
        consumer.run()


if __name__ == "__main__":
    main()
