"""Starts Celery workers as processes of their own, for tests that kill them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path

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


def stop(worker: Process) -> None:
    if worker.is_running():
        worker.end(signal.SIGTERM, 10)
