"""Callers with a connection of a driver: psycopg or asyncpg."""

from __future__ import annotations

from typing import Any

import asyncpg
import psycopg
from tests.support.caller_connections.caller import Caller, RolledBack


class PsycopgCaller(Caller):
    is_async = False
    block: Any = None

    async def open(self) -> None:
        self.db = psycopg.connect(self.url, autocommit=True)
        if self.bouncer:
            self.db.prepare_threshold = None

    async def close(self) -> None:
        if self.block is not None:
            await self.rollback()
        self.db.close()

    async def begin(self) -> None:
        self.block = self.db.transaction()
        self.block.__enter__()

    async def commit(self) -> None:
        block, self.block = self.block, None
        block.__exit__(None, None, None)

    async def rollback(self) -> None:
        block, self.block = self.block, None
        block.__exit__(RolledBack, RolledBack(), None)

    def send(self, sql: str) -> Any:
        return self.db.execute(sql)

    def nested(self) -> Any:
        return self.db.transaction()


class ImplicitPsycopgCaller(PsycopgCaller):
    """A psycopg connection that begins implicitly; the caller calls commit()."""

    async def open(self) -> None:
        self.db = psycopg.connect(self.url)

    async def begin(self) -> None:
        pass

    async def commit(self) -> None:
        self.db.commit()

    async def rollback(self) -> None:
        self.db.rollback()

    async def close(self) -> None:
        self.db.close()


class AsyncPsycopgCaller(Caller):
    is_async = True
    block: Any = None

    async def open(self) -> None:
        self.db = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        if self.bouncer:
            self.db.prepare_threshold = None

    async def close(self) -> None:
        if self.block is not None:
            await self.rollback()
        await self.db.close()

    async def begin(self) -> None:
        self.block = self.db.transaction()
        await self.block.__aenter__()

    async def commit(self) -> None:
        block, self.block = self.block, None
        await block.__aexit__(None, None, None)

    async def rollback(self) -> None:
        block, self.block = self.block, None
        await block.__aexit__(RolledBack, RolledBack(), None)

    def send(self, sql: str) -> Any:
        return self.db.execute(sql)

    def nested(self) -> Any:
        return self.db.transaction()


class AsyncpgCaller(Caller):
    is_async = True
    block: Any = None

    async def open(self) -> None:
        cache = {"statement_cache_size": 0} if self.bouncer else {}
        self.db = await asyncpg.connect(self.url, **cache)

    async def close(self) -> None:
        if self.block is not None:
            await self.rollback()
        await self.db.close()

    async def begin(self) -> None:
        self.block = self.db.transaction()
        await self.block.start()

    async def commit(self) -> None:
        block, self.block = self.block, None
        await block.commit()

    async def rollback(self) -> None:
        block, self.block = self.block, None
        await block.rollback()

    def send(self, sql: str) -> Any:
        return self.db.execute(sql)

    def nested(self) -> Any:
        return self.db.transaction()


class AsyncpgPoolCaller(AsyncpgCaller):
    """A connection acquired from an asyncpg pool."""

    pool: Any = None

    async def open(self) -> None:
        self.pool = await asyncpg.create_pool(self.url, min_size=1, max_size=1)
        self.db = await self.pool.acquire()

    async def close(self) -> None:
        if self.block is not None:
            await self.rollback()
        await self.pool.release(self.db)
        await self.pool.close()
