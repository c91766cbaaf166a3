"""A process that charges at a provider without idempotency keys, and is killed at every point.

python -m tests.fault.killed_probe_worker <directory> <port> <plan>   prints its reports as JSON
python -m tests.fault.killed_probe_worker <directory> <port> late     charges; the test kills it

With a plan (see `Plan`) this process forks one child per run and opens nothing itself. The store of
a run that follows a killed one has a clock that is ahead by more than the lease, so that no run
waits for a lease to end.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oncekey import AsyncOnce, Once, Policy, StepResult, child_key
from oncekey.core.commands import Command, Reply
from oncekey.stores.sqlite import AsyncSQLiteStore, SQLiteStore
from oncekey.stores.store_rules import wall_clock

LEASE = "1h"
AHEAD_US = 3_601_000_000
PROBE_GRACE = "1s"
PATIENCE_SECONDS = 30


@dataclass
class Plan:
    """What is done and where it is killed.

    engine   "sync" or "async"
    steps    the charges, one step each
    probe    whether the provider is asked before a charge is tried again
    twice    whether the run after a killed one is killed too, at every point of its own
    sides    on which sides of a call: right before it, right after it
    """

    engine: str = "sync"
    steps: list[str] = field(default_factory=lambda: ["charge"])
    probe: bool = True
    twice: bool = False
    sides: list[str] = field(default_factory=lambda: ["before", "after"])


class Points:
    """Counts what a run does to the outside, and kills the run at one of these points."""

    def __init__(self, kill_at: int, side: str, log: Path) -> None:
        self._kill_at = kill_at
        self._side = side
        self._count = 0
        self._log = log

    @contextmanager
    def at(self, name: str) -> Iterator[None]:
        self._count += 1
        here = self._count == self._kill_at
        with self._log.open("a") as file:  # on the way to the disk even if we die
            file.write(name + "\n")
        if here and self._side == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        yield
        if here:
            os.kill(os.getpid(), signal.SIGKILL)


# --- stores ---------------------------------------------------------------------------------------


def _names(commands: Sequence[Command]) -> str:
    return "+".join(type(command).__name__ for command in commands)


class DeadlyStore(SQLiteStore):
    def __init__(self, path: Path, points: Points, ahead: int) -> None:
        super().__init__(path, clock=lambda: wall_clock() + ahead)
        self._points = points

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        with self._points.at(_names(commands)):
            return super().apply(commands)

    def bind(self, check: bytes, /) -> None:
        with self._points.at("bind"):
            super().bind(check)


class AsyncDeadlyStore(AsyncSQLiteStore):
    def __init__(self, path: Path, points: Points, ahead: int) -> None:
        super().__init__(path, clock=lambda: wall_clock() + ahead)
        self._points = points

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        with self._points.at(_names(commands)):
            return await super().apply(commands)

    async def bind(self, check: bytes, /) -> None:
        with self._points.at("bind"):
            await super().bind(check)


# --- the provider, from this side -----------------------------------------------------------------


class Shop:
    """Charges in plain sight: every piece of an exchange is a point where a run can die."""

    def __init__(self, port: int, points: Points) -> None:
        self._port = port
        self._points = points

    def charge(self, key: str, request: dict[str, Any]) -> StepResult[Any]:
        wire = http.client.HTTPConnection("127.0.0.1", self._port, PATIENCE_SECONDS)
        with self._points.at("send"):
            wire.request("POST", "/charges", json.dumps({"reference": key, **request}))
        with self._points.at("charged"):  # it has charged, and we have not read its answer
            self._wait_charged(key)
        with self._points.at("read"):
            made = json.loads(wire.getresponse().read())
        wire.close()
        return StepResult(made["id"], external_id=made["id"], status=201)

    def probe(self, key: str, request: dict[str, Any]) -> StepResult[Any] | None:
        wire = http.client.HTTPConnection("127.0.0.1", self._port, PATIENCE_SECONDS)
        with self._points.at("ask"):
            wire.request("GET", f"/charges?reference={key}")
        with self._points.at("hear"):
            found = json.loads(wire.getresponse().read())
        wire.close()
        assert all(charge["cents"] == request["cents"] for charge in found)
        return StepResult(found[0]["id"], external_id=found[0]["id"]) if found else None

    def _wait_charged(self, key: str) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while not get(self._port, f"/charges?reference={key}"):
            assert time.monotonic() < end, "the provider did not charge"


def get(port: int, path: str) -> Any:
    wire = http.client.HTTPConnection("127.0.0.1", port, PATIENCE_SECONDS)
    wire.request("GET", path)
    response = wire.getresponse()
    assert response.status == 200, response.status
    answer = json.loads(response.read())
    wire.close()
    return answer


# --- the operation --------------------------------------------------------------------------------


def pay(once: Once, key: str, plan: Plan, shop: Shop, probe_grace: str = PROBE_GRACE) -> list[str]:
    options: dict[str, Any] = (
        {"probe": shop.probe, "probe_grace": probe_grace} if plan.probe else {}
    )

    def body(attempt: Any) -> list[str]:
        return [
            attempt.step(name, shop.charge, request={"cents": 500}, **options)
            for name in plan.steps
        ]

    return once.run("order", key, body, retry_safe=True).value


async def pay_async(once: AsyncOnce, key: str, plan: Plan, shop: Shop) -> list[str]:
    options: dict[str, Any] = (
        {"probe": shop.probe, "probe_grace": PROBE_GRACE} if plan.probe else {}
    )

    async def charge(key: str, request: dict[str, Any]) -> StepResult[Any]:
        return shop.charge(key, request)

    async def body(attempt: Any) -> list[str]:
        return [
            await attempt.step(name, charge, request={"cents": 500}, **options)
            for name in plan.steps
        ]

    result = await once.run("order", key, body, retry_safe=True)
    return result.value


# --- runs -----------------------------------------------------------------------------------------


class Driver:
    """Forks the runs of one plan."""

    def __init__(self, directory: Path, port: int, plan: Plan) -> None:
        self._directory = directory
        self._port = port
        self._plan = plan

    def everywhere(self) -> Iterator[dict[str, Any]]:
        """A report per way to be killed."""
        for n in range(1, len(self._calls()) + 1):
            for side in self._plan.sides:
                if not self._plan.twice:
                    name = f"{n}-{side}"
                    yield self._finish(name, [self._killed(name, n, side, 0)])
                    continue
                for m in self._counting():
                    name = f"{n}-{side}-{m}"
                    first = self._killed(name, n, side, 0)
                    second = self._killed(name, m, side, 1)
                    if not second:
                        break  # it has no such point any more: it was through
                    yield self._finish(name, [first, second])

    def _counting(self) -> Iterator[int]:
        yield from range(1, 100)
        raise AssertionError("a run that never ends")

    def _calls(self) -> list[str]:
        assert self._run("dry", 0, "", 0)
        return self._log("dry", 0).read_text().splitlines()

    def _killed(self, name: str, kill_at: int, side: str, turn: int) -> str:
        """Where it was killed, in words; "" if it lived."""
        if self._run(name, kill_at, side, turn):
            return ""
        get(self._port, "/idle")  # what it had sent has arrived, or never will
        return f"{side} {self._log(name, turn).read_text().splitlines()[-1]}"

    def _finish(self, name: str, kills: list[str]) -> dict[str, Any]:
        before = len(get(self._port, "/charges"))
        assert self._run(name, 0, "", len(kills))
        value = json.loads((self._directory / f"{name}.value").read_text())
        with Once(SQLiteStore(self._directory / f"{name}.db")) as once:
            status = once.get("order", name)
        assert status is not None
        return {
            "kills": kills,
            "value": value,
            "state": status.state,
            "external": [step.external_id for step in status.steps],
            "keys": [self._child_key(name, step.name) for step in status.steps],
            "charged at the end": len(get(self._port, "/charges")) - before,
        }

    def _child_key(self, key: str, step: str) -> str:
        return child_key(key, step, operation="order")

    def _log(self, name: str, turn: int) -> Path:
        return self._directory / f"{name}.{turn}.log"

    def _run(self, name: str, kill_at: int, side: str, turn: int) -> bool:
        """One process; whether it lived to its end."""
        pid = os.fork()
        if pid == 0:
            try:
                self._in_child(name, kill_at, side, turn)
                os._exit(0)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, -signal.SIGKILL), f"{name}, turn {turn}: {code}"
        return code == 0

    def _in_child(self, name: str, kill_at: int, side: str, turn: int) -> None:
        points = Points(kill_at, side, self._log(name, turn))
        shop = Shop(self._port, points)
        path = self._directory / f"{name}.db"
        policy = Policy(lease=LEASE)
        value: list[str]
        if self._plan.engine == "sync":
            store = DeadlyStore(path, points, turn * AHEAD_US)
            value = pay(Once(store, policy=policy), name, self._plan, shop)
        else:
            aio = AsyncOnce(AsyncDeadlyStore(path, points, turn * AHEAD_US), policy=policy)
            value = asyncio.run(pay_async(aio, name, self._plan, shop))
        (self._directory / f"{name}.value").write_text(json.dumps(value))


def main(directory: Path, port: int, how: str) -> None:
    if how == "late":
        points = Points(0, "", directory / "late.log")
        store = SQLiteStore(directory / "late.db")
        pay(Once(store, policy=Policy(lease=LEASE)), "late", Plan(), Shop(port, points))
        return
    driver = Driver(directory, port, Plan(**json.loads(how)))
    sys.stdout.write(json.dumps(list(driver.everywhere())) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
