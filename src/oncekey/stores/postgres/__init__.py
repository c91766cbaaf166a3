"""`postgresql://user@host/database`: the production store.

    postgresql://...?schema=oncekey&claim=insert&statement_timeout=5s    (see Options)

Claims are made in batches of one round trip and one commit; `in_transaction` commits your rows and
the key's record together. Parameters of the URL that are not our options are passed to the driver.
Sync stores use psycopg and async stores use asyncpg; neither is imported before it is needed.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from oncekey.core.errors import ConfigurationError
from oncekey.stores.inspection import Checkup, Inspection
from oncekey.stores.postgres import outbox_program, schema_inspection, table_checks
from oncekey.stores.postgres.options import Options, split_url
from oncekey.stores.postgres.table_checks import CHECKS
from oncekey.stores.postgres.transaction_retry import run_transaction, run_transaction_async
from oncekey.stores.replica_sightings import Remembered

if TYPE_CHECKING:
    from oncekey.stores.postgres.asyncpg_store import AsyncPostgresStore
    from oncekey.stores.postgres.psycopg_store import PostgresStore

__all__ = [
    "CHECKS",
    "AsyncPostgresStore",
    "Options",
    "PostgresStore",
    "checkup",
    "create_outbox",
    "forget_replica",
    "inspect",
    "is_same_store",
    "migrate",
    "migration_script",
    "open_async",
    "open_blocking",
    "outbox_script",
    "replicas",
    "run_transaction",
    "run_transaction_async",
]

_NEEDS = "pip install 'oncekey[postgres]'"


def open_blocking(url: str) -> PostgresStore:
    address, options = split_url(url)
    return _sync_store()(address, **_as_dict(options))


def open_async(url: str) -> AsyncPostgresStore:
    address, options = split_url(url)
    return _async_store()(address, **_as_dict(options))


def inspect(url: str) -> Inspection:
    """Read what is in the database, in a read-only transaction."""
    return schema_inspection.inspect(url)


def migrate(url: str) -> None:
    """Create the tables or bring them up to date, even if the URL says migrate=false."""
    with closing(_migrating_store(url)) as store:
        store.prepare()


def create_outbox(url: str) -> None:
    """Create the table of the outbox or bring it up to date; also the store's tables."""
    with closing(_migrating_store(url)) as store:
        store.create_outbox()


def _migrating_store(url: str) -> PostgresStore:
    address, options = schema_inspection.read_url(url)
    return _sync_store()(address, **{**_as_dict(options), "migrate": True})


def migration_script(url: str) -> str:
    """The SQL of all migrations of this release, for this URL's schema and retention."""
    return schema_inspection.migration_script(url)


def outbox_script(url: str) -> str:
    """The SQL that makes the table of the outbox, for this URL's schema."""
    address, options = schema_inspection.read_url(url)
    schema_inspection.parse_address(address)
    return outbox_program.creation_script(options.layout)


def replicas(url: str) -> Remembered:
    """The standbys that were seen, and those that were forgotten."""
    with closing(open_blocking(url)) as store:
        return store.replicas()


def forget_replica(url: str, name: str, *, by: str, why: str) -> None:
    """Declare one of the standbys gone for good: it lowers the guarantee no more."""
    with closing(open_blocking(url)) as store:
        store.forget_replica(name, by=by, why=why)


def checkup(url: str) -> Checkup:
    """Check the health of the server and of the tables, read-only."""
    return table_checks.checkup(url)


def is_same_store(url: str, store: object) -> bool | None:
    """Whether a store object has its records where this URL says."""
    return table_checks.is_same_store(url, store)


def __getattr__(name: str) -> Any:
    """The store classes, imported on first access, because each needs its driver."""
    if name == "PostgresStore":
        return _sync_store()
    if name == "AsyncPostgresStore":
        return _async_store()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _sync_store() -> type[PostgresStore]:
    try:
        from oncekey.stores.postgres.psycopg_store import PostgresStore
    except ImportError as error:
        raise ConfigurationError(
            f"the blocking PostgreSQL store needs psycopg and psycopg-pool: {_NEEDS}"
        ) from error
    return PostgresStore


def _async_store() -> type[AsyncPostgresStore]:
    try:
        from oncekey.stores.postgres.asyncpg_store import AsyncPostgresStore
    except ImportError as error:
        raise ConfigurationError(f"the asyncio PostgreSQL store needs asyncpg: {_NEEDS}") from error
    return AsyncPostgresStore


def _as_dict(options: Options) -> dict[str, Any]:
    return {name: getattr(options, name) for name in Options.__dataclass_fields__}
