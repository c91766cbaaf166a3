"""Callers on PostgreSQL with a connection of every kind, all used in the same way.

A caller has one engine, one connection of its own and a table of orders. Nobody waits for a lock
longer than a moment here: a call that would have to wait fails instead, so every passing test shows
that nothing waits.
"""

from __future__ import annotations

from tests.support.caller_connections.caller import (
    INSERT,
    INSERT_BODY,
    LEASED_BODY,
    MUST_NOT_RUN,
    Body,
    Caller,
    RolledBack,
    resolved,
)
from tests.support.caller_connections.database import (
    RING,
    advisory_locks,
    clear_tables,
    orders,
    query,
)
from tests.support.caller_connections.drivers import (
    AsyncpgCaller,
    AsyncpgPoolCaller,
    AsyncPsycopgCaller,
    ImplicitPsycopgCaller,
    PsycopgCaller,
)
from tests.support.caller_connections.frameworks import (
    AsyncConnectionCaller,
    AsyncConnectionPsycopgCaller,
    AsyncSessionCaller,
    AsyncSessionPsycopgCaller,
    ConnectionCaller,
    DjangoCaller,
    OtherDjangoCaller,
    ScopedSessionCaller,
    SessionCaller,
)

__all__ = [
    "CALLERS",
    "INSERT",
    "INSERT_BODY",
    "LEASED_BODY",
    "MUST_NOT_RUN",
    "RING",
    "Body",
    "Caller",
    "RolledBack",
    "advisory_locks",
    "clear_tables",
    "orders",
    "query",
    "resolved",
]

CALLERS: dict[str, type[Caller]] = {
    "psycopg": PsycopgCaller,
    "psycopg-implicit": ImplicitPsycopgCaller,
    "psycopg-async": AsyncPsycopgCaller,
    "asyncpg": AsyncpgCaller,
    "asyncpg-pool": AsyncpgPoolCaller,
    "sqlalchemy-session": SessionCaller,
    "sqlalchemy-scoped": ScopedSessionCaller,
    "sqlalchemy-connection": ConnectionCaller,
    "sqlalchemy-async-session": AsyncSessionCaller,
    "sqlalchemy-async-session-psycopg": AsyncSessionPsycopgCaller,
    "sqlalchemy-async-connection": AsyncConnectionCaller,
    "sqlalchemy-async-connection-psycopg": AsyncConnectionPsycopgCaller,
    "django": DjangoCaller,
    "django-other": OtherDjangoCaller,
}
