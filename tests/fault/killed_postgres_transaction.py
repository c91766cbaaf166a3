"""Processes that die in their own transactions on PostgreSQL.

python -m tests.fault.killed_postgres_transaction <url> <kind> <seed> <random kills>

First forks a child for every message that an order sends to the server, killed right before it is
sent, and another one killed right after; then children that take one order after the other and are
killed at some moment. Answers in JSON. Run by test_postgres_transaction_kills.py.
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
from typing import Any

import psycopg
from tests.support.caller_connections import CALLERS, Body, Caller

from oncekey import InFlight, Terminal

KINDS = ("psycopg", "psycopg-async", "asyncpg")
SIDES = ("before", "after")
ENDINGS = ("returns", "refuses")
KEYS = 20  # that the children of the second part take turns at
LONGEST_SECONDS = 0.03

# Called with a function that does the sending.
Sending = Callable[[Callable[[], Any]], Any]


def order(key: str, ending: str = "returns") -> Body:
    """One row that tells whose it is."""
    error = Terminal("out of tea") if ending == "refuses" else None
    return Body((f"INSERT INTO orders VALUES ('{key}')",), error=error)  # noqa: S608


async def place(caller: Caller, key: str, ending: str = "returns") -> None:
    """One order with its commit."""
    async with caller.transaction():
        try:
            await caller.run_inside(key, order(key, ending))
        except Terminal:
            pass


# --- killed at a message --------------------------------------------------------------------------


def watch_messages(kind: str, sending: Sending) -> None:
    """Have every message to the server sent by `sending`."""
    if kind == "asyncpg":
        transports: Any = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
        write = transports.write
        transports.write = lambda self, data: sending(lambda: write(self, data))
        return

    def watched(self: Any, steps: Any, *rest: Any, **options: Any) -> Any:
        # A generator of psycopg's sends before it first asks to wait for something.
        first = sending(lambda: next(steps, None))

        def resumed() -> Any:
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


async def die_at(url: str, kind: str, key: str, ending: str, number: int, side: str) -> None:
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
        await place(caller, f"warm {key}")  # what a driver asks once is not asked again
        watch_messages(kind, sending)
        armed = True
        await place(caller, key, ending)
        armed = False


# --- killed at some moment ----------------------------------------------------------------------


async def work_until_killed(url: str, kind: str, ready: int, turn: int) -> None:
    async with CALLERS[kind](url=url) as caller:
        os.write(ready, b"!")
        while True:
            for number in range(KEYS):
                # One key after the other is new, so that there is always something to do.
                try:
                    await place(caller, f"{kind} {turn + number}")
                except InFlight:
                    continue  # a victim's, whose end the server has not noticed yet
            turn += 1


# --- the parent -----------------------------------------------------------------------------------


def child(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(work())
        finally:
            os._exit(0)
    return pid


def ended(pid: int) -> bool:
    """Whether it was killed; it may also have come to its end."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def at_messages(url: str, kind: str) -> list[list[Any]]:
    killed = []
    for ending in ENDINGS:
        for side in SIDES:
            for number in range(100):
                key = f"{kind} {ending} {side} {number}"
                if not ended(child(lambda: die_at(url, kind, key, ending, number, side))):  # noqa: B023
                    break
                killed.append([key, ending, side, number])
    return killed


def at_moments(url: str, kind: str, seed: int, kills: int) -> int:
    chance = random.Random(seed)
    for turn in range(kills):
        ready, told = os.pipe()
        pid = child(lambda: work_until_killed(url, kind, told, turn))  # noqa: B023
        os.close(told)
        os.read(ready, 1)
        os.close(ready)
        time.sleep(chance.uniform(0, LONGEST_SECONDS))  # whenever it is, it must be right
        os.kill(pid, signal.SIGKILL)
        assert ended(pid), "it should not have come to its end"
    return kills


def main(url: str, kind: str, seed: int, kills: int) -> None:
    told = {"at messages": at_messages(url, kind), "at moments": at_moments(url, kind, seed, kills)}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
