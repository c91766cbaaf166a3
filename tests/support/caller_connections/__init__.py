"""Shops on PostgreSQL: callers with a connection of every kind, all used alike.

A shop has one engine and one connection of its own, and a table of orders. Nobody waits for a lock
here longer than a moment: whoever had to is refused, so "at once" is checked by construction.
"""

from __future__ import annotations

from tests.support.caller_connections.base import (
    INSERT,
    LEASED,
    NEVER,
    TEA,
    Order,
    RolledBack,
    Shop,
    done,
)
from tests.support.caller_connections.database import RING, empty, locks, rows, watch
from tests.support.caller_connections.drivers import (
    AsyncpgShop,
    AsyncPsycopgShop,
    ImplicitShop,
    LentShop,
    PsycopgShop,
)
from tests.support.caller_connections.frameworks import (
    AsyncCorePsycopgShop,
    AsyncCoreShop,
    AsyncSessionPsycopgShop,
    AsyncSessionShop,
    CoreShop,
    DjangoShop,
    OtherDjangoShop,
    ScopedShop,
    SessionShop,
)

__all__ = [
    "INSERT",
    "LEASED",
    "NEVER",
    "RING",
    "SHOPS",
    "TEA",
    "Order",
    "RolledBack",
    "Shop",
    "done",
    "empty",
    "locks",
    "rows",
    "watch",
]

SHOPS: dict[str, type[Shop]] = {
    "psycopg": PsycopgShop,
    "psycopg-implicit": ImplicitShop,
    "psycopg-async": AsyncPsycopgShop,
    "asyncpg": AsyncpgShop,
    "asyncpg-pool": LentShop,
    "sqlalchemy-session": SessionShop,
    "sqlalchemy-scoped": ScopedShop,
    "sqlalchemy-connection": CoreShop,
    "sqlalchemy-async-session": AsyncSessionShop,
    "sqlalchemy-async-session-psycopg": AsyncSessionPsycopgShop,
    "sqlalchemy-async-connection": AsyncCoreShop,
    "sqlalchemy-async-connection-psycopg": AsyncCorePsycopgShop,
    "django": DjangoShop,
    "django-other": OtherDjangoShop,
}
