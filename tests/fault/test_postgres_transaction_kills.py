"""kill -9 in callers' own transactions on PostgreSQL: at every message, and at random moments.

A killed process leaves both its rows and the finished key, or neither, and no lock to wait for (I1,
I10). ONCEKEY_SOAK=1 kills five hundred processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fault import killed_postgres_transaction
from tests.fault.killed_postgres_transaction import KEYS, KINDS, order
from tests.support.caller_connections import (
    CALLERS,
    Caller,
    advisory_locks,
    clear_tables,
    orders,
    query,
)
from tests.support.caller_connections.database import database
from tests.support.servers import processes

from oncekey import OperationFailed, Terminal

ROOT = Path(__file__).parents[2]
MOMENTS = 170 if os.environ.get("ONCEKEY_SOAK") else 10
SEED = 20_260_115
SUCCEEDED, FAILED = 2, 3

Kills = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def killed() -> Kills:
    """Kill processes of each kind, and wait until the server has ended their sessions."""
    url = database()
    clear_tables()
    sessions = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    before = set(query(sessions))
    parents = {kind: start(url, kind) for kind in KINDS}
    kills = {kind: result_of(parent) for kind, parent in parents.items()}
    processes.wait_until(
        lambda: set(query(sessions)) <= before, "the server has ended their sessions"
    )
    return kills


def start(url: str, kind: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        killed_postgres_transaction.__name__,
        url,
        kind,
        str(SEED),
        str(MOMENTS),
    ]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


def result_of(parent: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = parent.communicate(timeout=280)
    assert parent.returncode == 0, err
    result: dict[str, Any] = json.loads(out)
    return result


def test_i1_killed_processes_leave_a_finished_key_for_every_row(killed: Kills) -> None:
    found = orders()
    assert len(found) == len(set(found)), "an order has two rows"
    counts = dict(query("SELECT state, count(*) FROM oncekey.records GROUP BY state"))
    assert counts.pop(SUCCEEDED, 0) == len(found)  # one finished key per row
    counts.pop(FAILED, None)
    assert counts == {}  # no key is held
    assert advisory_locks() == []


@pytest.mark.parametrize("kind", KINDS)
def test_i1_a_transaction_killed_before_its_commit_did_nothing(killed: Kills, kind: str) -> None:
    """Only the last message commits. If it was sent, the server may have read it or not."""
    kills = killed[kind]["at messages"]
    last = {
        ending: max(n for _, e, _, n in kills if e == ending) for ending in ("returns", "refuses")
    }
    least = {"returns": 4, "refuses": 5}  # BEGIN, the claim, the body's INSERT, the record, COMMIT
    assert all(last[ending] >= least[ending] for ending in least)
    found = orders()

    async def check(caller: Caller) -> None:
        for key, ending, side, number in kills:
            state = await caller.state(key)
            if side == "before" or number < last[ending]:
                assert (state, key in found) == (None, False), (key, state)
            else:
                finished = {"returns": ("succeeded", True), "refuses": ("failed", False)}[ending]
                assert (state, key in found) in (finished, (None, False)), (key, state)

    asyncio.run(with_caller(kind, check))


@pytest.mark.parametrize("kind", KINDS)
def test_i10_every_key_of_a_killed_process_runs_or_replays_at_once(
    killed: Kills, kind: str
) -> None:
    endings = {key: ending for key, ending, _, _ in killed[kind]["at messages"]}
    keys = {**endings, **{f"{kind} {number}": "returns" for number in range(MOMENTS + KEYS)}}

    async def retry(caller: Caller) -> None:
        before = set(orders())
        for key, ending in keys.items():
            async with caller.transaction():
                try:
                    result = await caller.run_inside(key, order(key, ending))
                except (Terminal, OperationFailed):
                    assert ending == "refuses"
                else:
                    assert result.replayed is (key in before)
        after = orders()
        assert sorted(key for key in after if key in keys) == sorted(
            key for key, ending in keys.items() if ending == "returns"
        )
        assert advisory_locks() == []

    asyncio.run(with_caller(kind, retry))


def test_enough_processes_were_killed(killed: Kills) -> None:
    kills = sum(len(kind["at messages"]) + kind["at moments"] for kind in killed.values())
    assert kills >= (500 if MOMENTS > 100 else 60)


async def with_caller(kind: str, check: Any) -> None:
    async with CALLERS[kind]() as caller:
        await check(caller)
