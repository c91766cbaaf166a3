"""A shop on three kinds of SQLite connections, and a process that is killed in its transactions.

python killed_sqlite_transaction.py <directory> <kind> <order>

test_sqlite_transaction_kills.py runs it. It places an order once to count its statements. Then it
forks one child per statement, which is killed right before that statement, and one that is killed
after the last. It prints the statements as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

import aiosqlite

from oncekey import AsyncOnce, Once, Terminal
from oncekey.engine.results import Result

SYNC, ON_LOOP, AIO = KINDS = ("sync", "on_loop", "aiosqlite")
TABLE = "CREATE TABLE IF NOT EXISTS orders (item TEXT)"
INSERT = "INSERT INTO orders VALUES ('tea')"


class Order(NamedTuple):
    """What a body does: it runs statements, then returns a value or raises an error."""

    statements: tuple[str, ...] = (INSERT,)
    error: BaseException | None = None
    value: Any = "done"


TEA = Order()
LEASED = Order((), value="leased")
NEVER = Order((), error=AssertionError("this body must not run"))
ORDERS = {"returns": TEA, "refuses": Order(error=Terminal("out of tea"))}


class Shop:
    """One engine and one connection of the caller's, with the same methods for every kind."""

    def __init__(self, kind: str, path: Path, busy_ms: int = 0) -> None:
        self.kind = kind
        self.path = path
        self.busy_ms = busy_ms
        self.ran = 0
        self.db: Any = None
        self.once: Any = None

    async def __aenter__(self) -> Self:
        address = f"sqlite:///{self.path}?busy_timeout={self.busy_ms}ms"
        timeout = self.busy_ms / 1_000
        self.once = Once(address) if self.kind == SYNC else AsyncOnce(address)
        await self.done(self.once.get("order", "-"))  # creates the tables
        if self.kind == AIO:
            self.db = await aiosqlite.connect(self.path, timeout=timeout)
        else:
            self.db = sqlite3.connect(self.path, timeout=timeout)
        await self.execute(TABLE)
        await self.commit()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.done(self.db.close())
        await self.done(self.once.close())

    async def execute(self, sql: str) -> None:
        await self.done(self.db.execute(sql))

    async def commit(self) -> None:
        await self.done(self.db.commit())

    async def rollback(self) -> None:
        await self.done(self.db.rollback())

    async def trace(self, callback: Callable[[str], None]) -> None:
        await self.done(self.db.set_trace_callback(callback))

    async def inside(self, key: str, order: Order = TEA) -> Result[Any]:
        """Run the operation in the caller's transaction, which stays open."""
        tx = self.once.in_transaction(self.db)
        result: Result[Any] = await self.done(tx.run("order", key, self._body(order)))
        return result

    async def outside(self, key: str, order: Order = LEASED) -> Result[Any]:
        """Run the same operation under a lease."""
        result: Result[Any] = await self.done(self.once.run("order", key, self._body(order)))
        return result

    async def state(self, key: str) -> str | None:
        status = await self.done(self.once.get("order", key))
        return None if status is None else str(status.state)

    def _body(self, order: Order) -> Callable[[Any], Any]:
        def sync_body(attempt: Any) -> Any:
            self.ran += 1
            for sql in order.statements:
                self.db.execute(sql)
            if order.error is not None:
                raise order.error
            return order.value

        async def async_body(attempt: Any) -> Any:
            self.ran += 1
            for sql in order.statements:
                await self.execute(sql)
            if order.error is not None:
                raise order.error
            return order.value

        return sync_body if self.kind == SYNC else async_body

    async def done(self, result: Any) -> Any:
        """Return the result of a sync or an async call."""
        return await result if hasattr(result, "__await__") else result


def rows(path: Path) -> list[str]:
    """Return the orders that another connection sees."""
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT item FROM orders").fetchall()
    connection.close()
    return [item for (item,) in found]


async def place(path: Path, kind: str, order: Order, kill_at: int) -> list[str]:
    """Place one order and commit; the process is killed before statement number `kill_at`."""
    statements: list[str] = []

    def kill_or_count(sql: str) -> None:
        if len(statements) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        statements.append(sql)

    async with Shop(kind, path) as shop:
        await shop.trace(kill_or_count)
        try:
            await shop.inside("k", order)
        except Terminal:
            pass
        await shop.commit()
        if kill_at == len(statements):
            os.kill(os.getpid(), signal.SIGKILL)
    return statements


def main(directory: Path, kind: str, order: Order) -> None:
    """Place the order once, then once per statement in a child that is killed there."""
    statements = asyncio.run(place(directory / "not-killed.db", kind, order, -1))
    for number in range(len(statements) + 1):
        pid = os.fork()
        if pid == 0:
            asyncio.run(place(directory / f"{number}.db", kind, order, number))
            os._exit(1)  # it was not killed
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code == -signal.SIGKILL, f"statement {number}: {code}"
    sys.stdout.write(json.dumps(statements) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], ORDERS[sys.argv[3]])
