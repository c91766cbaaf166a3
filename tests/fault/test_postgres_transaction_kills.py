"""kill -9 in callers' own transactions on PostgreSQL: at every message, and at random moments.

A killed process leaves both its rows and the finished key, or neither, and no lock to wait for (I1,
I10). `make soak` kills five hundred processes at random moments.
"""

from __future__ import annotations

import asyncio
import json
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
PATIENCE_SECONDS = 280
SUCCEEDED, FAILED = 2, 3

# kind -> [key, ending, side, number of the message]
Kills = dict[str, list[list[Any]]]


def outputs_of_killers(*moments: int) -> dict[str, str]:
    """Run a parent of killed processes for each kind on empty tables, and return what they print.

    The server has then ended the sessions of the killed processes.
    """
    url = database()
    clear_tables()
    sessions = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    before = set(query(sessions))
    parents = {kind: start(url, kind, *map(str, moments)) for kind in KINDS}
    outputs = {kind: output_of(parent) for kind, parent in parents.items()}
    processes.wait_until(
        lambda: set(query(sessions)) <= before,
        "the server has ended their sessions",
        PATIENCE_SECONDS,
    )
    return outputs


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", killed_postgres_transaction.__name__, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


def output_of(parent: subprocess.Popen[str]) -> str:
    out, err = parent.communicate(timeout=PATIENCE_SECONDS)
    assert parent.returncode == 0, err
    return out


def check_tables() -> None:
    """Check that every row has its finished key, and that no key is held."""
    found = orders()
    assert len(found) == len(set(found)), "an order has two rows"
    counts = dict(query("SELECT state, count(*) FROM oncekey.records GROUP BY state"))
    assert counts.pop(SUCCEEDED, 0) == len(found)  # one finished key per row
    counts.pop(FAILED, None)
    assert counts == {}
    assert advisory_locks() == []


def test_i1_i10_a_process_killed_at_any_message_leaves_all_or_nothing_and_a_retry_works() -> None:
    kills: Kills = {kind: json.loads(out) for kind, out in outputs_of_killers().items()}
    check_tables()
    for kind in KINDS:
        check_messages(kind, kills[kind])
    for kind in KINDS:
        retry_all(kind, {key: ending for key, ending, _, _ in kills[kind]})


def check_messages(kind: str, kills: list[list[Any]]) -> None:
    """Only the last message commits. If it was sent, the server may have read it or not."""
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


@pytest.mark.seeded
@pytest.mark.parametrize("kills", [3, pytest.param(170, marks=pytest.mark.soak)])
def test_i1_processes_killed_at_random_moments_leave_all_or_nothing(kills: int, seed: int) -> None:
    outputs_of_killers(seed, kills)
    check_tables()
    for kind in KINDS:
        retry_all(kind, {f"{kind} {number}": "returns" for number in range(kills + KEYS)})


def retry_all(kind: str, keys: dict[str, str]) -> None:
    """Run every key again: it replays if it has a row, and runs otherwise."""

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


async def with_caller(kind: str, check: Any) -> None:
    async with CALLERS[kind]() as caller:
        await check(caller)
