"""Processes that test_move_kills.py has killed at each of their calls of two stores.

python killed_move_worker.py run <sqlite file> <postgres url> <schema> <effects file>
python killed_move_worker.py copy <sqlite file> <postgres url> <schema>

It prints a line of JSON: the calls of a run that is not killed, and the points at which a child was
killed. Each point has a key of its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from oncekey import Once, Policy
from oncekey.core.search import NEWEST, Cursor
from oncekey.stores.move import DualStore
from oncekey.stores.move.record_copy import copy_page
from oncekey.stores.postgres import PostgresStore
from oncekey.stores.sqlite import SQLiteStore

LEASE = "1h"
PAGE = 2


class Killer:
    """Counts the calls of both stores, and kills its own process at one of them."""

    def __init__(self, kill_at: int, side: str) -> None:
        self.kill_at = kill_at
        self.side = side
        self.calls: list[str] = []

    def call(self, name: str, method: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self.calls.append(name)
        is_the_point = len(self.calls) == self.kill_at
        if is_the_point and self.side == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(*args)
        if is_the_point:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


class DeadlyStore:
    """A store whose calls go through a killer."""

    def __init__(self, inner: Any, name: str, killer: Killer) -> None:
        self._inner = inner
        self._name = name
        self._killer = killer

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name not in ("apply", "bind", "search"):
            return method
        return lambda *args: self._killer.call(self._text(name, args), method, args)

    def _text(self, name: str, args: tuple[Any, ...]) -> str:
        if name != "apply":
            return f"{self._name} {name}"
        return f"{self._name} {'+'.join(type(command).__name__ for command in args[0])}"


def open_both(killer: Killer, file: str, url: str, schema: str) -> DualStore:
    old = DeadlyStore(SQLiteStore(file), "old", killer)
    new = DeadlyStore(PostgresStore(url, schema=schema), "new", killer)
    return DualStore(old, new)


def run_once(killer: Killer, key: str, where: list[str], effects: Path) -> None:
    """Run the operation under a key; its effect is a line in a file."""

    def body(attempt: Any) -> str:
        with effects.open("a") as file:
            file.write(f"{key}\n")
            file.flush()
            os.fsync(file.fileno())
        return f"paid {key}"

    once = Once(open_both(killer, *where), policy=Policy(lease=LEASE))
    once.run("op", key, body)


def copy_once(killer: Killer, where: list[str]) -> None:
    cursor: Cursor | None = NEWEST
    with closing(open_both(killer, *where)) as store:
        while cursor is not None:
            cursor = copy_page(store, cursor, PAGE).next


def main() -> None:
    mode, *rest = sys.argv[1:]
    where = rest[:3]

    def attempt(kill_at: int, side: str) -> list[str]:
        killer = Killer(kill_at, side)
        if mode == "run":
            run_once(killer, f"{kill_at}-{side}", where, Path(rest[3]))
        else:
            copy_once(killer, where)
        return killer.calls

    def forked(kill_at: int, side: str) -> int:
        pid = os.fork()
        if pid == 0:
            calls = attempt(kill_at, side)
            if not kill_at:
                Path(rest[0]).with_suffix(".calls").write_text(json.dumps(calls))
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    points = []
    if mode == "run":  # in children only: connections do not survive a fork
        assert forked(0, "never") == 0
        count = len(json.loads(Path(rest[0]).with_suffix(".calls").read_text()))
        points = [(n, side) for n in range(1, count + 1) for side in ("before", "after")]
        for point in points:
            assert forked(*point) == -signal.SIGKILL
    else:
        number = 1
        while forked(number, "after") == -signal.SIGKILL:
            points.append((number, "after"))
            number += 1
    sys.stdout.write(json.dumps({"points": points}) + "\n")


if __name__ == "__main__":
    main()
