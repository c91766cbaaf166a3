"""An engine works in forked children, which have none of their parent's threads (I1)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import asyncio, os, signal, sys, threading
from oncekey import AsyncOnce, InFlight, Once, Policy
from oncekey.stores.sqlite import SQLiteStore
from oncekey.testing.faulty_store import Fault, FaultyStore

path, engine = sys.argv[1:]
policy = Policy(lease="60s")

def effect(name):
    with open(path + ".effects", "a") as file:
        file.write(name + "\\n")

def children(run):
    pids = []
    for number in range(4):
        pid = os.fork()
        if pid == 0:
            code = 1
            signal.alarm(40)          # ends a child that hangs
            try:
                run(number)
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    for pid in pids:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

if engine == "sync":
    store = FaultyStore(SQLiteStore(path), {4: Fault.HOLD_BEFORE})
    once = Once(store, policy=policy)
    once.run("op", "before", lambda attempt: effect("before"))      # calls 1 and 2
    inside, go = threading.Event(), threading.Event()
    def body(attempt):
        effect("held")
        inside.set()
        go.wait()
        return "held"
    thread = threading.Thread(target=lambda: once.run("op", "held", body))
    thread.start()
    inside.wait()                     # call 3 was applied, and the heartbeat thread runs
    busy = threading.Thread(target=lambda: once.run("op", "busy", lambda a: effect("busy")))
    busy.start()
    store.wait_held()                 # call 4 is held: a batch with a leader is in flight
    def run(number):
        assert once.run("op", "before", lambda attempt: effect("again")).replayed
        try:
            once.run("op", "held", lambda attempt: effect("twice"))
            raise AssertionError("ran twice")
        except InFlight:
            pass
        once.run("op", f"child {number}", lambda attempt: effect("child"))
        once.run("op", "shared", lambda attempt: effect("shared"), wait="30s")
    children(run)
    go.set()
    store.release()
    thread.join()
    busy.join()
    once.close()
else:
    once = AsyncOnce("sqlite:///" + path, policy=policy)
    async def call(key, name):
        async def body(attempt):
            effect(name)
        return await once.run("op", key, body, wait="30s")
    asyncio.run(call("before", "before"))
    def run(number):
        async def main():
            assert (await call("before", "again")).replayed
            await call(f"child {number}", "child")
            await call("shared", "shared")
        asyncio.run(main())
    children(run)
    asyncio.run(once.close())
"""


@pytest.mark.parametrize("engine", ["sync", "asyncio"])
def test_i1_an_engine_works_in_forked_children(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "keys.db"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), engine],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    effects = sorted(Path(f"{path}.effects").read_text().split())
    held = ["held", "busy"] if engine == "sync" else []
    assert effects == sorted(["before", "shared", *["child"] * 4, *held])
