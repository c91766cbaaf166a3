"""The server crashes under load, again and again: nothing that was acknowledged is lost (I4).

The same test with synchronous_commit=off must find losses: it would not be worth much if it could
not. Real processes: the postmaster and all its children are ended at once, by SIGQUIT (as a host
that goes down in an orderly way does after its patience) or by SIGKILL.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from tests.fault.postgres_load import Load, lost
from tests.support.postgres_adapters import StoreAdapters, fresh_server, make_claim, make_finish
from tests.support.servers import Postgres

from oncekey.core.guarantees import Level

SOAK = bool(os.environ.get("ONCEKEY_SOAK"))
ROUNDS = 100 if SOAK else 10
KEYS = 300  # acknowledged between two crashes, at least
# What is committed asynchronously stays in memory until somebody writes the log: nobody does.
LAZY: dict[str, str | bool] = {"wal_writer_delay": "10s", "autovacuum": False}

COUNT = "SELECT count(*) FILTER (WHERE state = 2), count(*) FROM oncekey.records"


def tell(what: str) -> None:
    """For those who run it with -s."""
    sys.stdout.write(f"\n{what}\n")


def crash(server: Postgres, number: int) -> None:
    server.kill() if number % 2 else server.stop("immediate")
    server.start()


def run(server: Postgres, rounds: int, **options: Any) -> tuple[Load, list[str], int]:
    """The load, the losses, and the rounds there were until the first of them."""
    with Load(server.url(), **options) as load:
        for number in range(rounds):
            load.wait_for(KEYS)
            crash(server, number)
            found = lost(server, dict(load.told))
            if found or load.wrong:
                return load, found, number + 1
        load.wait_for(KEYS)  # and it goes on
        return load, lost(server, dict(load.told)), rounds


def test_i4_no_acknowledged_claim_or_finish_is_lost_in_a_crash() -> None:
    server = fresh_server(LAZY)
    try:
        load, found, rounds = run(server, ROUNDS)
        finishes = sum(one.body is not None for one in load.told.values())
        tell(f"{rounds} crashes, {len(load.told)} claims and {finishes} finishes acknowledged")
        assert load.wrong == []
        assert found == []
        assert finishes > ROUNDS * KEYS // 4
        assert load.blocking.guarantee.level is Level.TRANSACTIONAL
        assert load.async_.guarantee.level is Level.TRANSACTIONAL
    finally:
        server.close()


def test_the_test_finds_losses_where_commits_are_not_waited_for() -> None:
    server = fresh_server(LAZY)
    try:
        load, found, rounds = run(server, 5, synchronous_commit="off")
        tell(f"not waited for: {len(found)} of {len(load.told)} lost, crash {rounds}")
        assert any(line.startswith("claim") for line in found) or load.wrong
        assert load.blocking.guarantee.level is Level.BEST_EFFORT
        assert "synchronous_commit is off" in load.blocking.guarantee.reason
    finally:
        server.close()


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_finish_alone_is_lost_or_kept_by_the_same_rule(synchronous: bool) -> None:
    """The claim is on disk long before; only the finish is at stake, and a replay of it."""
    server = fresh_server(LAZY)
    adapters = StoreAdapters("psycopg")
    try:
        store = adapters.store(server.url(), synchronous_commit="on" if synchronous else "off")
        claims = [make_claim(f"k{n}") for n in range(50)]
        fences = [reply.fence for reply in store.apply(claims)]
        server.execute("CHECKPOINT")
        store.apply([make_finish(c, fence) for c, fence in zip(claims, fences, strict=True)])
        server.kill()
        server.start()
        rows = server.execute(COUNT)
        assert rows == [(50 if synchronous else 0, 50)]
    finally:
        adapters.close()
        server.close()
