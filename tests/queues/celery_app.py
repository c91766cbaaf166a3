"""The Celery app of these tests. Workers load it by name; what it talks to comes by environment.

Tasks write each run into a list of Valkey and wait at a gate, which is another list: a test opens
it when it has seen what it waits for. Leases are short, so that what is put off comes again soon,
and a store on a clock that stands still lets none of them end before the test says so.
"""

from __future__ import annotations

import functools
import os
import time
from typing import Any, Final

import redis
from celery import Celery, Task
from celery.signals import task_prerun
from kombu.entity import Queue
from tests.queues.moved_clock import clocked_store

from oncekey import Once, Policy, current_attempt
from oncekey.queues.celery import idempotent_task

VISIBILITY_S: Final = 1
LEASE_S: Final = 2
GATE_S: Final = 200
WORK_S: Final = int(os.environ.get("ONCEKEY_TEST_WORK_MS", "0")) / 1_000  # so that kills find work

broker, notes_url, store = (
    os.environ.get(name, default)
    for name, default in (
        ("ONCEKEY_TEST_BROKER", "memory://"),
        ("ONCEKEY_TEST_NOTES", "redis://127.0.0.1:1/0"),
        ("ONCEKEY_TEST_STORE", "memory://"),
    )
)
app = Celery(
    "celery_app", broker=broker, backend=os.environ.get("ONCEKEY_TEST_BACKEND", "cache+memory://")
)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    result_chord_join_timeout=200,
    worker_cancel_long_running_tasks_on_connection_loss=False,
)
app.conf.task_queues = [
    Queue("celery"),
    Queue("forks"),
    Queue("doomed"),
    Queue("quorum", queue_arguments={"x-queue-type": "quorum"}),
    Queue(
        "buried",
        queue_arguments={
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "graveyard",
        },
    ),
]
if broker.startswith("amqp"):
    app.conf.broker_transport_options = {"confirm_publish": True}
if broker.startswith("redis"):
    app.conf.broker_transport_options = {
        "visibility_timeout": VISIBILITY_S,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
once = Once(clocked_store(store), policy=Policy(lease=f"{LEASE_S}s", keep="1h"))
notes: redis.Redis = redis.Redis.from_url(
    notes_url, decode_responses=True, socket_timeout=GATE_S + 5
)


@task_prerun.connect
def count(task_id: str = "", **_: Any) -> None:
    notes.incr(f"deliveries:{task_id}")


def effect(name: str, waits: bool = True) -> int:
    """Note one run; then wait until the test opens the gate of this name."""
    runs = int(notes.rpush(f"effects:{name}", os.getpid()))
    time.sleep(WORK_S)
    if waits:
        gate = f"gate:{name}"  # what it moves stays, also if this process dies meanwhile
        assert notes.blmove(gate, gate, GATE_S), f"nobody opened {gate}"
    return runs


# Not shared with the other apps of the process: it may load this module more than once.
task = functools.partial(app.task, shared=False)


@task
def unguarded(name: str) -> None:
    effect(name)


@idempotent_task(once, key=lambda name: name)
@task
def ship(name: str) -> dict[str, str]:
    effect(name)
    return {"shipped": name}


@idempotent_task(once, key=lambda name: name, retry_safe=True)
@task
def ship_again(name: str) -> dict[str, int]:
    return {"run": effect(name)}


@idempotent_task(once, key=lambda name: name)
@task
def quick(name: str) -> str:
    effect(name, waits=False)
    return name


@idempotent_task(once, key=lambda name: name, retry_safe=True)
@task
def charge(name: str) -> str:
    """Charges once, however often it runs: the provider deduplicates by the child key."""
    effect(name, waits=False)
    attempt = current_attempt()
    assert attempt is not None
    notes.hsetnx("charged", attempt.child_key("charge"), name)
    return name


@idempotent_task(once, key=lambda name: name)
@task
def fails(name: str) -> None:
    effect(name, waits=False)
    raise ValueError(f"no such address: {name}")


@idempotent_task(once, key=lambda name: name)
@task(acks_on_failure_or_timeout=False)
def fails_and_is_buried(name: str) -> None:
    effect(name, waits=False)
    raise ValueError(f"no such address: {name}")


@idempotent_task(once, key=lambda name, tries: name)
@task(bind=True, max_retries=5)
def by_hand(self: Task, name: str, tries: int) -> int:
    if effect(name, waits=False) < tries:
        raise self.retry(countdown=0)
    return tries


@idempotent_task(once, key=lambda name, tries: name)
@task(autoretry_for=(ConnectionError,), retry_kwargs={"max_retries": 5, "countdown": 0})
def by_itself(name: str, tries: int) -> int:
    if effect(name, waits=False) < tries:
        raise ConnectionError("the carrier does not answer")
    return tries


@task
def collect(parts: list[Any], name: str) -> list[Any]:
    notes.rpush(f"effects:{name}", "collected")
    return parts


@task
def note(value: Any, name: str) -> None:
    notes.rpush(f"effects:{name}", "called back")
