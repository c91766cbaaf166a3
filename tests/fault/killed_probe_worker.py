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
from oncekey.core.commands import Command, Reply, Seen
from oncekey.stores.sqlite import AsyncSQLiteStore, SQLiteStore
from oncekey.stores.store_rules import wall_clock

LEASE = "1h"
AHEAD_US = 3_601_000_000
PROBE_GRACE = "1s"
TIMEOUT_SECONDS = 30


@dataclass
class Plan:
    """What the runs do and where they are killed.

    engine   "sync" or "async"
    steps    the charges, one step each
    probe    True if the steps have a probe
    twice    True if the run after a killed one is killed too, at each of its points
    sides    kills come right "before" a point, right "after" it, or both
    """

    engine: str = "sync"
    steps: list[str] = field(default_factory=lambda: ["charge"])
    probe: bool = True
    twice: bool = False
    sides: list[str] = field(default_factory=lambda: ["before", "after"])


class Points:
    """Counts the calls of a run to the outside, and kills the run at one of them."""

    def __init__(self, kill_at: int, side: str, log: Path) -> None:
        self._kill_at = kill_at
        self._side = side
        self._count = 0
        self._log = log

    @contextmanager
    def at(self, name: str) -> Iterator[None]:
        self._count += 1
        is_the_point = self._count == self._kill_at
        with self._log.open("a") as file:  # the file is closed, and so written, before the kill
            file.write(name + "\n")
        if is_the_point and self._side == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        yield
        if is_the_point:
            os.kill(os.getpid(), signal.SIGKILL)


# --- stores ---------------------------------------------------------------------------------------


def _names(commands: Sequence[Command]) -> str:
    return "+".join(type(command).__name__ for command in commands)


class KillingStore(SQLiteStore):
    """A sync store whose calls are points."""

    def __init__(self, path: Path, points: Points, ahead: int) -> None:
        super().__init__(path, clock=lambda: wall_clock() + ahead)
        self._points = points

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        with self._points.at(_names(commands)):
            return super().apply(commands)

    def bind(self, check: bytes, /) -> Seen:
        with self._points.at("bind"):
            return super().bind(check)


class AsyncKillingStore(AsyncSQLiteStore):
    """An async store whose calls are points."""

    def __init__(self, path: Path, points: Points, ahead: int) -> None:
        super().__init__(path, clock=lambda: wall_clock() + ahead)
        self._points = points

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        with self._points.at(_names(commands)):
            return await super().apply(commands)

    async def bind(self, check: bytes, /) -> Seen:
        with self._points.at("bind"):
            return await super().bind(check)


# --- the client of the provider -----------------------------------------------------------------


class Shop:
    """A client of the provider; every part of an HTTP exchange is a point."""

    def __init__(self, port: int, points: Points) -> None:
        self._port = port
        self._points = points

    def charge(self, key: str, request: dict[str, Any]) -> StepResult[Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, TIMEOUT_SECONDS)
        with self._points.at("send"):
            connection.request("POST", "/charges", json.dumps({"reference": key, **request}))
        with self._points.at("charged"):  # the provider has charged, and its response is unread
            self._wait_charged(key)
        with self._points.at("read"):
            charge = json.loads(connection.getresponse().read())
        connection.close()
        return StepResult(charge["id"], external_id=charge["id"], status=201)

    def probe(self, key: str, request: dict[str, Any]) -> StepResult[Any] | None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, TIMEOUT_SECONDS)
        with self._points.at("send probe"):
            connection.request("GET", f"/charges?reference={key}")
        with self._points.at("read probe"):
            found = json.loads(connection.getresponse().read())
        connection.close()
        assert all(charge["cents"] == request["cents"] for charge in found)
        return StepResult(found[0]["id"], external_id=found[0]["id"]) if found else None

    def _wait_charged(self, key: str) -> None:
        end = time.monotonic() + TIMEOUT_SECONDS
        while not get(self._port, f"/charges?reference={key}"):
            assert time.monotonic() < end, "the provider did not charge"


def get(port: int, path: str) -> Any:
    """Get a path of the provider and decode the JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, TIMEOUT_SECONDS)
    connection.request("GET", path)
    response = connection.getresponse()
    assert response.status == 200, response.status
    content = json.loads(response.read())
    connection.close()
    return content


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


class PlanRunner:
    """Forks the runs of one plan."""

    def __init__(self, directory: Path, port: int, plan: Plan) -> None:
        self._directory = directory
        self._port = port
        self._plan = plan

    def reports(self) -> Iterator[dict[str, Any]]:
        """Yield a report for every point, or pair of points, where runs are killed."""
        for n in range(1, len(self._calls()) + 1):
            for side in self._plan.sides:
                if not self._plan.twice:
                    name = f"{n}-{side}"
                    yield self._finish(name, [self._killed(name, n, side, 0)])
                    continue
                for m in self._numbers():
                    name = f"{n}-{side}-{m}"
                    first = self._killed(name, n, side, 0)
                    second = self._killed(name, m, side, 1)
                    if not second:
                        break  # the second run has fewer points and ran to its end
                    yield self._finish(name, [first, second])

    def _numbers(self) -> Iterator[int]:
        yield from range(1, 100)
        raise AssertionError("the run does not end")

    def _calls(self) -> list[str]:
        assert self._run("not-killed", 0, "", 0)
        return self._log("not-killed", 0).read_text().splitlines()

    def _killed(self, name: str, kill_at: int, side: str, run: int) -> str:
        """Run once and return the point of the kill in words; "" if the run was not killed."""
        if self._run(name, kill_at, side, run):
            return ""
        get(self._port, "/idle")  # its requests have arrived by now, or never will
        return f"{side} {self._log(name, run).read_text().splitlines()[-1]}"

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

    def _log(self, name: str, run: int) -> Path:
        return self._directory / f"{name}.{run}.log"

    def _run(self, name: str, kill_at: int, side: str, run: int) -> bool:
        """Run once in a child; True if it ran to its end."""
        pid = os.fork()
        if pid == 0:
            try:
                self._in_child(name, kill_at, side, run)
                os._exit(0)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, -signal.SIGKILL), f"{name}, run {run}: {code}"
        return code == 0

    def _in_child(self, name: str, kill_at: int, side: str, run: int) -> None:
        points = Points(kill_at, side, self._log(name, run))
        shop = Shop(self._port, points)
        path = self._directory / f"{name}.db"
        policy = Policy(lease=LEASE)
        value: list[str]
        if self._plan.engine == "sync":
            store = KillingStore(path, points, run * AHEAD_US)
            value = pay(Once(store, policy=policy), name, self._plan, shop)
        else:
            async_once = AsyncOnce(AsyncKillingStore(path, points, run * AHEAD_US), policy=policy)
            value = asyncio.run(pay_async(async_once, name, self._plan, shop))
        (self._directory / f"{name}.value").write_text(json.dumps(value))


def main(directory: Path, port: int, plan: str) -> None:
    if plan == "late":
        points = Points(0, "", directory / "late.log")
        store = SQLiteStore(directory / "late.db")
        pay(Once(store, policy=Policy(lease=LEASE)), "late", Plan(), Shop(port, points))
        return
    runner = PlanRunner(directory, port, Plan(**json.loads(plan)))
    sys.stdout.write(json.dumps(list(runner.reports())) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
