"""Starts, kills, stops and continues consumer processes, and reads what effects they had."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.queues.effect_log import Effects
from tests.queues.kafka_topics import Topic
from tests.queues.kafka_worker import Worker
from tests.support.servers import processes

ROOT = Path(__file__).parents[2]
# A member that was killed is missed soon.
SOON_MISSED: dict[str, Any] = {"session.timeout.ms": 2_000}


class Workers:
    """The process that forks consumers, and their pids."""

    def __init__(self, popen: subprocess.Popen[str], directory: Path, store: str) -> None:
        self._popen = popen
        self.directory = directory
        self.store = store
        self.pids: list[int] = []

    def worker(self, topic: Topic, **given: Any) -> Worker:
        """Return what a consumer of this topic needs."""
        folder = self.directory / topic.name
        folder.mkdir(exist_ok=True)
        config = topic.config
        config |= {name: value for name, value in SOON_MISSED.items() if name in config}
        return Worker(topic.name, config, self.store, str(folder / "effects"), **given)

    def start(self, topic: Topic, **given: Any) -> int:
        """Start a consumer; return its pid."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.write(self.worker(topic, **given).line())
        self._popen.stdin.flush()
        pid = int(self._popen.stdout.readline())
        self.pids.append(pid)
        return pid

    def effects(self, topic: Topic) -> Effects:
        return Effects.of(self.directory / topic.name / "effects")

    def failures(self, topic: Topic) -> int:
        """How many tries have failed."""
        path = self.directory / topic.name / "effects.failed"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def check_effects(self, topic: Topic, orders: set[str], *heirs: int) -> None:
        """Check that the effects are safe, and that these consumers, whose lease is long, have had
        none of them twice."""
        effects = self.effects(topic)
        effects.check(orders)
        for pid in heirs:
            counts = effects.counts(pid)
            assert max(counts.values(), default=0) <= 1, counts

    def pause(self, pid: int) -> None:
        processes.suspend(pid)

    def resume(self, pid: int) -> None:
        os.kill(pid, signal.SIGCONT)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.wait_gone(pid)

    def wait_gone(self, pid: int) -> None:
        processes.wait_until(lambda: not processes.is_running(pid), f"{pid} has ended", 60)

    def stop(self, pid: int) -> None:
        """End a consumer in order."""
        os.kill(pid, signal.SIGTERM)
        self.wait_gone(pid)

    def end_all(self) -> None:
        for pid in self.pids:
            if processes.is_running(pid):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def kafka_workers(directory: Path, store: str) -> Iterator[Workers]:
    popen = subprocess.Popen(
        [sys.executable, "-m", "tests.queues.kafka_worker"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    workers = Workers(popen, directory, store)
    try:
        yield workers
    finally:
        workers.end_all()
        assert popen.stdin is not None
        assert popen.stdout is not None
        popen.stdin.close()
        popen.wait(90)
        popen.stdout.close()
