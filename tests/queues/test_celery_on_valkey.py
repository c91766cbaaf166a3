"""Celery on Valkey, with a visibility timeout that is shorter than the tasks: real workers."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chord
from tests.queues import moved_clock
from tests.queues.celery_workers import (
    deliveries,
    effects,
    loaded,
    open_gate,
    start_worker,
)
from tests.queues.moved_clock import MovedClock
from tests.support.servers.processes import Process, wait_until
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.requirements import require
from tests.support.servers.server_lifetime import started

from oncekey import Mismatch, OperationFailed, OutcomeUnknown

WAIT_S = 90.0


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    server = require(lambda: started(RedisServer()))
    yield server
    server.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("celery")


@pytest.fixture(scope="module")
def clock(folder: Path) -> MovedClock:
    """The clock of the store."""
    return MovedClock(folder / "clock")


@pytest.fixture(scope="module")
def environment(server: RedisServer, folder: Path, clock: MovedClock) -> dict[str, str]:
    url = f"redis://127.0.0.1:{server.port}"
    return {
        moved_clock.VARIABLE: str(folder / "clock"),
        "ONCEKEY_TEST_BROKER": f"{url}/0",
        "ONCEKEY_TEST_BACKEND": f"{url}/1",
        "ONCEKEY_TEST_NOTES": f"{url}/2",
        "ONCEKEY_TEST_STORE": f"sqlite:///{folder}/keys.db",
    }


@pytest.fixture(scope="module")
def tasks(environment: dict[str, str]) -> Iterator[Any]:
    with loaded(environment, "tests.queues.celery_app") as module:
        yield module


@pytest.fixture(scope="module")
def workers(environment: dict[str, str]) -> Iterator[list[Process]]:
    """One worker with processes, one with threads."""
    running = [
        start_worker(environment, name="forks", slots=3, queues="celery,forks"),
        start_worker(environment, name="threads", pool="threads", slots=12),
    ]
    yield running
    for worker in running:
        worker.kill()


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex[:12]


def nothing_is_left(tasks: Any) -> bool:
    """True if the broker holds no message any more, waiting or unacknowledged."""
    with tasks.app.connection_for_read() as connection:
        broker = connection.default_channel.client
        kept = [broker.llen(queue) for queue in ("celery", "forks", "doomed")]
        return not any(kept) and not broker.hlen("unacked")


def test_task_longer_than_the_visibility_timeout_runs_once(
    tasks: Any, workers: list[Process], name: str
) -> None:
    """I1. The task is delivered several times while it runs; kombu#337 runs it each time."""
    result = tasks.ship.delay(name)
    wait_until(lambda: deliveries(tasks, result) >= 4, "the task was delivered again", WAIT_S)
    assert not result.ready()  # the duplicates have not touched the running task's result
    open_gate(tasks, name)
    assert result.get(timeout=WAIT_S) == {"shipped": name}
    assert len(effects(tasks, name)) == 1
    wait_until(lambda: nothing_is_left(tasks), "the broker is empty", WAIT_S)


def test_unguarded_task_runs_several_times(tasks: Any, workers: list[Process], name: str) -> None:
    """What the other tests are about: without a guard, this set-up runs a task again and again."""
    tasks.unguarded.delay(name)
    wait_until(lambda: len(effects(tasks, name)) >= 2, "the task runs again", WAIT_S)
    open_gate(tasks, name)
    wait_until(lambda: nothing_is_left(tasks), "the broker is empty", WAIT_S)


def test_chord_of_ten_counts_every_part_once(tasks: Any, workers: list[Process], name: str) -> None:
    names = [f"{name}-{part}" for part in range(10)]
    header = [tasks.ship_again.s(each) for each in names]
    result = chord(header)(tasks.collect.s(name))
    parts = result.parent.results
    wait_until(
        lambda: sum(deliveries(tasks, part) for part in parts) >= 15, "parts came again", WAIT_S
    )
    for each in names:
        open_gate(tasks, each)
    assert result.get(timeout=WAIT_S) == [{"run": 1}] * 10
    wait_until(lambda: nothing_is_left(tasks), "the broker is empty", WAIT_S)
    assert [len(effects(tasks, each)) for each in names] == [1] * 10
    assert effects(tasks, name) == ["collected"]


def test_callback_of_a_redelivered_task_is_sent_once(
    tasks: Any, workers: list[Process], name: str
) -> None:
    result = tasks.ship.apply_async((name,), link=tasks.note.s(f"{name}-linked"))
    wait_until(lambda: deliveries(tasks, result) >= 3, "the task was delivered again", WAIT_S)
    open_gate(tasks, name)
    assert result.get(timeout=WAIT_S) == {"shipped": name}
    wait_until(lambda: nothing_is_left(tasks), "the broker is empty", WAIT_S)
    assert effects(tasks, f"{name}-linked") == ["called back"]


