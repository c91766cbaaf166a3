"""Kafka consumers in processes of their own, which tests kill, stop and continue.

python -m tests.queues.kafka_worker

This process imports everything once, reads one JSON object per line, forks a consumer for each and
prints its pid. It never uses a client of Kafka itself, because librdkafka does not survive a fork.
A consumer ends when its parent does. What a handler does is noted as effect_log.py says.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.queues.effect_log import Bindings, append, note_effect, note_finishes
from tests.queues.kafka_clients import aiokafka_config

from oncekey import AsyncOnce, Once, Policy
from oncekey.engine.store_urls import async_store, blocking_store
from oncekey.queues.kafka import AsyncKafkaConsumer, confluent_member
from oncekey.queues.kafka.confluent_broker import KafkaConsumer

POINTS = (
    "before Claim",
    "after Claim",
    "before effect",
    "after effect",
    "before Finish",
    "after Finish",
    "before commit",
    "after commit",
)
# A consumer that is killed or stopped has a short lease, because the next one waits for its end.
# The others have one that no slow machine outlasts.
SHORT_LEASE = "1s"
LONG_LEASE = "30s"
_PARENT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Worker:
    """What a consumer process is to do.

    effects   the file that handlers write to
    point     where the process kills itself; "" for nowhere
    gate      a handler that finds this file missing waits for it, after its effect
    failing   orders whose handler raises while the file of that name is missing beside `effects`
    is_async  it runs on aiokafka; that one has no `point`
    """

    topic: str
    config: dict[str, Any]
    store: str
    effects: str
    point: str = ""
    gate: str = ""
    failing: list[str] = field(default_factory=list)
    lease: str = LONG_LEASE
    options: dict[str, Any] = field(default_factory=dict)
    is_async: bool = False

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def kill_at(wanted: str) -> Callable[[str], None]:
    """Return a function that kills this process at the first time it is called with `wanted`."""

    def at(point: str) -> None:
        if point == wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    return at


def kill_in_store(store: Any, at: Callable[[str], None], log: str) -> Any:
    apply, bindings = store.apply, Bindings()

    def killing_apply(commands: Sequence[Any], /) -> Any:
        if bindings.are(commands):
            return apply(commands)
        names = [type(command).__name__ for command in commands]
        for name in names:
            at(f"before {name}")
        replies = apply(commands)
        note_finishes(log, commands, replies)
        for name in names:
            at(f"after {name}")
        return replies

    store.apply = killing_apply
    return store


class KillingClient:
    """A client of Kafka that kills its process before or after it commits."""

    def __init__(self, client: Any, at: Callable[[str], None]) -> None:
        self._client = client
        self._at = at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def commit(self, **arguments: Any) -> Any:
        self._at("before commit")
        # A commit in the background would be on its way only.
        done = self._client.commit(**{**arguments, "asynchronous": False})
        self._at("after commit")
        return done


def handler_of(worker: Worker, at: Callable[[str], None]) -> Callable[[Any, Any], int]:
    """Return what a worker does with a message."""

    def handler(message: Any, attempt: Any) -> int:
        order = str(message.json()["order"])
        if order in worker.failing and not Path(worker.effects).with_name(order).exists():
            append(f"{worker.effects}.failed", order)
            raise ValueError(f"order {order} cannot be shipped yet")
        at("before effect")
        note_effect(worker.effects, order, attempt)
        at("after effect")
        while worker.gate and not os.path.exists(worker.gate):
            time.sleep(0.01)
        return os.getpid()

    return handler


def options_of(worker: Worker) -> dict[str, Any]:
    """Return the options of a worker's consumer, but for those of its client."""
    options = {"retry_safe": True, "backoff": "100ms", "concurrency": 2, "max_tries": 15}
    return {**options, **worker.options, "name": "shipping", "key": "json:$.order"}


def consume(worker: Worker) -> None:
    """Consume until this process is killed."""
    at = kill_at(worker.point)
    if worker.point:
        make = confluent_member._consumer
        killing: Any = lambda *given: KillingClient(make(*given), at)  # noqa: E731
        confluent_member._consumer = killing
    store = kill_in_store(blocking_store(worker.store), at, worker.effects)
    once = Once(store, policy=Policy(lease=worker.lease))

    consumer = KafkaConsumer(
        once, handler_of(worker, at), worker.topic, config=worker.config, **options_of(worker)
    )
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    consumer.run()
    once.close()


async def consume_async(worker: Worker) -> None:
    """Consume on aiokafka until this process is killed or told to stop."""
    store: Any = async_store(worker.store)
    apply, bindings, handle = store.apply, Bindings(), handler_of(worker, kill_at(""))

    async def noting_apply(commands: Sequence[Any], /) -> Any:
        replies = await apply(commands)
        if not bindings.are(commands):
            note_finishes(worker.effects, commands, replies)
        return replies

    async def handler(message: Any, attempt: Any) -> int:
        return await asyncio.to_thread(handle, message, attempt)

    store.apply = noting_apply
    async with AsyncOnce(store, policy=Policy(lease=worker.lease)) as once:
        config = aiokafka_config(worker.config)
        consumer = AsyncKafkaConsumer(
            once, handler, worker.topic, config=config, **options_of(worker)
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)
        await consumer.run()


def _child(worker: Worker, parent: int) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_SECONDS)
        os._exit(2)

    threading.Thread(target=watch, daemon=True).start()
    code = 1
    try:
        if worker.is_async:
            asyncio.run(consume_async(worker))
        else:
            consume(worker)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended children are not kept as zombies
    parent = os.getpid()
    for line in sys.stdin:
        worker = Worker(**json.loads(line))
        pid = os.fork()
        if pid == 0:
            _child(worker, parent)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
