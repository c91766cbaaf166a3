"""Starts Celery workers as processes of their own, for tests that kill them, and reads what their
tasks have noted."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.servers import processes
from tests.support.servers.processes import Process

_HERE = Path(__file__).parent
_ROOT = _HERE.parent.parent


def start_worker(
    environment: Mapping[str, str],
    *,
    name: str,
    pool: str = "prefork",
    slots: int = 2,
    queues: str = "celery",
) -> Process:
    """Start a worker; it is ready when it says so in its log."""
    directory = processes.scratch() / processes.fresh_name(f"celery-{name}")
    directory.mkdir()
    command = [sys.executable, "-m", "celery", "-A", "tests.queues.celery_app", "worker"]
    options = [
        f"--hostname={name}@test",
        f"--pool={pool}",
        f"--concurrency={slots}",
        f"--queues={queues}",
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
        "--loglevel=INFO",
    ]
    worker = processes.launch(
        f"celery worker {name}",
        [*command, *options],
        processes.User(),
        directory,
        death_signal="SIGKILL",
        env={**environment, "PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT}", "C_FORCE_ROOT": "1"},
    )
    worker.wait_ready(lambda: b" ready." in worker.log.read_bytes())
    return worker


@contextmanager
def loaded(environment: Mapping[str, str], name: str) -> Iterator[Any]:
    """The module with the app, loaded in this process as callers of its tasks have it."""
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in environment.items():
            patch.setenv(variable, value)
        sys.modules.pop(name, None)
        module = importlib.import_module(name)
    yield module
    module.app.close()
    module.once.close()
    module.notes.close()


def effects(tasks: Any, name: str) -> list[str]:
    found: list[str] = tasks.notes.lrange(f"effects:{name}", 0, -1)
    return found


def deliveries(tasks: Any, result: Any) -> int:
    return int(tasks.notes.get(f"deliveries:{result.id}") or 0)


def open_gate(tasks: Any, name: str) -> None:
    tasks.notes.rpush(f"gate:{name}", "open")
