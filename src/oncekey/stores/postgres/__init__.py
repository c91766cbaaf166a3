"""`postgresql://user@host/database`: the production store.

    postgresql://...?schema=oncekey&claim=insert&statement_timeout=5s    (see Options)

Claims are made in batches, one round trip and one commit each; `in_transaction` commits your rows
and the key's record together. What is not an option of ours in the URL is the driver's. Blocking
stores use psycopg, asyncio stores asyncpg; neither is imported before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncekey.core.errors import ConfigurationError
from oncekey.stores.inspection import Inspection
from oncekey.stores.postgres import schema_inspection
from oncekey.stores.postgres.options import Options, split_url
from oncekey.stores.postgres.transaction_retry import run_transaction, run_transaction_async

if TYPE_CHECKING:
    from oncekey.stores.postgres.asyncpg_store import AsyncPostgresStore
    from oncekey.stores.postgres.psycopg_store import PostgresStore

__all__ = [
    "AsyncPostgresStore",
    "Options",
    "PostgresStore",
    "inspect",
    "migrate",
    "migration_script",
    "open_async",
    "open_blocking",
    "run_transaction",
    "run_transaction_async",
]

_NEEDS = "pip install 'oncekey[postgres]'"


def open_blocking(url: str) -> PostgresStore:
    address, options = split_url(url)
    return _blocking()(address, **_given(options))


def open_async(url: str) -> AsyncPostgresStore:
    address, options = split_url(url)
    return _async()(address, **_given(options))


def inspect(url: str) -> Inspection:
    """What is there, in a read-only transaction."""
    return schema_inspection.inspect(url)


def migrate(url: str) -> None:
    """Make the tables or bring them up to date, also where the URL says migrate=false."""
    address, options = schema_inspection.read_url(url)
    store = _blocking()(address, **{**_given(options), "migrate": True})
    try:
        store.prepare()
    finally:
        store.close()


def migration_script(url: str) -> str:
    """The SQL of every step of this release, for this URL's schema and retention."""
    return schema_inspection.migration_script(url)


def __getattr__(name: str) -> Any:
    """The stores, imported when they are asked for: each needs its driver."""
    if name == "PostgresStore":
        return _blocking()
    if name == "AsyncPostgresStore":
        return _async()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _blocking() -> type[PostgresStore]:
    try:
        from oncekey.stores.postgres.psycopg_store import PostgresStore
    except ImportError as error:
        raise ConfigurationError(
            f"the blocking PostgreSQL store needs psycopg and psycopg-pool: {_NEEDS}"
        ) from error
    return PostgresStore


def _async() -> type[AsyncPostgresStore]:
    try:
        from oncekey.stores.postgres.asyncpg_store import AsyncPostgresStore
    except ImportError as error:
        raise ConfigurationError(f"the asyncio PostgreSQL store needs asyncpg: {_NEEDS}") from error
    return AsyncPostgresStore


def _given(options: Options) -> dict[str, Any]:
    return {name: getattr(options, name) for name in Options.__dataclass_fields__}
