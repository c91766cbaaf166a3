"""What the transactional level costs: a user's own transaction with and without a key.

The bare transaction is BEGIN, one business row, COMMIT, on a psycopg connection. The lone caller
alternates between the two call by call, so that both see the same moods of the disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import psycopg
from tests.support.servers.postgres import Postgres

from bench.figures import Ratio, Report, Timing, in_turns, median, progress
from bench.postgres import load
from oncekey import Once

ROUNDS = 5
THREADS = 8
WANTED = 0.55
LONE_CALLS = 1_000
LONE_WARM_UP = 50

_TABLE = "CREATE TABLE orders (id bigserial PRIMARY KEY, item text NOT NULL, cents int NOT NULL)"
_INSERT = "INSERT INTO orders (item, cents) VALUES (%s, %s)"

Connection = psycopg.Connection[tuple[object, ...]]


def bare(db: Connection, key: str) -> None:
    with db.transaction():
        db.execute(_INSERT, (key, 500))


def with_two_more(db: Connection, key: str) -> None:
    """What two more round trips cost by themselves: no key can be kept in fewer."""
    with db.transaction():
        db.execute("SELECT 1")
        db.execute(_INSERT, (key, 500))
        db.execute("SELECT 1")


def keyed(once: Once, db: Connection, key: str) -> None:
    def place(attempt: object) -> dict[str, bool]:
        db.execute(_INSERT, (key, 500))
        return {"placed": True}

    with db.transaction():
        once.in_transaction(db).run("place-order", key, place, request={"cents": 500})


def report(server: Postgres) -> Report:
    url = server.create_database("shop")
    server.execute(_TABLE, database="shop")
    with Once(url) as once:
        lone_bare, lone_two, lone_keyed = _lone(url, once)
        many = in_turns(
            {
                f"bare, {THREADS} threads": lambda _: _threads(url, bare),
                f"bare and two empty statements, {THREADS} threads": lambda _: _threads(
                    url, with_two_more
                ),
                f"oncekey, {THREADS} threads": lambda _: _threads(
                    url, lambda db, key: keyed(once, db, key)
                ),
            },
            ROUNDS,
            lines=True,
        )
    many_bare, many_two, many_keyed = many.values()
    return Report(
        "PostgreSQL, a transaction with one business row",
        [lone_bare, lone_two, lone_keyed, many_bare, many_two, many_keyed],
        [
            Ratio("two empty statements, of bare, one caller, p50", lone_bare.us / lone_two.us),
            Ratio(f"two empty statements, of bare, {THREADS} threads", many_bare.us / many_two.us),
            Ratio("with a key, of bare, one caller, p50", lone_bare.us / lone_keyed.us, WANTED),
            Ratio(f"with a key, of bare, {THREADS} threads", many_bare.us / many_keyed.us, WANTED),
        ],
    )


def _lone(url: str, once: Once) -> list[Timing]:
    with psycopg.connect(url, autocommit=True) as db:
        calls: dict[str, Callable[[str], None]] = {
            "bare, 1 caller": lambda key: bare(db, key),
            "bare and two empty statements, 1 caller": lambda key: with_two_more(db, key),
            "oncekey, 1 caller": lambda key: keyed(once, db, key),
        }
        seen: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(LONE_WARM_UP + LONE_CALLS):
            for name, call in calls.items():
                key = load.fresh_key()
                start = time.perf_counter()
                call(key)
                seen[name].append((time.perf_counter() - start) * 1_000_000)
    timings = [median(name, values[LONE_WARM_UP:]) for name, values in seen.items()]
    for timing in timings:
        progress(f"{timing.name}: p50 {timing.us:,.0f} µs")
    return timings


def _threads(url: str, call: Callable[[Connection, str], None]) -> float:
    """Each thread has a connection of its own."""
    mine = threading.local()
    with ExitStack() as opened:
        lock = threading.Lock()

        def one(key: str) -> None:
            if not hasattr(mine, "db"):
                with lock:
                    mine.db = opened.enter_context(psycopg.connect(url, autocommit=True))
            call(mine.db, key)

        return load.threads(THREADS, one)
