"""The base of all callers: runs an operation inside its own transaction, or under a lease."""

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


class Body(NamedTuple):
    """What a body does: its statements, a rollback if requested, then it returns or raises."""

    statements: tuple[str, ...] = (INSERT,)
    error: BaseException | None = None
    value: Any = "done"
    rollback: bool = False


INSERT_BODY = Body()
LEASED_BODY = Body((), value="leased")
MUST_NOT_RUN = Body((), error=AssertionError("this body must not run"))


class RolledBack(Exception):
    """Raised to roll back a `with` block of a driver."""


class Caller(ABC):
    """An engine and a connection of the caller's own."""

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
        self.once = once(store(self.url, **self.options), cache=0)  # stays open between tests
        await resolved(self.once.get("order", "-"))  # creates the tables
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        await resolved(self.once.close())

    @property
    def subject(self) -> Any:
        """The object that is passed to in_transaction."""
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
        """Run a statement; returns an awaitable if the caller is async."""

    @abstractmethod
    def nested(self) -> Any:
        """The driver's own `with` or `async with` block for a savepoint."""

    async def execute(self, sql: str) -> None:
        await resolved(self.send(sql))

    async def run_inside(self, key: str, body: Body = INSERT_BODY, **options: Any) -> Result[Any]:
        """Run the operation in the caller's transaction, which stays open."""
        return await self.run_on(self.once.in_transaction(self.subject), key, body, **options)

    async def run_on(
        self, tx: Any, key: str, body: Body = INSERT_BODY, **options: Any
    ) -> Result[Any]:
        result: Result[Any] = await resolved(tx.run("order", key, self.make_body(body), **options))
        return result

    async def run_leased(self, key: str, body: Body = LEASED_BODY, **options: Any) -> Result[Any]:
        """Run the operation under a lease, outside the transaction."""
        return await self.run_on(self.once, key, body, **options)

    async def state(self, key: str) -> str | None:
        status = await resolved(self.once.get("order", key))
        return None if status is None else str(status.state)

    def make_body(self, body: Body) -> Callable[[Any], Any]:
        def blocking(attempt: Any) -> Any:
            self.ran += 1
            for sql in body.statements:
                self.send(sql)
            if body.rollback:
                attempt.rollback()
            if body.error is not None:
                raise body.error
            return body.value

        async def awaited(attempt: Any) -> Any:
            self.ran += 1
            for sql in body.statements:
                await self.send(sql)
            if body.rollback:
                await attempt.rollback()
            if body.error is not None:
                raise body.error
            return body.value

        return awaited if self.is_async else blocking

    @asynccontextmanager
    async def transaction(self, isolation: str | None = None) -> AsyncIterator[Self]:
        """A transaction as a caller would write it: committed, or rolled back after an error."""
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
        """A savepoint of the driver's own. RolledBack rolls back to it and is not re-raised."""
        return Savepoint(self.nested())


class Savepoint:
    """Makes an `async with` block of a driver's `with` or `async with` block."""

    def __init__(self, block: Any) -> None:
        self._block = block

    async def __aenter__(self) -> None:
        is_async = hasattr(self._block, "__aenter__")
        await resolved(self._block.__aenter__() if is_async else self._block.__enter__())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        is_async = hasattr(self._block, "__aexit__")
        ends = self._block.__aexit__ if is_async else self._block.__exit__
        await resolved(ends(kind, error, trace))
        return kind is RolledBack


async def resolved(result: Any) -> Any:
    """The result of a call, awaited if it is awaitable."""
    return await result if hasattr(result, "__await__") else result
