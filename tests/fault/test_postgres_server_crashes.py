"""A PostgreSQL server that crashes under load loses nothing that it acknowledged (I4).

With synchronous_commit=off the same test must find losses, which shows that it can fail. The
postmaster and all its children are real processes. They are ended at once, by SIGQUIT, as by a host
whose shutdown took too long, or by SIGKILL.
"""

from __future__ import annotations

import sys

import pytest
from tests.fault.postgres_load import Load, lost
from tests.support.postgres_adapters import StoreAdapters, fresh_server, make_claim, make_finish
from tests.support.servers import Postgres, processes

from oncekey.core.guarantees import Level

KEYS = 300  # the fewest that are acknowledged between two crashes
# With these settings an asynchronous commit stays in memory for seconds, and forever if the
# processes are stopped that would write it.
LATE_WRITES: dict[str, str | bool] = {"wal_writer_delay": "10s", "autovacuum": False}

WRITERS = (
    "SELECT pid FROM pg_stat_activity "
    "WHERE backend_type IN ('walwriter', 'background writer', 'checkpointer')"
)
COUNT = "SELECT count(*) FILTER (WHERE state = 2), count(*) FROM oncekey.records"


def report(line: str) -> None:
    """Print a line, which `pytest -s` shows."""
    sys.stdout.write(f"\n{line}\n")


def crash(server: Postgres, number: int) -> None:
    server.kill() if number % 2 else server.stop("immediate")
    server.start()


def stop_writers(server: Postgres) -> None:
    """Stop the processes that would write asynchronous commits to the disk in the background."""
    writers = server.execute(WRITERS)
    assert len(writers) == 3
    for (pid,) in writers:
        processes.suspend(pid)


def run(server: Postgres, crashes: int) -> tuple[Load, list[str], int]:
    """Crash the server under load until something is lost.

    Returns the load, the losses, and the number of crashes.
    """
    with Load(server.url()) as load:
        for number in range(crashes):
            load.wait_for(KEYS)
            crash(server, number)
            found = lost(server, dict(load.acknowledged))
            if found or load.wrong_replies:
                return load, found, number + 1
        load.wait_for(KEYS)  # the load continues
        return load, lost(server, dict(load.acknowledged)), crashes


@pytest.mark.parametrize("number", [6, pytest.param(100, marks=pytest.mark.soak)])
def test_i4_no_acknowledged_claim_or_finish_is_lost_in_a_crash(number: int) -> None:
    server = fresh_server(LATE_WRITES)
    try:
        load, found, crashes = run(server, number)
        finishes = sum(one.body is not None for one in load.acknowledged.values())
        report(f"{crashes} crashes, {len(load.acknowledged)} claims and {finishes} finishes")
        assert load.wrong_replies == []
        assert found == []
        assert finishes > number * KEYS // 4
        assert load.sync_store.guarantee.level is Level.TRANSACTIONAL
        assert load.async_store.guarantee.level is Level.TRANSACTIONAL
    finally:
        server.close()


def test_asynchronous_commits_are_lost_in_a_crash() -> None:
    server = fresh_server(LATE_WRITES)
    try:
        with Load(server.url(), synchronous_commit="off") as load:
            load.wait_for(KEYS)
            stop_writers(server)
            load.wait_for(KEYS)
            server.kill()
            server.start()
            found = lost(server, dict(load.acknowledged))
        report(f"asynchronous commits: {len(found)} of {len(load.acknowledged)} lost")
        assert any(line.startswith("claim") for line in found) or load.wrong_replies
        assert load.sync_store.guarantee.level is Level.BEST_EFFORT
        assert "synchronous_commit is off" in load.sync_store.guarantee.reason
    finally:
        server.close()


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_finish_survives_a_crash_only_with_synchronous_commit(synchronous: bool) -> None:
    """The claim is on disk before, so only the finish is at risk."""
    server = fresh_server(LATE_WRITES)
    adapters = StoreAdapters("psycopg")
    try:
        store = adapters.store(server.url(), synchronous_commit="on" if synchronous else "off")
        claims = [make_claim(f"k{n}") for n in range(50)]
        fences = [reply.fence for reply in store.apply(claims)]
        server.execute("CHECKPOINT")
        stop_writers(server)
        store.apply([make_finish(c, fence) for c, fence in zip(claims, fences, strict=True)])
        server.kill()
        server.start()
        rows = server.execute(COUNT)
        assert rows == [(50 if synchronous else 0, 50)]
    finally:
        adapters.close()
        server.close()
