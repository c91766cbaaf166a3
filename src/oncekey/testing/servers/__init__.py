"""Real servers for tests and benchmarks, started on the loopback and gone when the run is.

`Postgres`, `PgBouncer` in front of one, and `Proxy`, which breaks connections on demand; `Uvicorn`,
`Hypercorn`, `Granian` and `Gunicorn` for apps. A server that cannot be had here raises
`ServerMissing`.
"""

from __future__ import annotations

from oncekey.testing.servers.fixtures import require
from oncekey.testing.servers.http import Granian, Gunicorn, HttpServer, Hypercorn, Uvicorn
from oncekey.testing.servers.installations import Installation, find_postgres, pick_postgres
from oncekey.testing.servers.pgbouncer import PgBouncer
from oncekey.testing.servers.postgres import Postgres
from oncekey.testing.servers.processes import ServerFailed, ServerMissing
from oncekey.testing.servers.proxy import Proxy

__all__ = [
    "Granian",
    "Gunicorn",
    "HttpServer",
    "Hypercorn",
    "Installation",
    "PgBouncer",
    "Postgres",
    "Proxy",
    "ServerFailed",
    "ServerMissing",
    "Uvicorn",
    "find_postgres",
    "pick_postgres",
    "require",
]
