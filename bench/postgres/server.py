"""The one server every contestant meets: PostgreSQL with its default durability.

`fsync` and `synchronous_commit` stay on. What is set only keeps checkpoints out of the slices and
lets every contestant have its connections.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.postgres import Postgres

SETTINGS: dict[str, str | int | bool] = {
    "shared_buffers": "256MB",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "max_connections": 400,
}
# What "default durability" means; a server that says otherwise is not measured.
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}


@contextmanager
def started() -> Iterator[Postgres]:
    with Postgres(settings=SETTINGS) as server:
        for name, wanted in DURABLE.items():
            ((value,),) = server.execute(f"SHOW {name}")
            if value != wanted:
                raise RuntimeError(f"{name} is {value}, not {wanted}")
        yield server


def version(server: Postgres) -> str:
    ((text,),) = server.execute("SHOW server_version")
    return str(text)


def wal_position(server: Postgres) -> int:
    """How many bytes of WAL were written since the server was made."""
    ((position,),) = server.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
    return int(position)
