"""What every shop does: take orders inside its own transaction or, under a lease, outside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self

from tests.support.caller_connections.database import DATABASE, LOCK_TIMEOUT, database
from tests.support.postgres_stores import pooler

from oncekey import AsyncOnce, Once
from oncekey.engine.results import Result
from oncekey.stores.postgres import AsyncPostgresStore, PostgresStore

INSERT = "INSERT INTO orders VALUES ('tea')"


class Order(NamedTuple):
    """What a body does: its statements, `undo()` where asked, then an answer or an error."""

    statements: tuple[str, ...] = (INSERT,)
    error: BaseException | None = None
    value: Any = "done"
    undo: bool = False


TEA = Order()
LEASED = Order((), value="leased")
NEVER = Order((), error=AssertionError("this body must not run"))


class RolledBack(Exception):
    """Ends a transaction that a `with` has begun."""


class Shop(ABC):
    """One engine and one connection of the caller's."""

    is_async: ClassVar[bool]

    def __init__(
        self, *, url: str = "", major: int | None = None, bouncer: bool = False, **options: Any
    ) -> None:
        self.major = major
        self.url = url or (pooler().url(DATABASE) if bouncer else database(major))
        self.bouncer = bouncer
        self.options = {"lock_timeout": LOCK_TIMEOUT, "pooler": bouncer, **options}
        self.ran = 0
        self.db: Any = None
        self.once: Any = None

    async def __aenter__(self) -> Self:
        store = AsyncPostgresStore if self.is_async else PostgresStore
        once: Any = AsyncOnce if self.is_async else Once
        self.once = once(store(self.url, **self.options), cache=0)  # kept from test to test
        await done(self.once.get("order", "-"))  # the tables are there
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        await done(self.once.close())

    @property
    def subject(self) -> Any:
        """What in_transaction is given."""
        return self.db

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def begin(self) -> None: ...

    @abstractmethod
    async def commit(self) -> None: ...

    @abstractmethod
    async def rollback(self) -> None: ...

    @abstractmethod
    def send(self, sql: str) -> Any:
        """Run a statement; to be awaited where the shop is async."""

    @abstractmethod
    def nested(self) -> Any:
        """A `with` or `async with` block of the driver's own for a savepoint."""

    async def execute(self, sql: str) -> None:
        await done(self.send(sql))

    async def inside(self, key: str, order: Order = TEA, **options: Any) -> Result[Any]:
        """The operation in the caller's transaction, which stays open."""
        return await self.run_in(self.once.in_transaction(self.subject), key, order, **options)

    async def run_in(self, tx: Any, key: str, order: Order = TEA, **options: Any) -> Result[Any]:
        result: Result[Any] = await done(tx.run("order", key, self.body(order), **options))
        return result

    async def outside(self, key: str, order: Order = LEASED, **options: Any) -> Result[Any]:
        """The same operation under a lease."""
        return await self.run_in(self.once, key, order, **options)

    async def state(self, key: str) -> str | None:
        status = await done(self.once.get("order", key))
        return None if status is None else str(status.state)

    def body(self, order: Order) -> Callable[[Any], Any]:
        def blocking(attempt: Any) -> Any:
            self.ran += 1
            for sql in order.statements:
                self.send(sql)
            if order.undo:
                attempt.rollback()
            if order.error is not None:
                raise order.error
            return order.value

        async def awaited(attempt: Any) -> Any:
            self.ran += 1
            for sql in order.statements:
                await self.send(sql)
            if order.undo:
                await attempt.rollback()
            if order.error is not None:
                raise order.error
            return order.value

        return awaited if self.is_async else blocking

    @asynccontextmanager
    async def transaction(self, isolation: str | None = None) -> AsyncIterator[Self]:
        """As a caller would write it: committed, or rolled back where something is raised."""
        await self.begin()
        try:
            if isolation is not None:
                await self.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
            yield self
        except BaseException:
            await self.rollback()
            raise
        await self.commit()

    def savepoint(self) -> Savepoint:
        """The driver's own, of either colour; RolledBack goes back to it and no further."""
        return Savepoint(self.nested())


class Savepoint:
    """A `with` or `async with` block of a driver's as the latter."""

    def __init__(self, block: Any) -> None:
        self._block = block

    async def __aenter__(self) -> None:
        is_async = hasattr(self._block, "__aenter__")
        await done(self._block.__aenter__() if is_async else self._block.__enter__())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        is_async = hasattr(self._block, "__aexit__")
        ends = self._block.__aexit__ if is_async else self._block.__exit__
        await done(ends(kind, error, trace))
        return kind is RolledBack


async def done(made: Any) -> Any:
    """What a call gave, whether or not it has to be awaited."""
    return await made if hasattr(made, "__await__") else made
