"""The load of store_load.py on PostgreSQL, and what its server has lost, by its own tables."""

from __future__ import annotations

from typing import Any

from tests.fault.store_load import LEASE, Acknowledged, StoreLoad
from tests.support.servers import Postgres

from oncekey.core.record import State
from oncekey.stores.postgres import AsyncPostgresStore, PostgresStore

__all__ = ["LEASE", "Acknowledged", "Load", "lost"]


class Load(StoreLoad):
    """Sync and async callers on one schema."""

    def __init__(self, url: str, *, threads: int = 4, tasks: int = 6, **options: Any) -> None:
        stores = PostgresStore(url, **options), AsyncPostgresStore(url, **options)
        super().__init__(*stores, threads=threads, tasks=tasks)


def lost(
    server: Postgres, acknowledged: dict[bytes, Acknowledged], schema: str = "oncekey"
) -> list[str]:
    """Return a line for every acknowledged claim or finish that the server does not have."""
    query = f"SELECT uuid_send(id), uuid_send(owner), fence, state, body FROM {schema}.records"  # noqa: S608
    found = {bytes(row[0]): row[1:] for row in server.execute(query)}
    wrong = []
    for id, one in acknowledged.items():
        owner, fence, state, body = found.get(id, (b"", 0, 0, b""))
        if (bytes(owner), fence) != (one.owner, one.fence):
            wrong.append(f"claim {id.hex()} is gone")
        elif one.body is not None and (state, bytes(body)) != (State.SUCCEEDED, one.body):
            wrong.append(f"finish {id.hex()} is gone")
    return wrong
