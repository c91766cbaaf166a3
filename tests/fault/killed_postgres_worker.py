"""A process to be killed on a PostgreSQL store; run by test_postgres_kills.py.

python killed_postgres_worker.py <url> <driver> <directory> <scenarios>

Kills a child of itself before and after every store call of one attempt, for each scenario in
turn, which has a folder of its own by number. Each child has a key of its own, named like its
point; what it does to the world is in a file of that name.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from oncekey import AsyncOnce, Once, Policy
from oncekey.core.commands import Command, Reply
from oncekey.stores.postgres import AsyncPostgresStore, PostgresStore
from oncekey.stores.postgres.options import split_url

LEASE = "1h"


class Trap:
    """Kills this process, with no chance to clean up, before or after one of its calls."""

    def __init__(self, at: int, side: str) -> None:
        self.at = at
        self.side = side
        self.calls: list[str] = []

    def before(self, name: str) -> None:
        self.calls.append(name)
        self._spring("before")

    def after(self) -> None:
        self._spring("after")

    def _spring(self, side: str) -> None:
        if len(self.calls) == self.at and self.side == side:
            os.kill(os.getpid(), signal.SIGKILL)


def named(commands: Sequence[Command]) -> str:
    return "+".join(type(command).__name__ for command in commands)


class DeadlyStore(PostgresStore):
    trap: Trap

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        self.trap.before(named(commands))
        replies = super().apply(commands)
        self.trap.after()
        return replies

    def bind(self, check: bytes, /) -> None:
        self.trap.before("bind")
        super().bind(check)
        self.trap.after()


class AsyncDeadlyStore(AsyncPostgresStore):
    trap: Trap

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        self.trap.before(named(commands))
        replies = await super().apply(commands)
        self.trap.after()
        return replies

    async def bind(self, check: bytes, /) -> None:
        self.trap.before("bind")
        await super().bind(check)
        self.trap.after()


def effect(path: Path, line: str) -> str:
    """Something done to the outside world: a line that is on disk when this returns."""
    with path.open("a") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())
    return line


def body_of(scenario: dict[str, bool], effects: Path) -> Callable[[Any], Any]:
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


def async_body_of(scenario: dict[str, bool], effects: Path) -> Callable[[Any], Any]:
    async def done(line: str) -> str:
        return effect(effects, line)

    async def body(attempt: Any) -> str:
        if scenario["steps"]:
            await attempt.step("reserve", lambda key: done(f"reserve {key}"))
            await attempt.renew()
            await attempt.step("pay", lambda key: done(f"pay {key}"))
        else:
            await done(f"pay {attempt.child_key('pay')}")
        if scenario["raises"]:
            raise ValueError("after the effect")
        return "paid"

    return body


def attempt(
    url: str, driver: str, scenario: dict[str, bool], trap: Trap, key: str, effects: Path
) -> None:
    policy = Policy(lease=LEASE, retry_safe=scenario["retry_safe"])
    address, given = split_url(url)
    options = {"schema": given.schema}
    try:
        if driver == "psycopg":
            store = DeadlyStore(address, **options)
            store.trap = trap
            Once(store, policy=policy).run("op", key, body_of(scenario, effects))
            return
        async_store = AsyncDeadlyStore(address, **options)
        async_store.trap = trap
        once = AsyncOnce(async_store, policy=policy)
        asyncio.run(once.run("op", key, async_body_of(scenario, effects)))
    except ValueError:
        pass


def in_child(run: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            run()
        finally:
            os._exit(1)  # it should not have lived
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(url: str, driver: str, directory: Path, scenario: dict[str, bool]) -> dict[str, Any]:
    def run(trap: Trap, name: str) -> None:
        key = f"{driver} {directory.name} {name}"
        attempt(url, driver, scenario, trap, key, directory / f"{name}.effects")

    def dry() -> None:
        trap = Trap(0, "never")
        run(trap, "dry")
        (directory / "calls").write_text(json.dumps(trap.calls))

    directory.mkdir()
    in_child(dry)
    calls = json.loads((directory / "calls").read_text())
    points = [(n, side) for n in range(1, len(calls) + 1) for side in ("before", "after")]
    for number, side in points:
        trap, name = Trap(number, side), f"{number}-{side}"
        code = in_child(functools.partial(run, trap, name))
        assert code == -signal.SIGKILL, f"point {name}: {code}"
    return {"calls": calls, "points": points}


if __name__ == "__main__":
    url, driver, where = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    told = [kill(url, driver, where / str(n), one) for n, one in enumerate(json.loads(sys.argv[4]))]
    sys.stdout.write(json.dumps(told))
