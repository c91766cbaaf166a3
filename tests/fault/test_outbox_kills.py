"""kill -9 of consumers with an inbox, and of publishers: at every point, and at random moments.

Each message is handled once and published under one id, whatever was killed: rows = messages
published, without duplicates of an id (I1, I4, I10). `make soak` kills two hundred publishers.
"""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.fault import killed_outbox_worker
from tests.fault.killed_outbox_worker import Killer, Shop, lines
from tests.queues.outbox_case import clear, database
from tests.support.servers import processes

from oncekey import Once
from oncekey.queues.outbox import Outbox

ROOT = Path(__file__).parents[2]
GROUPS = 7
LEASE = "300ms"
PAUSE_SECONDS = 0.4  # longer than the lease
LIFETIME_MAX_SECONDS = 0.15
PATIENCE_SECONDS = 120


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", killed_outbox_worker.__name__, *arguments]


def set_up(url: str) -> None:
    if url.startswith("postgresql"):
        clear(url)
        return
    with Once(url) as once:
        Outbox(once).create_table()
    execute(url, "CREATE TABLE orders (item TEXT)")


def execute(url: str, sql: str) -> list[Any]:
    is_postgres = url.startswith("postgresql")
    connect: Any = psycopg.connect if is_postgres else sqlite3.connect
    with closing(connect(url.removeprefix("sqlite:///"))) as connection:
        cursor = connection.execute(sql)
        rows = cursor.fetchall() if cursor.description else []
        connection.commit()
    return rows


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_i1_a_process_killed_anywhere_handles_and_publishes_each_message_once(
    store: str, tmp_path: Path
) -> None:
    url = database() if store == "postgresql" else f"sqlite:///{tmp_path}/shop.db"
    table = "oncekey.outbox" if store == "postgresql" else "oncekey_outbox"
    set_up(url)
    sessions = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    before = set(execute(url, sessions)) if store == "postgresql" else set()
    done = subprocess.run(
        command("at-points", url, str(tmp_path)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    keys: list[str] = json.loads(done.stdout)
    assert len(keys) > 20, "the points were not watched"
    if store == "postgresql":
        processes.wait_until(
            lambda: len(set(execute(url, sessions)) - before) <= 1, "the killed sessions have ended"
        )
    # Every row has its message, in the outbox or published, and the other way round.
    rows = sorted(item for (item,) in execute(url, "SELECT item FROM orders"))
    waiting = {bytes(body).decode() for (body,) in execute(url, f"SELECT body FROM {table}")}  # noqa: S608
    published = {line.split()[0] for line in lines(tmp_path / "published")}
    assert rows == sorted(waiting | published)
    acknowledged = set(lines(tmp_path / "acknowledged"))
    assert acknowledged <= set(rows)
    assert len(acknowledged) < len(keys)
    # The queue delivers again what was not acknowledged, and the killed publishers' leases end.
    execute(url, f"UPDATE {table} SET due_at = 0")  # noqa: S608
    shop = Shop(url, tmp_path, Killer(-1))
    for key in keys:
        if key not in acknowledged:
            assert shop.handle(key) is (key in rows)
    shop.publisher.publish_due()
    assert shop.outbox.stats() == (0, 0, 0, 0, 0.0)
    shop.once.close()
    assert sorted(item for (item,) in execute(url, "SELECT item FROM orders")) == keys
    sent = lines(tmp_path / "published")
    assert len(sent) > len(set(sent)), "no publisher was killed between sending and settling"
    assert sorted({line.split()[0] for line in sent}) == keys
    assert len({line.split()[1] for line in sent}) == len(keys)  # one id for each


@pytest.mark.seeded
@pytest.mark.parametrize(
    ("messages", "faults"), [(150, 4), pytest.param(1_000, 200, marks=pytest.mark.soak)]
)
def test_publishers_killed_and_paused_at_random_lose_nothing_and_keep_the_order(
    messages: int, faults: int, tmp_path: Path, seed: int
) -> None:
    url, path = database(), tmp_path / "published"
    clear(url)
    with Once(url) as once, psycopg.connect(url) as connection:
        outbox = Outbox(once)
        for number in range(messages):
            outbox.add(connection, "q", f"{number:05}", order_group=f"g{number % GROUPS}")
            if number % 10 == 0:
                connection.commit()
        connection.commit()
        chance = random.Random(seed)
        publishers: list[subprocess.Popen[bytes]] = []
        try:
            kills, added = 0, messages
            while outbox.stats().waiting or kills < faults:
                while len(publishers) < 2:
                    publishers.append(subprocess.Popen(command("publish", url, str(path), LEASE)))
                before = len(lines(path))
                processes.wait_until(
                    lambda: len(lines(path)) > before or not outbox.stats().waiting,  # noqa: B023
                    "something is published",
                    PATIENCE_SECONDS,
                )
                if kills < faults and not outbox.stats().waiting:
                    outbox.add(connection, "q", f"{added:05}", order_group="g0")
                    connection.commit()
                    added += 1
                time.sleep(chance.uniform(0, LIFETIME_MAX_SECONDS))  # any moment must be right
                victim = publishers.pop(chance.randrange(2))
                if chance.random() < 0.3:  # a pause longer than the lease makes a zombie of it
                    victim.send_signal(signal.SIGSTOP)
                    time.sleep(PAUSE_SECONDS)
                    victim.send_signal(signal.SIGCONT)
                    publishers.append(victim)
                else:
                    victim.kill()
                    victim.wait()
                kills += 1
        finally:
            for publisher in publishers:
                publisher.kill()
                publisher.wait()
    check_order(lines(path), minimum=messages)


def check_order(sent: list[str], minimum: int) -> None:
    """Check that no message is missing, and that each group came in order, duplicates aside."""
    first = list(dict.fromkeys(sent))
    texts = [line.split()[1] for line in first]
    assert len(texts) == len(set(texts)), "a message was sent under two ids"
    assert sorted(texts) == [f"{number:05}" for number in range(max(minimum, len(texts)))]
    for group in range(GROUPS):
        ordered = [line.split()[1] for line in first if line.startswith(f"g{group} ")]
        assert ordered == sorted(ordered)


def test_the_check_notices_a_message_that_overtook_another() -> None:
    with pytest.raises(AssertionError):
        check_order(["g0 00007 b", "g0 00000 a"], minimum=0)
