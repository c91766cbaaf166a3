"""SQLite, durable (synchronous=FULL), beside one commit per call and beside exactly-once.

"One commit per call" comes in three forms: oncekey itself with its batching off; the bare inserts
and updates, nothing else around them, with a connection per thread, as programs usually do it; and
the same through one shared connection under a lock, the best that can be done without batching.
exactly-once is set to FULL too.

The lone caller is held against itself without the coalescer, which is what a batching delay would
show against, and against the bare statements of its lifecycle.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from exactly_once import once as exactly_once
from exactly_once.stores.sqlite import SQLiteStore as PeerStore

from bench.figures import Ratio, Report, Timing, in_turns, per_operation
from oncekey import Once
from oncekey.engine.attempts.runner_base import one_by_one
from oncekey.stores.sqlite.program import QUERIES

THREADS = 64
PER_THREAD = 40
ROUNDS = 7
LONE_OPERATIONS = 400
ONE_COMMIT_WANTED = 5.0
PEER_WANTED = 4.0
LONE_WANTED = 1.15

_numbers = itertools.count()


def _threads(call: Callable[[str], object]) -> float:
    """Microseconds per operation with 64 threads at once."""
    gate = threading.Barrier(THREADS)

    def work(_: int) -> None:
        gate.wait()
        for _ in range(PER_THREAD):
            call(f"order-{next(_numbers)}")

    with ThreadPoolExecutor(THREADS) as pool:
        return per_operation(THREADS * PER_THREAD, lambda: list(pool.map(work, range(THREADS))))


class _Raw:
    """A claim and a finish as plain statements, one commit each, on one connection."""

    def __init__(self, path: Path) -> None:
        # The schema is oncekey's own, so that both write the same rows and indexes.
        Once(f"sqlite:///{path}").close()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=60)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._lock = threading.Lock()
        width = len(self._db.execute("SELECT * FROM oncekey_records").description)
        names = [c[0] for c in self._db.execute("SELECT * FROM oncekey_records").description]
        self._values = {name: _sample(name) for name in names}
        marks = ",".join("?" * width)
        self._insert = f"INSERT INTO oncekey_records VALUES ({marks})"  # noqa: S608
        self._select = QUERIES["select_records"].replace("/*ids*/", "?")
        self._update = (
            "UPDATE oncekey_records SET state = 2, finished_at = ?, body = ? WHERE id = ?"
        )

    def lifecycle(self) -> None:
        id = os.urandom(16)
        row = tuple({**self._values, "id": id}.values())
        body = b'\x01\x01\x04json{"id":"ch_1"}'
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(self._insert, row)
            self._db.execute("COMMIT")
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(self._update, (time.time_ns() // 1000, body, id))
            self._db.execute("COMMIT")

    def lone_lifecycle(self) -> None:
        """Exactly what oncekey sends for a lone first run, its read included."""
        id = os.urandom(16)
        row = tuple({**self._values, "id": id}.values())
        body = b'\x01\x01\x04json{"id":"ch_1"}'
        db = self._db
        db.execute(self._select, (id,)).fetchall()
        db.execute("BEGIN IMMEDIATE")
        db.execute(self._insert, row)
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
        db.execute(self._update, (time.time_ns() // 1000, body, id))
        db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()


def _sample(column: str) -> object:
    if column == "n":
        return None  # the row number is SQLite's to give
    blobs = {"id": 16, "fingerprint": 33, "owner": 16}
    if column in blobs:
        return os.urandom(blobs[column])
    if column in ("steps", "body"):
        return b""
    if column in ("scope", "operation", "key", "note"):
        return "charge" if column == "operation" else ""
    if column in ("state", "attempt", "retry_safe"):
        return 1
    return time.time_ns() // 1000


def _peer(path: Path) -> Callable[[str], object]:
    store = PeerStore(str(path))
    store._conn.execute("PRAGMA synchronous=FULL")

    @exactly_once(store, key=lambda order: order)
    def charge(order: str) -> dict[str, str]:
        return {"id": "ch_1"}

    return charge


def run() -> list[Report]:
    with tempfile.TemporaryDirectory(prefix="oncekey-bench-") as folder:
        return [_many(Path(folder)), _lone(Path(folder))]


def _unbatched(path: Path) -> Once:
    """oncekey with the coalescer taken out: every command is its own commit."""
    once = Once(f"sqlite:///{path}")
    once._runner._coalesce = False
    once._runner._send = one_by_one(once._store.apply, once._runner._clock.now, None)
    once._runner._shared._send = once._runner._send
    return once


def _many(folder: Path) -> Report:
    once = Once(f"sqlite:///{folder / 'oncekey.db'}")
    unbatched = _unbatched(folder / "unbatched.db")
    shared = _Raw(folder / "shared.db")
    mine = threading.local()
    peer = _peer(folder / "peer.db")

    def run(once: Once) -> Callable[[str], object]:
        return lambda order: once.run("charge", order, lambda attempt: {"id": "ch_1"})

    def each_its_own(_: str) -> None:
        if not hasattr(mine, "raw"):
            mine.raw = _Raw(folder / "each.db")
        mine.raw.lifecycle()

    timings = in_turns(
        {
            "oncekey": lambda _: _threads(run(once)),
            "oncekey, batching off": lambda _: _threads(run(unbatched)),
            "bare, connection per thread": lambda _: _threads(each_its_own),
            "bare, one shared connection": lambda _: _threads(lambda _: shared.lifecycle()),
            "exactly-once (FULL)": lambda _: _threads(peer),
        },
        ROUNDS,
    )
    for opened in (once, unbatched, shared):
        opened.close()
    best = timings["oncekey"].us
    against = [
        Ratio(f"oncekey against {name}", timing.us / best, ONE_COMMIT_WANTED)
        for name, timing in timings.items()
        if name not in ("oncekey", "exactly-once (FULL)")
    ]
    peers = Ratio(
        "oncekey against exactly-once", timings["exactly-once (FULL)"].us / best, PEER_WANTED
    )
    title = f"SQLite FULL, {THREADS} threads: claim and finish"
    return Report(title, list(timings.values()), [*against, peers])


def _lone(folder: Path) -> Report:
    """Alternating, one by one: the disk's mood changes within milliseconds."""
    once = Once(f"sqlite:///{folder / 'lone.db'}")
    unbatched = _unbatched(folder / "lone-unbatched.db")
    raw = _Raw(folder / "lone-raw.db")
    calls: dict[str, Callable[[str], object]] = {
        "oncekey, lone caller": lambda key: once.run("charge", key, lambda a: {"id": "ch_1"}),
        "oncekey, no coalescer": lambda key: unbatched.run("charge", key, lambda a: {"id": "ch_1"}),
        "bare statements": lambda key: raw.lone_lifecycle(),
    }
    seen: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(LONE_OPERATIONS):
        for name, call in calls.items():
            start = time.perf_counter()
            call(f"lone-{number}")
            seen[name].append((time.perf_counter() - start) * 1_000_000)
    for opened in (once, unbatched, raw):
        opened.close()
    timings = {
        name: Timing(name, statistics.median(values), min(values), max(values))
        for name, values in seen.items()
    }
    lone = timings["oncekey, lone caller"].us
    return Report(
        "SQLite FULL, one caller: p50 of a first run",
        list(timings.values()),
        [
            Ratio(f"oncekey p50 over {name} p50", lone / timings[name].us, LONE_WANTED, True)
            for name in ("oncekey, no coalescer", "bare statements")
        ],
    )
