"""A process on a PostgreSQL store that is killed at every store call.

python killed_postgres_worker.py <url> <driver> <directory> <scenarios>

test_postgres_worker_kills.py runs it. For each scenario it forks one child per store call and
side, which is killed before or after that call. A scenario has a folder, named by its number. A
child has a key and a file of effects, named by its call and side. It prints the calls and points as
JSON.
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


class KillSwitch:
    """Kills this process by SIGKILL, before or after one of its store calls."""

    def __init__(self, at: int, side: str) -> None:
        self.at = at
        self.side = side
        self.calls: list[str] = []

    def before(self, name: str) -> None:
        self.calls.append(name)
        self._kill_at("before")

    def after(self) -> None:
        self._kill_at("after")

    def _kill_at(self, side: str) -> None:
        if len(self.calls) == self.at and self.side == side:
            os.kill(os.getpid(), signal.SIGKILL)


def names_of(commands: Sequence[Command]) -> str:
    return "+".join(type(command).__name__ for command in commands)


class KillingStore(PostgresStore):
    """A sync store that kills its process at one of its calls."""

    switch: KillSwitch

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        self.switch.before(names_of(commands))
        replies = super().apply(commands)
        self.switch.after()
        return replies

    def bind(self, check: bytes, /) -> None:
        self.switch.before("bind")
        super().bind(check)
        self.switch.after()


class AsyncKillingStore(AsyncPostgresStore):
    """An async store that kills its process at one of its calls."""

    switch: KillSwitch

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        self.switch.before(names_of(commands))
        replies = await super().apply(commands)
        self.switch.after()
        return replies

    async def bind(self, check: bytes, /) -> None:
        self.switch.before("bind")
        await super().bind(check)
        self.switch.after()


def effect(path: Path, line: str) -> str:
    """An effect on the outside world: a line that is on disk when this returns."""
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
    async def async_effect(line: str) -> str:
        return effect(effects, line)

    async def body(attempt: Any) -> str:
        if scenario["steps"]:
            await attempt.step("reserve", lambda key: async_effect(f"reserve {key}"))
            await attempt.renew()
            await attempt.step("pay", lambda key: async_effect(f"pay {key}"))
        else:
            await async_effect(f"pay {attempt.child_key('pay')}")
        if scenario["raises"]:
            raise ValueError("after the effect")
        return "paid"

    return body


def attempt(
    url: str, driver: str, scenario: dict[str, bool], switch: KillSwitch, key: str, effects: Path
) -> None:
    policy = Policy(lease=LEASE, retry_safe=scenario["retry_safe"])
    address, given = split_url(url)
    options = {"schema": given.schema}
    try:
        if driver == "psycopg":
            store = KillingStore(address, **options)
            store.switch = switch
            Once(store, policy=policy).run("op", key, body_of(scenario, effects))
            return
        async_store = AsyncKillingStore(address, **options)
        async_store.switch = switch
        once = AsyncOnce(async_store, policy=policy)
        asyncio.run(once.run("op", key, async_body_of(scenario, effects)))
    except ValueError:
        pass


def in_child(run: Callable[[], None]) -> int:
    """Run it in a forked child and return the exit code, which is negative for a signal."""
    pid = os.fork()
    if pid == 0:
        try:
            run()
        finally:
            os._exit(1)  # it was not killed
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(url: str, driver: str, directory: Path, scenario: dict[str, bool]) -> dict[str, Any]:
    """Count the store calls of one scenario, then kill a child before and after each."""

    def run(switch: KillSwitch, name: str) -> None:
        key = f"{driver} {directory.name} {name}"
        attempt(url, driver, scenario, switch, key, directory / f"{name}.effects")

    def count_calls() -> None:
        switch = KillSwitch(0, "never")
        run(switch, "not-killed")
        (directory / "calls").write_text(json.dumps(switch.calls))

    directory.mkdir()
    in_child(count_calls)
    calls = json.loads((directory / "calls").read_text())
    points = [(n, side) for n in range(1, len(calls) + 1) for side in ("before", "after")]
    for number, side in points:
        switch, name = KillSwitch(number, side), f"{number}-{side}"
        code = in_child(functools.partial(run, switch, name))
        assert code == -signal.SIGKILL, f"point {name}: {code}"
    return {"calls": calls, "points": points}


if __name__ == "__main__":
    url, driver, root = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    scenarios = enumerate(json.loads(sys.argv[4]))
    results = [kill(url, driver, root / str(number), one) for number, one in scenarios]
    sys.stdout.write(json.dumps(results))
