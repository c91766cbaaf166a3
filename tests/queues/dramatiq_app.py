"""The Dramatiq actors of these tests. Workers load them by name; servers come by environment.

Their store's clock stands still, so that no lease ends before the test says so.
"""

from __future__ import annotations

import os
from typing import Final

import dramatiq
import redis
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker
from tests.queues.moved_clock import clocked_store

from oncekey import Once, Policy
from oncekey.queues.dramatiq import idempotent_actor

HEARTBEAT_MS: Final = 500
LEASE_S: Final = 2
GATE_S: Final = 200

url = os.environ["ONCEKEY_TEST_BROKER"]
broker: dramatiq.Broker
if url.startswith("redis"):
    # Every command looks for the messages of workers that are gone.
    broker = RedisBroker(  # type: ignore[no-untyped-call]
        url=url, heartbeat_timeout=HEARTBEAT_MS, maintenance_chance=1_000_000, namespace="dq"
    )
else:
    broker = RabbitmqBroker(url=url)
dramatiq.set_broker(broker)
once = Once(clocked_store(os.environ["ONCEKEY_TEST_STORE"]), policy=Policy(lease=f"{LEASE_S}s"))
notes = redis.Redis.from_url(
    os.environ["ONCEKEY_TEST_NOTES"], decode_responses=True, socket_timeout=GATE_S + 5
)


def effect(name: str) -> None:
    """Note one run; then wait until the test opens the gate of this name."""
    notes.rpush(f"effects:{name}", os.getpid())
    gate = f"gate:{name}"  # what it moves stays, also if this process dies meanwhile
    assert notes.blmove(gate, gate, GATE_S), f"nobody opened {gate}"


@idempotent_actor(once, key=lambda name: name)
@dramatiq.actor(queue_name="tasks")
def ship(name: str) -> None:
    effect(name)


@idempotent_actor(once, key=lambda name: name, retry_safe=True)
@dramatiq.actor(queue_name="tasks", max_retries=0)
def ship_again(name: str) -> None:
    effect(name)
