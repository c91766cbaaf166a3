"""A process that test_sqlite_worker_kills.py kills, stops or lets race; it prints lines of JSON.

python killed_sqlite_worker.py kill <directory> <scenario>    forks a child per store call and
                                                              side, each killed at its call
python killed_sqlite_worker.py stop <directory> <retry_safe>  waits in its body for a line on stdin
python killed_sqlite_worker.py crowd <directory>              runs eight threads on one key
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from oncekey import Once, OncekeyError, Policy
from oncekey.core.commands import Command, Reply, Seen
from oncekey.stores.sqlite import SQLiteStore

LEASE = "1h"
THREADS = 8


class DeadlyStore(SQLiteStore):
    """A store that kills its own process by SIGKILL, before or after one of its calls."""

    def __init__(self, path: Path, kill_at: int, side: str) -> None:
        super().__init__(path)
        self.kill_at = kill_at
        self.side = side
        self.calls: list[str] = []

    def _call(self, name: str, call: Callable[[], Any]) -> Any:
        self.calls.append(name)
        is_the_point = len(self.calls) == self.kill_at
        if is_the_point and self.side == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = call()
        if is_the_point:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        name = "+".join(type(command).__name__ for command in commands)
        replies: list[Reply] = self._call(name, lambda: super(DeadlyStore, self).apply(commands))
        return replies

    def bind(self, check: bytes, /) -> Seen:
        mark: Seen = self._call("bind", lambda: super(DeadlyStore, self).bind(check))
        return mark


def effect(path: Path, key: str) -> str:
    """An effect on the outside world: a line that is on disk when this returns."""
    with path.open("a") as file:
        file.write(key + "\n")
        file.flush()
        os.fsync(file.fileno())
    return key


def body_of(scenario: dict[str, bool], effects: Path) -> Callable[[Any], Any]:
    """Return the operation's body."""

    def body(attempt: Any) -> str:
        if scenario["steps"]:
            attempt.step("reserve", lambda key: effect(effects, f"reserve {key}"))
            attempt.renew()
            attempt.step("pay", lambda key: effect(effects, f"pay {key}"))
        else:
            effect(effects, f"pay {attempt.child_key('pay')}")
        if scenario["raises"]:
            raise ValueError("after the effect")
        return "paid"

    return body


def attempt(directory: Path, scenario: dict[str, bool], kill_at: int, side: str) -> list[str]:
    """Run the operation on a new file, killed at one call, and return the store's calls."""
    name = f"{kill_at}-{side}"
    store = DeadlyStore(directory / f"{name}.db", kill_at, side)
    once = Once(store, policy=Policy(lease=LEASE, retry_safe=scenario["retry_safe"]))
    try:
        once.run("op", "k", body_of(scenario, directory / f"{name}.effects"))
    except ValueError:
        pass
    return store.calls


def kill(directory: Path, scenario: dict[str, bool]) -> None:
    """Count the store calls of a run, then fork a child per call and side that is killed there."""
    calls = attempt(directory, scenario, 0, "never")
    points = [(n, side) for n in range(1, len(calls) + 1) for side in ("before", "after")]
    for number, side in points:
        pid = os.fork()
        if pid == 0:
            attempt(directory, scenario, number, side)
            os._exit(1)  # it was not killed
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code == -signal.SIGKILL, f"point {number} {side}: {code}"
    send({"calls": calls, "points": points})


def stop(directory: Path, retry_safe: bool) -> None:
    """Wait inside the body for a line on stdin, then print the outcome."""
    once = Once(SQLiteStore(directory / "keys.db"), policy=Policy(lease=LEASE))

    def body(attempt: Any) -> str:
        send({"inside": attempt.fence})
        sys.stdin.readline()
        return "zombie"

    try:
        result = once.run("op", "k", body, retry_safe=retry_safe)
        send({"value": result.value, "replayed": result.replayed})
    except OncekeyError as error:
        send({"error": type(error).__name__})


def crowd(directory: Path) -> None:
    """Run one key in eight threads at the same time, and print their values."""
    once = Once(SQLiteStore(directory / "keys.db"), policy=Policy(lease=LEASE))
    barrier = threading.Barrier(THREADS + 1)
    values: list[str] = []

    def run_once() -> None:
        barrier.wait()
        result = once.run(
            "op", "k", lambda attempt: effect(directory / "effects", f"{attempt.fence}"), wait="60s"
        )
        values.append(result.value)

    threads = [threading.Thread(target=run_once) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    send({"ready": True})
    sys.stdin.readline()
    barrier.wait()
    for thread in threads:
        thread.join()
    send({"values": values})


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    mode, directory = sys.argv[1], Path(sys.argv[2])
    if mode == "kill":
        kill(directory, json.loads(sys.argv[3]))
    elif mode == "stop":
        stop(directory, json.loads(sys.argv[3]))
    else:
        crowd(directory)
