"""Several processes on one file: killed, forked, and racing."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from oncekey import Once
from oncekey.core.commands import Busy, Claim, Claimed, Done, Finish, Look, Renew, Replay, Seen
from oncekey.core.errors import StoreUnavailable
from oncekey.core.record import State
from oncekey.stores.sqlite import AsyncSQLiteStore, SQLiteStore

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def claim(n: int, owner: bytes = b"o") -> Claim:
    id = n.to_bytes(16, "big")
    return Claim(id, owner, b"\x01f", 30_000_000, 60_000_000, 0, retry_safe=False)


def finish(store: SQLiteStore, n: int, body: bytes = b"done") -> None:
    reply = store.apply([claim(n)])[0]
    assert isinstance(reply, Claimed)
    done = store.apply([Finish(claim(n).id, b"o", reply.fence, State.SUCCEEDED, body)])
    assert done == [Done()]


def present(store: SQLiteStore, *numbers: int) -> list[bool]:
    replies = store.apply([Look(claim(n).id) for n in numbers])
    return [isinstance(reply, Seen) and reply.record is not None for reply in replies]


def start_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked child, which exits with 0 unless it raises."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException as error:
        sys.stderr.write(f"child: {error!r}\n")
        sys.stderr.flush()
    finally:
        os._exit(code)


def in_child(work: Callable[[], None]) -> None:
    assert os.waitpid(start_child(work), 0)[1] == 0


VICTIM = """
import sys
from oncekey.core.commands import Claim
from oncekey.stores.sqlite import SQLiteStore
from oncekey.stores.sqlite.program import COMMIT
store = SQLiteStore(sys.argv[1])
claims = [Claim(n.to_bytes(16, "big"), b"victim", b"\\x01f", 30_000_000, 60_000_000, 0, False)
          for n in range(100, 300)]
connection = store._database._connection
statements = store._program.apply(claims)
statement = next(statements)
while statement is not COMMIT:
    cursor = connection.cursor()
    if statement.many:
        cursor.executemany(statement.sql, statement.params)
        rows = [(cursor.rowcount,)]
    else:
        rows = cursor.execute(statement.sql, statement.params).fetchall()
    statement = statements.send(rows)
print("written, not committed", flush=True)
sys.stdin.read()
"""


def test_a_process_killed_in_a_transaction_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    store = SQLiteStore(path, busy_timeout="0s")
    finish(store, 1)
    victim = subprocess.Popen(
        [sys.executable, "-c", VICTIM, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "written, not committed\n"
        with pytest.raises(StoreUnavailable):
            store.apply([claim(2)])
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    assert isinstance(store.apply([claim(2)])[0], Claimed)
    assert present(store, 1, 2, 100, 299) == [True, True, False, False]
    store.close()


RACER = """
import json, os, sys
from oncekey import InFlight, Once
once = Once("sqlite:///" + sys.argv[1] + "?busy_timeout=60s", cache=0)
print("ready", flush=True)
sys.stdin.readline()
ran = []
def body(n):
    ran.append(n)
    return os.getpid()
answers = [once.run("race", str(n), lambda attempt: body(n), wait="60s").value
           for n in range(int(sys.argv[2]))]
