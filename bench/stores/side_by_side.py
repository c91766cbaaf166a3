"""Every store beside the others: rate, processor time of both sides, bytes stored and on the wire.

The same first runs by 64 tasks of one process. A store's servers share the machine with it, so the
rates say what this machine does; the processor times say what a larger one would.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from pathlib import Path
from sqlite3 import connect
from typing import NamedTuple

from tests.support.servers.postgres import Postgres
from tests.support.servers.redis_server import RedisServer

from bench.figures import MICROSECONDS, Ratio, Report, Timing, progress
from bench.stores import footprint, processor_time

GIGABYTE = 1_000_000_000
_TABLES = (
    "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c "
    "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'oncekey' AND c.relkind = 'r'"
)


class Subject(NamedTuple):
    """One store, and how its servers are measured.

    ports    where its servers listen; none if it is embedded
    pids     their processes as they are now
    stored   how many bytes they have stored
    """

    name: str
    url: str
    ports: Collection[int]
    pids: Callable[[], Sequence[int]]
    stored: Callable[[], int]


def sqlite(folder: Path) -> Subject:
    path = folder / "bench.db"

    def stored() -> int:
        with closing(connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return path.stat().st_size

    return Subject("SQLite, synchronous=full", f"sqlite:///{path}", (), tuple, stored)


def postgres(server: Postgres, database: str) -> Subject:
    def pids() -> list[int]:
        return [int(row[0]) for row in server.execute("SELECT pid FROM pg_stat_activity")]

    def stored() -> int:
        return int(server.execute(_TABLES, database=database)[0][0])

    return Subject("PostgreSQL, fsync on", server.url(database), (server.port,), pids, stored)


def valkey(server: RedisServer) -> Subject:
    return Subject(
        "Valkey, appendfsync always",
        server.url(),
        (server.port,),
        lambda: [server.pid],
        lambda: int(server.info("memory")["used_memory"]),
    )


def report(subjects: Sequence[Subject]) -> Report:
    timings, ratios = [], []
    for subject in subjects:
        spent = processor_time.of_first_runs(subject.url, subject.pids)
        us = 1_000_000 / spent.per_second
        timings.append(Timing(f"oncekey, {subject.name}", us, us, us))
        progress(f"{subject.name}: {spent.per_second:,.0f} per second")
        for side in ("client", "server"):
            what = f"{subject.name}: processor time of the {side} per lifecycle"
            ratios.append(Ratio(what, getattr(spent, side), unit=MICROSECONDS))
        for callers in (1, footprint.CALLERS) if subject.ports else ():
            wire = footprint.on_the_wire(subject.url, subject.ports, callers)
            what = f"{subject.name}: on the wire per lifecycle, {callers} at once"
            ratios.append(Ratio(f"{what}, sent", wire.sent, unit=" bytes"))
            ratios.append(Ratio(f"{what}, received", wire.received, unit=" bytes"))
            ratios.append(Ratio(f"{what}, packets sent", wire.packets, unit=" packets"))
        stored = footprint.stored_per_key(subject.url, subject.stored)
        ratios.append(Ratio(f"{subject.name}: stored per live key", stored, unit=" bytes"))
        ratios.append(
            Ratio(f"{subject.name}: live keys per GB", GIGABYTE / stored / 1e6, unit=" million")
        )
    title = f"stores side by side, {processor_time.CALLERS} tasks of one process"
    return Report(title, timings, ratios)
