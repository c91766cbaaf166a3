"""Real servers for tests and benchmarks, started on the loopback and gone when the run is.

`Postgres`, `PgBouncer` in front of one, and `Proxy`, which breaks connections on demand; `Uvicorn`,
`Hypercorn`, `Granian` and `Gunicorn` for apps. A server that cannot be had here raises
`ServerMissing`.
"""

from __future__ import annotations

from tests.support.servers.http_servers import Granian, Gunicorn, HttpServer, Hypercorn, Uvicorn
from tests.support.servers.installations import Installation, find_postgres, pick_postgres
from tests.support.servers.pgbouncer import PgBouncer
from tests.support.servers.postgres import Postgres
from tests.support.servers.processes import ServerFailed, ServerMissing
from tests.support.servers.proxy import Proxy
from tests.support.servers.requirements import require

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
