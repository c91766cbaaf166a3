"""Processes that are killed in their own transactions on PostgreSQL.

    python -m tests.fault.killed_postgres_transaction <url> <kind>
    python -m tests.fault.killed_postgres_transaction <url> <kind> <seed> <random kills>

test_postgres_transaction_kills.py runs it. The first form forks two children for every message that
an order sends to the server: one is killed right before the message is sent, the other right after
it. It prints what it killed as JSON. The second form forks children that place one order after the
other and are killed at a random moment.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import psycopg
from tests.support.caller_connections import CALLERS, Body, Caller

from oncekey import InFlight, Terminal

KINDS = ("psycopg", "psycopg-async", "asyncpg")
SIDES = ("before", "after")
ENDINGS = ("returns", "refuses")
KEYS = 20  # for which the children of the second part compete
LIFETIME_MAX_SECONDS = 0.03

# A hook that is called with a function that sends the message.
Sending = Callable[[Callable[[], Any]], Any]


def order(key: str, ending: str = "returns") -> Body:
    """Return an order of one row, which contains the key."""
    error = Terminal("out of tea") if ending == "refuses" else None
    return Body((f"INSERT INTO orders VALUES ('{key}')",), error=error)  # noqa: S608


async def place(caller: Caller, key: str, ending: str = "returns") -> None:
    """Place one order and commit."""
    async with caller.transaction():
        try:
            await caller.run_inside(key, order(key, ending))
        except Terminal:
            pass


# --- killed at a message --------------------------------------------------------------------------


def watch_messages(kind: str, sending: Sending) -> None:
    """Patch the driver so that `sending` sends every message to the server."""
    if kind == "asyncpg":
        transports: Any = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
        write = transports.write
        transports.write = lambda self, data: sending(lambda: write(self, data))
        return

    def watched(self: Any, steps: Any, *rest: Any, **options: Any) -> Any:
        # A psycopg generator sends its message before it first yields to wait.
        ended: list[Any] = []

        def begin() -> Any:
            try:
                return next(steps)
            except StopIteration as stop:  # there was nothing to wait for
                ended.append(stop.value)

        first = sending(begin)

        def resumed() -> Any:
            if ended:
                return ended[0]
            ready = yield first
            try:
                while True:
                    ready = yield steps.send(ready)
            except StopIteration as stop:
                return stop.value

        return wait(self, resumed(), *rest, **options)

    connection: Any = psycopg.AsyncConnection if kind == "psycopg-async" else psycopg.Connection
    wait = connection.wait
    connection.wait = watched


async def run_killed_at(url: str, kind: str, key: str, ending: str, number: int, side: str) -> None:
    """Place an order in this process, which is killed at message `number`."""
    count = 0
    armed = False

    def sending(send: Callable[[], Any]) -> Any:
        nonlocal count
        if not armed:
            return send()
        if count == number and side == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        sent = send()
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1
        return sent

    async with CALLERS[kind](url=url) as caller:
        await place(caller, f"warm {key}")  # the driver sends its introspection queries only here
        watch_messages(kind, sending)
        armed = True
        await place(caller, key, ending)
        armed = False


# --- killed at a random moment --------------------------------------------------------------------


async def work_until_killed(url: str, kind: str, ready: int, first: int) -> None:
    """Place orders without end, and write to `ready` before the first."""
    async with CALLERS[kind](url=url) as caller:
        os.write(ready, b"!")
        while True:
            for number in range(KEYS):
                # One key per pass is new, so that there is always something to do.
                try:
                    await place(caller, f"{kind} {first + number}")
                except InFlight:
                    continue  # the server has not noticed yet that the owner was killed
            first += 1


# --- the parent -----------------------------------------------------------------------------------


def fork(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(work())
        finally:
            os._exit(0)
    return pid


def was_killed(pid: int) -> bool:
    """Wait for a child; True if it was killed, False if it ran to its end."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def at_messages(url: str, kind: str) -> list[list[Any]]:
    """Kill a child before and after every message of every order; return what was killed."""
    killed = []
    for ending in ENDINGS:
        for side in SIDES:
            for number in range(100):
                key = f"{kind} {ending} {side} {number}"
                pid = fork(partial(run_killed_at, url, kind, key, ending, number, side))
                if not was_killed(pid):
                    break
                killed.append([key, ending, side, number])
    return killed


def at_moments(url: str, kind: str, seed: int, kills: int) -> None:
    """Kill `kills` children at random moments."""
    chance = random.Random(seed)
    for number in range(kills):
        ready, writer = os.pipe()
        pid = fork(partial(work_until_killed, url, kind, writer, number))
        os.close(writer)
        os.read(ready, 1)
        os.close(ready)
        time.sleep(chance.uniform(0, LIFETIME_MAX_SECONDS))  # any moment must be right
        os.kill(pid, signal.SIGKILL)
        assert was_killed(pid), "it ran to its end"


def main(url: str, kind: str, *moments: str) -> None:
    if moments:
        seed, kills = map(int, moments)
        at_moments(url, kind, seed, kills)
        return
    sys.stdout.write(json.dumps(at_messages(url, kind)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
