"""Engines on Redis work in forked children, which inherit their parent's connections (I1)."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.support import redis_stores

SCRIPT = """
import asyncio, os, signal, sys
from oncekey import AsyncOnce, Once, Policy

url, engine = sys.argv[1:]
ran = []

def children(run):
    pids = []
    for number in range(3):
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

def body(attempt):
    return os.getpid()

async def async_body(attempt):
    return os.getpid()

if engine == "sync":
    with Once(url, policy=Policy(lease="60s")) as once:
        first = once.run("op", "before", body).value
        def run(number):
            assert once.run("op", "before", body).value == first
            mine = once.run("op", f"child {number}", body).value
            assert mine == os.getpid()
            once.run("op", "shared", body, wait="30s")
        children(run)
        pids = [once.run("op", f"child {number}", body).value for number in range(3)]
        assert len(set(pids) | {first}) == 4
else:
    async def main():
        once = AsyncOnce(url, policy=Policy(lease="60s"))
        first = (await once.run("op", "before", async_body)).value
        def run(number):
            # A new loop: that of the parent is marked as running in the child, too.
            asyncio._set_running_loop(None)
            async def call():
                assert (await once.run("op", "before", async_body)).value == first
                assert (await once.run("op", f"child {number}", async_body)).value == os.getpid()
            asyncio.new_event_loop().run_until_complete(call())
        children(run)
        for number in range(3):
            value = (await once.run("op", f"child {number}", async_body)).value
            assert value not in (first, os.getpid())
        await once.close()
    asyncio.run(main())
"""


@pytest.mark.parametrize("engine", ["sync", "async"])
def test_i1_an_engine_on_redis_works_in_forked_children(engine: str) -> None:
    server = redis_stores.valkey()
    server.execute("FLUSHALL")
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", SCRIPT, server.url(), engine],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
