"""kill -9 in callers' own transactions on PostgreSQL: at every message, and at any moment.

Whoever dies leaves both the rows and the finished key, or neither; nothing is left to be waited for
(I1, I10). ONCEKEY_SOAK=1 kills five hundred.
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

Told = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def killed() -> Told:
    """What became of the victims of each kind; the server has noticed the end of all of them."""
    url = database()
    clear_tables()
    sessions = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    before = set(query(sessions))
    victims = {kind: start(url, kind) for kind in KINDS}
    told = {kind: end(victim) for kind, victim in victims.items()}
    processes.wait_until(
        lambda: set(query(sessions)) <= before, "the server notices that they are gone"
    )
    return told


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


def end(victim: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = victim.communicate(timeout=280)
    assert victim.returncode == 0, err
    told: dict[str, Any] = json.loads(out)
    return told


def test_i1_what_the_dead_have_left(killed: Told) -> None:
    found = orders()
    assert len(found) == len(set(found)), "a row twice"
    counts = dict(query("SELECT state, count(*) FROM oncekey.records GROUP BY state"))
    assert counts.pop(SUCCEEDED, 0) == len(found)  # business rows and finished keys
    counts.pop(FAILED, None)
    assert counts == {}  # nobody holds a key
    assert advisory_locks() == []


@pytest.mark.parametrize("kind", KINDS)
def test_i1_a_message_that_was_not_sent_did_nothing(killed: Told, kind: str) -> None:
    """Only the last message commits; whether the dead one's was read, nobody can tell."""
    at = killed[kind]["at messages"]
    last = {ending: max(n for _, e, _, n in at if e == ending) for ending in ("returns", "refuses")}
    least = {"returns": 4, "refuses": 5}  # BEGIN, the claim, the body's own, the record, COMMIT
    assert all(last[ending] >= least[ending] for ending in least)
    found = orders()

    async def check(caller: Caller) -> None:
        for key, ending, side, number in at:
            state = await caller.state(key)
            if side == "before" or number < last[ending]:
                assert (state, key in found) == (None, False), (key, state)
            else:
                finished = {"returns": ("succeeded", True), "refuses": ("failed", False)}[ending]
                assert (state, key in found) in (finished, (None, False)), (key, state)

    asyncio.run(in_shop(kind, check))


@pytest.mark.parametrize("kind", KINDS)
def test_i10_every_key_runs_or_replays_at_once(killed: Told, kind: str) -> None:
    at = {key: ending for key, ending, _, _ in killed[kind]["at messages"]}
    keys = {**at, **{f"{kind} {number}": "returns" for number in range(MOMENTS + KEYS)}}

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

    asyncio.run(in_shop(kind, retry))


def test_there_were_enough_of_them(killed: Told) -> None:
    deaths = sum(len(told["at messages"]) + told["at moments"] for told in killed.values())
    assert deaths >= (500 if MOMENTS > 100 else 60)


async def in_shop(kind: str, scenario: Any) -> None:
    async with CALLERS[kind]() as caller:
        await scenario(caller)
