"""The clients of a chaos run: one process that sends every planned operation and retries it.

    python -m tests.support.chaos.chaos_clients PLAN

A client sends to one worker after the other, always under the same key, until it knows the outcome.
When the run has healed, those that do not know it yet go on, and some of the others ask once more.
Every request and what came back is in the history.

A fault that must meet operations asks for them: it leaves a file in the run's folder, and what the
file names is sent at once, and retried like everything else.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any, Final

import pika
import redis.asyncio as redis
from pika.exceptions import AMQPError
from redis.exceptions import RedisError
from tests.support.chaos.chaos_history import (
    FOLDER_VARIABLE,
    START_VARIABLE,
    Event,
    history_of_environment,
)
from tests.support.chaos.chaos_plan import MESSAGES
from tests.support.chaos.http_exchange import Reply, post
from tests.support.chaos.payment_names import (
    BROKER_VARIABLE,
    PARCEL_SCOPE,
    QUEUE_SCOPE,
    RABBIT_QUEUE_VARIABLE,
    RABBIT_VARIABLE,
    STREAM,
    operation_id,
    queue_id,
)

WORKERS_VARIABLE: Final = "CHAOS_WORKERS"  # the ports of the proxies before the workers
BEGAN_VARIABLE: Final = "CHAOS_BEGAN"  # when the plan's time began, in the history's time
MOVERS_VARIABLE: Final = "CHAOS_MOVERS"  # the ports of the workers whose keys move
ASKED_SUFFIX: Final = ".asked"  # of the files with operations that a fault asks for
HEALED_FILE: Final = "healed"
ALL_SENT_FILE: Final = "all-sent"  # every planned operation was sent once
TIMEOUT_SECONDS: Final = 8.0
PAUSE_FIRST_SECONDS: Final = 0.05
PAUSE_MAX_SECONDS: Final = 1.0
IN_FLIGHT_MAX: Final = 300  # operations that are being retried at the same time
LAST_REPLAYS: Final = 2_000
LAST_IN_FLIGHT: Final = 40
FINAL_STATUS: Final = 201
FINAL_CODES: Final = frozenset(
    {"key-reused", "outcome-unknown", "failed", "not-replayable", "rows-failed"}
)


class Clients:
    """All clients of a run; each operation has a task of its own."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._history = history_of_environment("clients")
        self._folder = Path(os.environ[FOLDER_VARIABLE])
        self._ports = _ports_of(WORKERS_VARIABLE)
        self._movers = _ports_of(MOVERS_VARIABLE)
        self._operations: list[dict[str, Any]] = plan["operations"]
        self._seed = plan["options"]["seed"]
        self._numbers = itertools.count(1)
        self._room = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._known: set[tuple[str, str]] = set()  # keys, and which variant was answered
        self._overtaken: set[str] = set()  # keys that a request with another body has taken
        self._broker = redis.from_url(
            f"{os.environ[BROKER_VARIABLE]}0",
            socket_timeout=TIMEOUT_SECONDS,
            socket_connect_timeout=2,
        )

    async def run(self) -> None:
        start = float(os.environ[START_VARIABLE]) + float(os.environ[BEGAN_VARIABLE])
        planned = list(self._operations)
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(self._send_what_is_asked_for(tasks))
            for operation in planned:
                await asyncio.sleep(max(0.0, start + operation["at"] - time.monotonic()))
                await self._room.acquire()
                tasks.create_task(self._first_part(operation))
            (self._folder / ALL_SENT_FILE).touch()
            tasks.create_task(self._last_part(asked))
        await self._broker.aclose()

    async def _send_what_is_asked_for(self, tasks: asyncio.TaskGroup) -> None:
        seen: set[Path] = set()
        while True:
            is_last = self._is_healed()
            for path in sorted(set(self._folder.glob(f"*{ASKED_SUFFIX}")) - seen):
                seen.add(path)
                for operation in json.loads(path.read_text(encoding="utf-8")):
                    self._operations.append(operation)
                    await self._room.acquire()
                    tasks.create_task(self._first_part(operation))
            if is_last:
                return
            await asyncio.sleep(PAUSE_FIRST_SECONDS)

    async def _first_part(self, operation: dict[str, Any]) -> None:
        chance = random.Random(f"{self._seed} {operation['number']}")
        try:
            if operation["level"] in MESSAGES:
                await self._publish(operation)
                return
            async with asyncio.TaskGroup() as tasks:
                for copy in range(operation["copies"]):
                    own = random.Random(f"{self._seed} {operation['number']} {copy}")
                    tasks.create_task(self._until_known(operation, "same", own))
                for probe in operation["probes"]:
                    tasks.create_task(self._probe(operation, probe, chance))
        finally:
            self._room.release()

    async def _until_known(
        self, operation: dict[str, Any], variant: str, chance: random.Random
    ) -> None:
        pause = PAUSE_FIRST_SECONDS
        while not _is_final(await self._send(operation, variant, chance)):
            if operation["abandoned"] and not self._is_healed():
                return
            await asyncio.sleep(pause * chance.uniform(0.5, 1.5))
            pause = min(pause * 2, PAUSE_MAX_SECONDS)

    async def _probe(
        self, operation: dict[str, Any], probe: dict[str, Any], chance: random.Random
    ) -> None:
        await asyncio.sleep(probe["after"])
        await self._send(operation, probe["variant"], chance)

    async def _send(
        self, operation: dict[str, Any], variant: str, chance: random.Random
    ) -> Reply | None:
        """Send one request and return its reply; None if it was lost on the way."""
        number, worker = next(self._numbers), self._worker_for(operation, chance)
        scope, cents, token = operation["scope"], operation["cents"], "good"
        if variant == "other body":
            cents += 1
        elif variant == "other caller":
            scope = f"{scope}-other"
        elif variant == "bad token":
            token = "bad"
        headers = {"Authorization": f"Bearer {token}-{scope}", "Idempotency-Key": operation["key"]}
        body = {"cents": cents, "work_ms": operation["work_ms"]}
        told: Event = {"id": operation_id(scope, operation["key"]), "n": number, "variant": variant}
        level = operation["level"]
        route = "once" if level == "moved" else level
        self._history.write("send", worker=worker, level=level, **told)

        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                reply = await post(self._port(worker), f"/{route}", headers, body)
        except (OSError, TimeoutError, EOFError) as error:
            self._history.write("no reply", error=type(error).__name__, **told)
            return None
        self._history.write(
            "reply",
            status=reply.status,
            body=reply.body if reply.status == FINAL_STATUS else "",
            replayed=reply.is_replay,
            code=reply.code,
            **told,
        )
        if _is_final(reply):
            self._known.add((operation["key"], variant))
        if variant == "same" and reply.code == "key-reused":
            self._overtaken.add(operation["key"])
        return reply

    def _worker_for(self, operation: dict[str, Any], chance: random.Random) -> int:
        """Choose a worker: those whose keys move come after the others."""
        if operation["level"] == "moved":
            return len(self._ports) + chance.randrange(len(self._movers))
        return chance.randrange(len(self._ports))

    def _port(self, worker: int) -> int:
        return [*self._ports, *self._movers][worker]

    async def _publish(self, operation: dict[str, Any]) -> None:
        """Send an order to its broker until that has confirmed it, `copies` times."""
        body = json.dumps({"id": operation["key"], "work_ms": operation["work_ms"]})
        is_parcel = operation["level"] == "parcel"
        told: Event = {"id": queue_id(operation["key"], PARCEL_SCOPE if is_parcel else QUEUE_SCOPE)}
        for _ in range(operation["copies"]):
            while True:
                self._history.write("publish", body=body, **told)
                try:
                    if is_parcel:
                        url, queue = os.environ[RABBIT_VARIABLE], os.environ[RABBIT_QUEUE_VARIABLE]
                        await asyncio.to_thread(publish_parcel, url, queue, body)
                    else:
                        await self._broker.xadd(STREAM, {"body": body})
                except (RedisError, AMQPError, OSError, TimeoutError) as error:
                    self._history.write("not published", error=type(error).__name__, **told)
                    await asyncio.sleep(PAUSE_MAX_SECONDS / 2)
                    continue
                self._history.write("published", **told)
                break

    # --- after the run has healed ---------------------------------------------------------------

    def _owners(self, operation: dict[str, Any]) -> list[str]:
        """Return the variants of an operation that may have taken a key, and want its outcome."""
        if operation["level"] in MESSAGES:
            return []
        probed = {probe["variant"] for probe in operation["probes"]}
        others = [variant for variant in ("other caller",) if variant in probed]
        if operation["key"] in self._overtaken:
            others.append("other body")
        return ["same", *others]

    def _is_healed(self) -> bool:
        return (self._folder / HEALED_FILE).exists()

    async def _last_part(self, asked_for: asyncio.Task[None]) -> None:
        await asked_for  # it ends when the run has healed
        asked = [(one, variant) for one in self._operations for variant in self._owners(one)]
        unknown = [pair for pair in asked if (pair[0]["key"], pair[1]) not in self._known]
        known = [pair for pair in asked if (pair[0]["key"], pair[1]) in self._known]
        chosen = random.Random(f"last {self._seed}").sample(known, min(LAST_REPLAYS, len(known)))
        room = asyncio.Semaphore(LAST_IN_FLIGHT)

        async def ask_again(operation: dict[str, Any], variant: str, own: random.Random) -> None:
            async with room:
                await self._send(operation, variant, own)

        async def ask_for_outcome(
            operation: dict[str, Any], variant: str, own: random.Random
        ) -> None:
            await self._until_known(operation, variant, own)
            if variant == "same" and operation["key"] in self._overtaken:
                await self._until_known(operation, "other body", own)

        async with asyncio.TaskGroup() as tasks:
            for operation, variant in unknown:
                own = random.Random(f"last {self._seed} {operation['number']}")
                tasks.create_task(ask_for_outcome(operation, variant, own))
            for operation, variant in chosen:
                own = random.Random(f"again {self._seed} {operation['number']}")
                tasks.create_task(ask_again(operation, variant, own))


def publish_parcel(url: str, queue: str, body: str) -> None:
    """Publish to RabbitMQ with a confirm, on a connection of its own."""
    parameters = pika.URLParameters(url)
    parameters.socket_timeout = parameters.blocked_connection_timeout = TIMEOUT_SECONDS
    connection = pika.BlockingConnection(parameters)
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2)
        channel.basic_publish("", queue, body.encode(), properties, mandatory=True)
    finally:
        if connection.is_open:
            connection.close()


def _ports_of(variable: str) -> list[int]:
    return [int(port) for port in os.environ[variable].split(",") if port]


def _is_final(reply: Reply | None) -> bool:
    if reply is None:
        return False
    return reply.status == FINAL_STATUS or reply.code in FINAL_CODES


if __name__ == "__main__":
    asyncio.run(Clients(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))).run())
