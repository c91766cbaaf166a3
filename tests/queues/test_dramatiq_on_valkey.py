"""Dramatiq on Valkey: worker processes are killed and paused."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.queues import moved_clock
from tests.queues.dramatiq_workers import loaded_actors, start_dramatiq
from tests.queues.moved_clock import MovedClock
from tests.support.servers import processes
from tests.support.servers.processes import Process, wait_until
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.requirements import require
from tests.support.servers.server_lifetime import started

WAIT_S = 90.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dramatiq")


@pytest.fixture(scope="module")
def clock(folder: Path) -> MovedClock:
    """The clock of the store."""
    return MovedClock(folder / "clock")


@pytest.fixture(scope="module")
def environment(folder: Path, clock: MovedClock) -> Iterator[dict[str, str]]:
    server = require(lambda: started(RedisServer()))
    url = f"redis://127.0.0.1:{server.port}"
    yield {
        moved_clock.VARIABLE: str(folder / "clock"),
        "ONCEKEY_TEST_BROKER": f"{url}/0",
        "ONCEKEY_TEST_NOTES": f"{url}/1",
        "ONCEKEY_TEST_STORE": f"sqlite:///{folder}/keys.db",
    }
    server.close()


@pytest.fixture(scope="module")
def actors(environment: dict[str, str]) -> Iterator[Any]:
    with loaded_actors(environment) as module:
        yield module


@pytest.fixture
def workers(environment: dict[str, str]) -> Iterator[list[Process]]:
    """Two workers of one process with two threads."""
    running = [start_dramatiq(environment) for _ in range(2)]
    yield running
    for worker in running:
        worker.kill()


def effects(actors: Any, name: str) -> list[int]:
    return [int(pid) for pid in actors.notes.lrange(f"effects:{name}", 0, -1)]


def waiting(actors: Any) -> int:
    """How many messages the broker holds, in its queue, delayed, or handed to a worker."""
    client = actors.broker.client
    keys = [key.decode() for key in client.keys("dq:*.msgs")]
    return sum(client.hlen(key) for key in keys if not key.endswith(".XQ.msgs"))


def dead_letters(actors: Any) -> int:
    return int(actors.broker.client.hlen("dq:tasks.XQ.msgs"))


def test_killed_workers_lose_no_message_and_no_effect_is_doubled(
    actors: Any, workers: list[Process], environment: dict[str, str], clock: MovedClock
) -> None:
    """I1, I10. One actor may run again, the other is unknown and becomes a dead letter."""
    again, once_only = uuid.uuid4().hex, uuid.uuid4().hex
    actors.ship_again.send(again)
    actors.ship.send(once_only)
    wait_until(
        lambda: bool(effects(actors, again) and effects(actors, once_only)), "both run", WAIT_S
    )
    for worker in workers:
        worker.kill()
    clock.advance(actors.LEASE_S)
    workers[:] = [start_dramatiq(environment)]
    actors.notes.rpush(f"gate:{again}", "open")
    wait_until(lambda: not waiting(actors), "every message is done", WAIT_S)
    assert (len(effects(actors, again)), len(effects(actors, once_only))) == (2, 1)
    assert actors.once.get("ship_again", again).state == "succeeded"
    assert actors.once.get("ship", once_only).state == "unknown"
    assert dead_letters(actors) == 1


def test_message_of_a_paused_worker_does_not_run_elsewhere(
    actors: Any, workers: list[Process]
) -> None:
    """Its broker's heartbeats have stopped, so the message comes to the other worker; its lease has
    not ended."""
    name = uuid.uuid4().hex
    dead = dead_letters(actors)
    actors.ship.send(name)
    wait_until(lambda: bool(effects(actors, name)), "the actor runs", WAIT_S)
    (owner,) = effects(actors, name)
    processes.suspend(owner)
    try:
        wait_until(lambda: put_off(actors, name), "the other worker has put it off", WAIT_S)
    finally:
        os.kill(owner, signal.SIGCONT)
    actors.notes.rpush(f"gate:{name}", "open")
    wait_until(lambda: not waiting(actors), "every message is done", WAIT_S)
    assert effects(actors, name) == [owner]
    assert actors.once.get("ship", name).state == "succeeded"
    assert dead_letters(actors) == dead


def put_off(actors: Any, name: str) -> bool:
    client = actors.broker.client
    held = [client.hvals(key) for key in client.keys("dq:*.msgs")]
    found = [message for messages in held for message in messages]
    return any(name.encode() in each and b"oncekey_put_offs" in each for each in found)