def test_eta_past_the_visibility_timeout_runs_once(
    tasks: Any, workers: list[Process], name: str
) -> None:
    """celery#4400: every worker that holds a copy runs it at its ETA."""
    result = tasks.quick.apply_async((name,), countdown=3 * tasks.VISIBILITY_S)
    assert result.get(timeout=WAIT_S) == name
    wait_until(lambda: nothing_is_left(tasks), "the broker is empty", WAIT_S)
    assert len(effects(tasks, name)) == 1


def test_tasks_sent_twice_run_once_and_all_have_the_result(
    tasks: Any, workers: list[Process], name: str
) -> None:
    results = [tasks.quick.delay(name) for _ in range(5)]
    assert [result.get(timeout=WAIT_S) for result in results] == [name] * 5
    assert len(effects(tasks, name)) == 1


@pytest.mark.parametrize("task", ["by_hand", "by_itself"])
def test_retries_of_the_task_itself_free_the_key(
    tasks: Any, workers: list[Process], name: str, task: str
) -> None:
    result = getattr(tasks, task).delay(name, 3)
    assert result.get(timeout=WAIT_S) == 3
    assert len(effects(tasks, name)) == 3
    assert getattr(tasks, task).delay(name, 3).get(timeout=WAIT_S) == 3
    assert len(effects(tasks, name)) == 3


def test_failure_is_stored_and_not_run_again(tasks: Any, workers: list[Process], name: str) -> None:
    with pytest.raises(ValueError, match="no such address"):
        tasks.fails.delay(name).get(timeout=WAIT_S)
    with pytest.raises(OperationFailed, match="ValueError: no such address"):
        tasks.fails.delay(name).get(timeout=WAIT_S)
    assert len(effects(tasks, name)) == 1


def test_other_arguments_under_the_same_key_fail(
    tasks: Any, workers: list[Process], name: str
) -> None:
    assert tasks.by_hand.delay(name, 1).get(timeout=WAIT_S) == 1
    with pytest.raises(Mismatch):
        tasks.by_hand.delay(name, 2).get(timeout=WAIT_S)


def test_killed_child_of_a_retry_safe_task_runs_again_after_its_lease(
    tasks: Any, workers: list[Process], clock: MovedClock, name: str
) -> None:
    """I10, reject_on_worker_lost: the message comes back at once, the key after its lease."""
    result = tasks.ship_again.apply_async((name,), queue="forks")
    wait_until(lambda: len(effects(tasks, name)) == 1, "the task runs", WAIT_S)
    os.kill(int(effects(tasks, name)[0]), signal.SIGKILL)
    before = deliveries(tasks, result)
    wait_until(lambda: deliveries(tasks, result) > before + 1, "it came twice, in vain", WAIT_S)
    assert len(effects(tasks, name)) == 1
    clock.advance(tasks.LEASE_S)
    wait_until(lambda: len(effects(tasks, name)) == 2, "the task runs again", WAIT_S)
    open_gate(tasks, name)
    assert result.get(timeout=WAIT_S) == {"run": 2}
    wait_until(lambda: nothing_is_left(tasks), "the broker is empty", WAIT_S)


def test_killed_child_of_another_task_is_unknown_and_visible(
    tasks: Any, workers: list[Process], clock: MovedClock, name: str
) -> None:
    """I1, I10: it may have shipped, so nobody ships again."""
    result = tasks.ship.apply_async((name,), queue="forks")
    wait_until(lambda: len(effects(tasks, name)) == 1, "the task runs", WAIT_S)
    os.kill(int(effects(tasks, name)[0]), signal.SIGKILL)
    clock.advance(tasks.LEASE_S)
    with pytest.raises(OutcomeUnknown):
        result.get(timeout=WAIT_S)
    assert len(effects(tasks, name)) == 1
    status = tasks.once.get(tasks.ship.name, name)
    assert status is not None
    assert status.state == "unknown"


def test_killed_worker_loses_no_task(
    tasks: Any, environment: dict[str, str], clock: MovedClock, name: str
) -> None:
    """The whole worker is gone, with what it had prefetched; another one finishes everything."""
    doomed = start_worker(environment, name="doomed", slots=1, queues="doomed")
    results = [
        tasks.ship_again.apply_async((f"{name}-{each}",), queue="doomed") for each in range(3)
    ]
    wait_until(lambda: bool(effects(tasks, f"{name}-0")), "the first task runs", WAIT_S)
    doomed.kill()
    clock.advance(tasks.LEASE_S)
    for each in range(3):
        open_gate(tasks, f"{name}-{each}")
    heir = start_worker(environment, name="heir", pool="solo", queues="doomed")
    try:
        runs = [each.get(timeout=WAIT_S)["run"] for each in results]
        assert runs == [2, 1, 1]
        wait_until(lambda: nothing_is_left(tasks), "the broker is empty", WAIT_S)
    finally:
        heir.kill()
