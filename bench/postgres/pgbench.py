"""The raw limit: pgbench runs the statements a careful hand would write, and nothing around them.

One script run is one lifecycle: a claim and a fenced finish, each its own commit, with prepared
statements, on a table as wide and as indexed as oncekey's. pgbench is C and has no client to speak
of, so what it reaches is what PostgreSQL gives to callers that do not batch.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.postgres import Postgres

from bench.postgres.load import SECONDS
from oncekey.stores.sql_files import load_queries

JOBS = 2
WARM_UP = 1  # seconds; a new session's first statements are slow

SQL = load_queries("bench.postgres", "raw.sql")
_LIFECYCLE = f"{SQL['claim']} \\gset\n{SQL['finish']};\n"
_LOOK_UP = f"\\set n random(1, 20000)\n{SQL['look_up']};\n"


class Pgbench:
    """Runs a script with a number of clients for a slice of time."""

    def __init__(self, server: Postgres, folder: Path) -> None:
        self._program = server.bin / "pgbench"
        self._folder = folder
        self._url = server.create_database("raw")
        for statement in (SQL["table"], SQL["index"], SQL["fill"], "VACUUM ANALYZE records"):
            server.execute(statement, database="raw")

    def lifecycles(self, clients: int) -> float:
        """Microseconds per lifecycle, wall clock, over all clients."""
        return 1_000_000 / self._rate(_LIFECYCLE, clients)

    def look_ups(self, clients: int) -> float:
        return 1_000_000 / self._rate(_LOOK_UP, clients)

    def _rate(self, script: str, clients: int) -> float:
        """Runs of the script per second, once all clients are connected and warm."""
        path = self._folder / "script.sql"
        path.write_text(script)
        command = [
            str(self._program),
            *("--no-vacuum", "--protocol", "prepared", "--file", str(path)),
            *("--client", str(clients), "--jobs", str(min(JOBS, clients))),
            *("--time", str(WARM_UP + round(SECONDS)), "--progress", "1", self._url),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        each_second = re.findall(r"^progress: [\d.]+ s, ([\d.]+) tps", done.stderr, re.MULTILINE)
        warm = [float(rate) for rate in each_second[WARM_UP:]]
        if done.returncode or not warm:
            raise RuntimeError(f"pgbench failed: {done.stderr[:500]}")
        return sum(warm) / len(warm)


@contextmanager
def pgbench(server: Postgres) -> Iterator[Pgbench]:
    with tempfile.TemporaryDirectory(prefix="oncekey-pgbench-") as folder:
        yield Pgbench(server, Path(folder))
