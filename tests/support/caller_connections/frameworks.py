"""Callers with a connection of a framework: SQLAlchemy or Django."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import django
import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from tests.support.caller_connections.caller import Caller, RolledBack
from tests.support.caller_connections.database import database


class SessionCaller(Caller):
    is_async = False
    engine: Any = None

    def make_engine(self, **options: Any) -> Any:
        url = self.url.replace("postgresql", "postgresql+psycopg")
        return create_engine(url, pool_size=1, **options)

    async def open(self) -> None:
        self.engine = self.make_engine()
        self.db = Session(self.engine)

    async def close(self) -> None:
        self.db.close()
        self.engine.dispose()

    async def begin(self) -> None:
        self.db.begin()

    async def commit(self) -> None:
        self.db.commit()

    async def rollback(self) -> None:
        self.db.rollback()

    def send(self, sql: str) -> Any:
        return self.db.execute(text(sql))

    def nested(self) -> Any:
        return self.db.begin_nested()


class ScopedSessionCaller(SessionCaller):
    async def open(self) -> None:
        self.engine = self.make_engine()
        self.db = scoped_session(sessionmaker(self.engine))

    async def close(self) -> None:
        self.db.remove()
        self.engine.dispose()


class ConnectionCaller(SessionCaller):
    """An SQLAlchemy Connection."""

    async def open(self) -> None:
        self.engine = self.make_engine()
        self.db = self.engine.connect()


class AsyncSessionCaller(Caller):
    is_async = True
    driver: ClassVar[str] = "asyncpg"
    engine: Any = None

    def make_engine(self, **options: Any) -> Any:
        url = self.url.replace("postgresql", f"postgresql+{self.driver}")
        return create_async_engine(url, pool_size=1, **options)

    async def open(self) -> None:
        self.engine = self.make_engine()
        self.db = AsyncSession(self.engine)

    async def close(self) -> None:
        await self.db.close()
        await self.engine.dispose()

    async def begin(self) -> None:
        await self.db.begin()

    async def commit(self) -> None:
        await self.db.commit()

    async def rollback(self) -> None:
        await self.db.rollback()

    def send(self, sql: str) -> Any:
        return self.db.execute(text(sql))

    def nested(self) -> Any:
        return self.db.begin_nested()


class AsyncSessionPsycopgCaller(AsyncSessionCaller):
    driver = "psycopg"


class AsyncConnectionCaller(AsyncSessionCaller):
    """An SQLAlchemy AsyncConnection."""

    async def open(self) -> None:
        self.engine = self.make_engine()
        self.db = await self.engine.connect()


class AsyncConnectionPsycopgCaller(AsyncConnectionCaller):
    driver = "psycopg"


# --- Django -----------------------------------------------------------------------------------


@functools.cache
def django_databases() -> None:
    """Set up Django with the callers' database under two aliases."""
    from django.conf import settings
    from django.db import connections

    parts = psycopg.conninfo.conninfo_to_dict(database())
    one = {
        "ENGINE": "django.db.backends.postgresql",
        **{name.upper(): parts[name] for name in ("user", "host", "port")},
        "NAME": parts["dbname"],
    }
    if not settings.configured:
        settings.configure(DATABASES={"default": {}})
        django.setup()
    for alias in ("default", "other"):
        connections.settings[alias] = connections.configure_settings({"default": dict(one)})[
            "default"
        ]


class DjangoCaller(Caller):
    is_async = False
    alias: ClassVar[str] = "default"
    block: Any = None

    async def open(self) -> None:
        django_databases()
        from django.db import connection

        self.db = connection

    async def close(self) -> None:
        if self.block is not None:
            await self.rollback()
        self.db.close()

    async def begin(self) -> None:
        self.block = self.nested()
        self.block.__enter__()

    async def commit(self) -> None:
        block, self.block = self.block, None
        block.__exit__(None, None, None)

    async def rollback(self) -> None:
        block, self.block = self.block, None
        block.__exit__(RolledBack, RolledBack(), None)

    def send(self, sql: str) -> Any:
        with self.db.cursor() as cursor:
            cursor.execute(sql)

    def nested(self) -> Any:
        from django.db import transaction

        return transaction.atomic(using=self.alias)


class OtherDjangoCaller(DjangoCaller):
    alias = "other"

    async def open(self) -> None:
        django_databases()
        from django.db import connections

        self.db = connections["other"]
