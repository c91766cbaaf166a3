"""kill -9 around a provider without idempotency keys: with a probe, every order is charged once.

Provider and workers are real processes. A worker is killed right before and right after each store
call and each part of an HTTP exchange. Then the run that takes over is killed at every point too,
also in its probe. Without a probe the same kills charge twice, which shows that the test can fail
(I1).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fault.killed_probe_worker import AHEAD_US, LEASE, Plan, Points, Shop, get, pay
from tests.support.servers import Proxy
from tests.support.servers.processes import User, free_port, launch, wait_until

from oncekey import Once, Policy
from oncekey.engine.clock import SystemClock
from oncekey.stores.sqlite import SQLiteStore
from oncekey.stores.store_rules import wall_clock


def both_sides(calls: list[str]) -> list[str]:
    return [f"{side} {call}" for call in calls for side in ("before", "after")]


ROOT = Path(__file__).parents[2]
SOAK = bool(os.environ.get("ONCEKEY_SOAK"))
SYNC_AND_ASYNC = pytest.mark.parametrize("engine", ["sync", "async"])
# The calls of one charge: the intent, the HTTP exchange, the result.
CHARGE = ["SaveStep", "send", "charged", "read", "SaveStep"]
# A run that is killed there has charged, and no result is stored.
IN_DOUBT = both_sides(CHARGE)[3:-1]


@pytest.fixture
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port, directory = free_port(), tmp_path_factory.mktemp("provider")
    command = [sys.executable, ROOT / "tests/fault/keyless_provider.py", port]
    process = launch("provider", list(map(str, command)), User(), directory, death_signal="SIGKILL")
    process.wait_ready(lambda: _responds(port))
    yield port
    process.kill()


def _responds(port: int) -> bool:
    try:
        return get(port, "/charges") is not None
    except ConnectionRefusedError:
        return False


class Case:
    """One combination of kills, and its outcome."""

    def __init__(self, report: dict[str, Any], charges: Counter[str]) -> None:
        self.kills: list[str] = report["kills"]
        self.charges = [charges[key] for key in report["keys"]]
        self.at_the_end: int = report["charged at the end"]
        self.is_done = report["state"] == "succeeded" and report["external"] == report["value"]


def cases(directory: Path, port: int, **plan: Any) -> list[Case]:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.fault.killed_probe_worker",
            directory,
            str(port),
            json.dumps(plan),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1_000 if SOAK else 250,
    )
    assert done.returncode == 0, done.stderr
    charges = Counter(charge["reference"] for charge in get(port, "/charges"))
    return [Case(report, charges) for report in json.loads(done.stdout)]


# --- one kill ----------------------------------------------------------------------------------


@SYNC_AND_ASYNC
def test_i1_an_order_with_a_probe_is_charged_once_after_a_kill_anywhere(
    tmp_path: Path, provider: int, engine: str
) -> None:
    found = cases(tmp_path, provider, engine=engine, steps=["charge", "tip"])
    calls = ["bind", "Claim", *CHARGE, *CHARGE, "Finish"]
    assert [case.kills for case in found] == [[kill] for kill in both_sides(calls)]
    for case in found:
        assert (case.kills, case.charges) == (case.kills, [1, 1])
        assert case.is_done
    # The probe found the charges of the killed run, and they were not repeated.
    assert {case.at_the_end for case in found} == {0, 1, 2}


@SYNC_AND_ASYNC
def test_an_order_without_a_probe_is_charged_twice_by_the_same_kills(
    tmp_path: Path, provider: int, engine: str
) -> None:
    found = cases(tmp_path, provider, engine=engine, probe=False)
    twice = [kill for case in found for kill in case.kills if case.charges == [2]]
    assert twice == IN_DOUBT
    assert all(case.charges in ([1], [2]) for case in found)


# --- two kills -----------------------------------------------------------------------------


# Every pair of kills is a process each: `make test` plays them with one engine.
@pytest.mark.parametrize("engine", ["sync", "async"] if SOAK else ["sync"])
def test_i1_an_order_with_a_probe_is_charged_once_after_two_kills_anywhere(
    tmp_path: Path, provider: int, engine: str
) -> None:
    sides = ["before", "after"] if SOAK else ["before"]
    found = cases(tmp_path, provider, engine=engine, twice=True, sides=sides)
    for case in found:
        assert (case.kills, case.charges) == (case.kills, [1])
        assert case.is_done
    seconds = {case.kills[1] for case in found}
    for side in sides:
        # The second run probes before it charges, and is killed there too.
        assert {
            f"{side} {call}" for call in ("Look", "send probe", "read probe", *CHARGE)
        } <= seconds
    # It is also killed where the probe finds the charge of the first run.
    assert {second for first, second in (case.kills for case in found) if first in IN_DOUBT} >= {
        f"{side} {call}"
        for side in sides
        for call in ("send probe", "read probe", "SaveStep", "Finish")
    }


# --- a charge that is still in transit ------------------------------------------------------------


class CallbackClock(SystemClock):
    """An engine's clock that calls `on_sleep` with the duration instead of sleeping."""

    def __init__(self, on_sleep: Callable[[int], None]) -> None:
        self._on_sleep = on_sleep
        self._thread = threading.current_thread()

    def jitter(self, us: int) -> int:
        return us

    def wait(self, event: threading.Event, us: int) -> bool:
        if threading.current_thread() is not self._thread:
            return super().wait(event, us)
        self._on_sleep(us)
        return event.is_set()


@pytest.mark.parametrize(("probe_grace", "charges"), [("2h", 1), ("0s", 2)])
def test_a_charge_in_transit_is_waited_for_during_the_probe_grace(
    tmp_path: Path, provider: int, probe_grace: str, charges: int
) -> None:
    """The killed worker's request arrives after the first probe, which has found nothing.

    With `probe_grace` the probe is called again before the next charge.
    """
    ahead = AHEAD_US
    slept: list[int] = []
    with Proxy(provider) as proxy:
        proxy.hold("requests")
        command = [
            sys.executable,
            "-m",
            "tests.fault.killed_probe_worker",
            str(tmp_path),
            str(proxy.port),
        ]
        worker = subprocess.Popen([*command, "late"], cwd=ROOT)
        proxy.wait_until_held()
        worker.send_signal(signal.SIGKILL)
        worker.wait(60)
        before = len(get(provider, "/charges"))

        def deliver(us: int = 0) -> None:
            nonlocal ahead
            slept.append(us)
            proxy.resume()
            expected = before + len(slept) + (charges - 1)
            wait_until(
                lambda: len(get(provider, "/charges")) == expected, "the request has arrived"
            )
            ahead += us

        store = SQLiteStore(tmp_path / "late.db", clock=lambda: wall_clock() + ahead)
        shop = Shop(provider, Points(0, "", tmp_path / "log"))
        with Once(store, policy=Policy(lease=LEASE), clock=CallbackClock(deliver)) as once:
            (paid,) = pay(once, "late", Plan(), shop, probe_grace)
        if not slept:
            deliver()
    new = get(provider, "/charges")[before:]
    assert len(new) == charges
    assert paid in [charge["id"] for charge in new]
    assert len(slept) == 1
