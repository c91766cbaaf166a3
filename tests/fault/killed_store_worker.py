"""A process on the store of a URL that is killed at every store call.

python -m tests.fault.killed_store_worker <url> <sync or async> <lease> <directory> <scenarios>

kill_points.py runs it. For each scenario it forks one child per store call and side, which is
killed before or after that call. A scenario has a folder, named by its number. A child has a key, a
file of effects, and a file with the time before its claim, named by its call and side. It prints
the calls and points as JSON.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.store_drivers import import_driver

from oncekey import AsyncOnce, Once, Policy
from oncekey.core.commands import Command, Reply
from oncekey.engine.store_urls import async_store, blocking_store


class KillSwitch:
    """Kills this process by SIGKILL, before or after one of its store calls."""

    def __init__(self, at: int, side: str, claimed: Path) -> None:
        self.claimed = claimed
        self.at = at
        self.side = side
        self.calls: list[str] = []

    def before(self, name: str) -> None:
        self.calls.append(name)
        if name == "Claim":
            self.claimed.write_text(f"{time.monotonic()}")
        self._kill_at("before")

    def after(self) -> None:
        self._kill_at("after")

    def _kill_at(self, side: str) -> None:
        if len(self.calls) == self.at and self.side == side:
            os.kill(os.getpid(), signal.SIGKILL)


def names_of(commands: Sequence[Command]) -> str:
    return "+".join(type(command).__name__ for command in commands)


def kill_in(store: Any, switch: KillSwitch) -> Any:
    """Have a sync store kill its process at one of its calls."""
    apply, bind = store.apply, store.bind

    def killing_apply(commands: Sequence[Command], /) -> list[Reply]:
        switch.before(names_of(commands))
        replies: list[Reply] = apply(commands)
        switch.after()
        return replies

    def killing_bind(check: bytes, /) -> Any:
        switch.before("bind")
        seen = bind(check)
        switch.after()
        return seen

    store.apply, store.bind = killing_apply, killing_bind
    return store


def kill_in_async(store: Any, switch: KillSwitch) -> Any:
    """Have an async store kill its process at one of its calls."""
    apply, bind = store.apply, store.bind

    async def killing_apply(commands: Sequence[Command], /) -> list[Reply]:
        switch.before(names_of(commands))
        replies: list[Reply] = await apply(commands)
        switch.after()
        return replies

    async def killing_bind(check: bytes, /) -> Any:
        switch.before("bind")
        seen = await bind(check)
        switch.after()
        return seen

    store.apply, store.bind = killing_apply, killing_bind
    return store


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


class Attempts:
    """Attempts on one store: sync or async, with one lease."""

    def __init__(self, url: str, kind: str, lease: str) -> None:
        self.url = url
        self.kind = kind
        self.lease = lease
        import_driver(url)

    def run(self, scenario: dict[str, bool], switch: KillSwitch, key: str, effects: Path) -> None:
        policy = Policy(lease=self.lease, retry_safe=scenario["retry_safe"])
        try:
            if self.kind == "sync":
                store = kill_in(blocking_store(self.url), switch)
                Once(store, policy=policy).run("op", key, body_of(scenario, effects))
            else:
                store = kill_in_async(async_store(self.url), switch)
                once = AsyncOnce(store, policy=policy)
                asyncio.run(once.run("op", key, async_body_of(scenario, effects)))
        except ValueError:
            pass


def in_child(run: Callable[[], object]) -> int:
    """Run it in a forked child and return the exit code, which is negative for a signal."""
    pid = os.fork()
    if pid == 0:
        try:
            run()
        finally:
            os._exit(1)  # it was not killed
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(attempts: Attempts, directory: Path, scenario: dict[str, bool]) -> dict[str, Any]:
    """Count the store calls of one scenario, then kill a child before and after each."""

    def run(at: int, side: str, name: str) -> KillSwitch:
        switch = KillSwitch(at, side, directory / f"{name}.claimed")
        key = f"{attempts.kind} {directory.name} {name}"
        attempts.run(scenario, switch, key, directory / f"{name}.effects")
        return switch

    def count_calls() -> None:
        switch = run(0, "never", "not-killed")
        (directory / "calls").write_text(json.dumps(switch.calls))

    directory.mkdir()
    in_child(count_calls)
    calls = json.loads((directory / "calls").read_text())
    points = [(n, side) for n in range(1, len(calls) + 1) for side in ("before", "after")]
    for number, side in points:
        name = f"{number}-{side}"
        code = in_child(functools.partial(run, number, side, name))
        assert code == -signal.SIGKILL, f"point {name}: {code}"
    return {"calls": calls, "points": points}


if __name__ == "__main__":
    attempts, root = Attempts(*sys.argv[1:4]), Path(sys.argv[4])
    scenarios = json.loads(sys.argv[5])
    results = {number: kill(attempts, root / number, one) for number, one in scenarios.items()}
    sys.stdout.write(json.dumps(results))
