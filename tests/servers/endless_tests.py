"""Two tests that never end; `test_run_endings.py` runs pytest on this file and ends the run."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile

import pytest
from tests.support.servers import Postgres, RedisServer, processes, require
from tests.support.servers.redis_server import valkey_program

# The pipe by which a test tells what it has started, so that the run is ended just then.
PIPE = "ONCEKEY_ENDLESS_PIPE"


def _tell(pids: list[int], ports: list[int]) -> None:
    folders = [str(processes.scratch()), str(processes.memory_scratch())]
    told = {"pids": [os.getpid(), *pids], "ports": ports, "folders": folders}
    with open(os.environ[PIPE], "w", encoding="utf-8") as pipe:
        pipe.write(json.dumps(told) + "\n")


def test_servers_a_fork_and_a_child_are_running() -> None:
    with (
        require(lambda: Postgres(fast=True)) as postgres,
        RedisServer(clock=True) as redis,
        tempfile.TemporaryDirectory(),
    ):
        fork = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=True)
        fork.start()
        # It does not notice that its parent is gone, and an interrupt does not end it.
        deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); signal.pause()"
        child = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
        assert fork.pid is not None
        _tell(
            [*postgres.pids(), redis.pid, fork.pid, child.pid],
            [postgres.port, redis.port],
        )
        signal.pause()


@pytest.mark.timeout(0)
def test_a_server_is_starting() -> None:
    class Starting(RedisServer):
        told = False

        def is_ready(self) -> bool:
            if not self.told:
                _tell([self.pid], [])
                self.told = True
            return False

    require(valkey_program)
    server = Starting()
    server.launch()
    server.wait_ready(seconds=3600)
