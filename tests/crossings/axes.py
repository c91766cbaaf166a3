"""The table of what is crossed: the axes, their values, and what each value means.

A crossing has one value of each axis. Which of them cannot work says `refusals.py`; which of them
are run, `covering_cases.py`. The interpreter is an axis too, with the one value that runs the
tests: `make test-versions` runs all of this on each.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# axis -> value -> what it means
AXES: Final[dict[str, dict[str, str]]] = {
    "store": {
        "memory": "`memory://`",
        "sqlite": "a file",
        "postgres": "psycopg for threads, asyncpg for asyncio",
        "redis": "a Redis node that syncs every write",
        "valkey": "a Valkey node that syncs every write",
        "cluster": "a Valkey Cluster with replicas",
        "etcd": "three members",
    },
    "retention": {
        "sweep": "a sweeper deletes what has ended",
        "ring": "`retention=ring`: partitions are emptied in turn",
    },
    "mode": {
        "sync": "`Once`, threads",
        "async": "`AsyncOnce`, asyncio",
    },
    "surface": {
        "function": "a guarded function, or `in_transaction`",
        "operation": "a registered operation, finished by `complete` if it is abandoned",
        "asgi": "`IdempotencyMiddleware` around an ASGI app",
        "fastapi": "guarded routes of a FastAPI app",
        "wsgi": "`IdempotencyWSGI` around a WSGI app",
        "flask": "guarded views of a Flask app",
        "django": "guarded views of a Django project",
        "consumer": "a consumer of a `MemoryBroker`, with an inbox where it is transactional",
        "celery": "a guarded Celery task",
        "dramatiq": "a guarded Dramatiq actor",
        "taskiq": "a guarded Taskiq task",
        "faststream": "a guarded FastStream handler",
    },
    "level": {
        "any": "nothing is required, and the body is not retry-safe",
        "at_most_once": "`require=at_most_once`",
        "fenced": "`require=fenced`, `retry_safe=True`",
        "transactional": "`require=transactional`, in a transaction of the caller if it can be",
    },
    "policy": {
        "operation": "the level is required of the operation",
        "engine": "it is required of the whole engine, `Once(policy=Policy(...))`",
    },
    "move": {
        "none": "the store was always alone",
        "arriving": "`moving://OLD,STORE`: keys are being moved to it",
        "leaving": "`moving://STORE,NEW`: keys are being moved away",
        "arrived": "alone again, after everything was copied to it",
        "unfilled": "alone, before everything was copied to it",
        "left": "alone, after everything was copied away",
    },
    "change": {
        "none": "the guarantee stays as it was",
        "lowered": "durability is switched off at the server while the app runs",
        "replica": "an asynchronous replica was seen while the app runs",
        "forgotten": "the same, and an operator has said that it is gone",
    },
    "reader": {
        "engine": "`once.get`, `list` and `stats`",
        "cli": "`oncekey list`, `stats` and `guarantee`",
        "dashboard": "the dashboard's overview and its list of keys",
        "exporter": "the gauges of `oncekey exporter`",
    },
}


class Crossing(NamedTuple):
    """One value of each axis; the first ones are the plainest."""

    store: str = "sqlite"
    retention: str = "sweep"
    mode: str = "sync"
    surface: str = "function"
    level: str = "any"
    policy: str = "operation"
    move: str = "none"
    change: str = "none"
    reader: str = "engine"

    def __str__(self) -> str:
        return "-".join(self)