once.close()
print(json.dumps([ran, answers]))
"""


def test_processes_that_race_for_the_same_keys_run_each_once(tmp_path: Path) -> None:
    keys, count = 40, 4
    Once(f"sqlite:///{tmp_path}/keys.db").close()
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path / "keys.db"), str(keys)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    result = [json.loads(racer.communicate(timeout=120)[0]) for racer in racers]
    ran = sorted(n for each, _ in result for n in each)
    assert ran == list(range(keys))
    assert all(answers == result[0][1] for _, answers in result)


# --- fork -----------------------------------------------------------------------------------------


@needs_fork
def test_a_forked_child_uses_the_same_store(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "keys.db")
    finish(store, 1)

    def work() -> None:
        assert isinstance(store.apply([claim(1, b"x")])[0], Replay)
        finish(store, 2)
        store.close()

    in_child(work)
    finish(store, 3)
    assert isinstance(store.apply([claim(2, b"x")])[0], Replay)
    store.close()


@needs_fork
def test_a_childs_commits_survive_its_parents_close(tmp_path: Path) -> None:
    """With an inherited connection a child takes no real lock: when the parent closes, the log
    would be removed, and the child's later commits with it (I4)."""
    store = SQLiteStore(tmp_path / "keys.db")
    finish(store, 1)
    tells, result = multiprocessing.Pipe()

    def work() -> None:
        result.close()
        finish(store, 2)
        tells.send("done 2")
        assert tells.recv() == "closed"
        finish(store, 3)
        tells.send("done 3")
        assert tells.recv() == "seen"

    child = start_child(work)
    tells.close()  # so that reading ends if the child dies
    assert result.recv() == "done 2"
    store.apply([Look(claim(1).id)])
    store.close()
    result.send("closed")
    assert result.recv() == "done 3"
    other = SQLiteStore(tmp_path / "keys.db")
    assert present(other, 1, 2, 3) == [True, True, True]
    other.close()
    result.send("seen")
    assert os.waitpid(child, 0)[1] == 0
    result.close()


@needs_fork
def test_a_fork_waits_for_a_running_transaction(tmp_path: Path) -> None:
    inside, go = threading.Event(), threading.Event()
    mine = threading.local()

    def clock() -> int:
        if getattr(mine, "stops", False):  # a renewal reads it in its transaction
            inside.set()
            assert go.wait(90)
        return 1_700_000_000_000_000

    store = SQLiteStore(tmp_path / "keys.db", clock=clock)
    held = store.apply([claim(1)])[0]
    assert isinstance(held, Claimed)
    replies: list[object] = []

    def slow() -> None:
        mine.stops = True
        replies.extend(store.apply([Renew(claim(1).id, b"o", held.fence, 1_000_000)]))

    thread = threading.Thread(target=slow)
    thread.start()
    assert inside.wait(90)
    # Whether it goes off before or after the fork has begun to wait: both must be right.
    threading.Timer(0.05, go.set).start()

    def work() -> None:
        assert isinstance(store.apply([claim(1, b"x")])[0], Busy)
        assert isinstance(store.apply([claim(2)])[0], Claimed)

    in_child(work)
    thread.join()
    assert replies == [Done()]
    assert present(store, 1, 2) == [True, True]
    store.close()


@needs_fork
def test_a_child_forked_during_a_statement_fails_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncekey.stores.sqlite.connection._FORK_MARGIN_SECONDS", 0.0)
    store = SQLiteStore(tmp_path / "keys.db", busy_timeout="0s")
    with store._database._lock:  # as by a thread that does not come back

        def work() -> None:
            with pytest.raises(StoreUnavailable, match="after the fork") as raised:
                store.apply([claim(1)])
            assert not raised.value.ambiguous

        in_child(work)
    assert isinstance(store.apply([claim(1)])[0], Claimed)
    store.close()


@needs_fork
def test_once_and_the_async_store_work_after_a_fork(tmp_path: Path) -> None:
    async_store = AsyncSQLiteStore(tmp_path / "keys.db")
    once = Once(f"sqlite:///{tmp_path}/keys.db")
    assert once.run("op", "a", lambda attempt: 1).value == 1
    asyncio.run(async_store.apply([claim(1)]))

    def work() -> None:
        assert once.run("op", "a", lambda attempt: 2).value == 1
        assert once.run("op", "b", lambda attempt: 3).value == 3
        assert isinstance(asyncio.run(async_store.apply([claim(1, b"x")]))[0], Busy)
        once.close()

    in_child(work)
    assert once.run("op", "b", lambda attempt: 4).value == 3
    asyncio.run(async_store.close())
    once.close()
