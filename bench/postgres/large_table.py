"""Fills a store's table with millions of rows, and sweeps it in a process of its own.

`python -m bench.postgres.large_table URL` is that process: it sweeps as `oncekey sweep` does, batch
by batch, and prints what it removed. It is another process because the sweeper usually is one, and
because it would otherwise share an interpreter with the callers that are measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.support.servers.postgres import Postgres

from bench.figures import progress
from oncekey import Once
from oncekey.engine.background.sweeper import pause_after
from oncekey.stores.sql_files import load_queries

CHUNK = 1_000_000
SWEEP_SECONDS_MAX = 240.0
DAYS_LIVE = 0
DAYS_EXPIRED = 10
SQL = load_queries("bench.postgres", "growth.sql")


def make(server: Postgres, database: str, *, live: int, expired: int = 0) -> str:
    """A database with a store's table of this many rows; gives its URL."""
    url = server.create_database(database)
    with Once(url) as once:
        once.get("charge", "none")  # makes the tables
    indexes = server.execute(SQL["indexes"], database=database)
    for is_key, name, _ in indexes:
        how = f"ALTER TABLE oncekey.records DROP CONSTRAINT {name}"
        server.execute(how if is_key else f"DROP INDEX oncekey.{name}", database=database)
    for rows, days in ((expired, DAYS_EXPIRED), (live, DAYS_LIVE)):
        for start in range(0, rows, CHUNK):
            count = min(CHUNK, rows - start)
            server.execute(SQL["fill"], (days, count), database=database)
            progress(f"{database}: {start + count:,} of {rows:,} rows, {days} days old")
    for is_key, name, definition in indexes:
        how = f"ALTER TABLE oncekey.records ADD CONSTRAINT {name} {definition}"
        server.execute(how if is_key else definition, database=database)
    server.execute("VACUUM ANALYZE oncekey.records", database=database)
    server.execute("CHECKPOINT")
    progress(f"{database}: indexed, vacuumed, checkpointed")
    return url


# --- the sweeper ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Swept:
    removed: int
    seconds: float
    bites: list[tuple[float, float]]  # begin and end of each that removed something

    @property
    def per_second(self) -> float:
        return self.removed / self.seconds


class Sweeper:
    """The other process, from here."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def result(self) -> Swept:
        said, _ = self._process.communicate(timeout=SWEEP_SECONDS_MAX)
        if self._process.returncode:
            raise RuntimeError("the sweeper failed")
        return Swept(**json.loads(said))


@contextmanager
def sweeping(url: str, *, most: int, pause: float = 0.0, seconds: float = 0.0) -> Iterator[Sweeper]:
    """Sweeps until nothing is left or `most` were removed; with `pause`, for so many seconds."""
    command = [sys.executable, "-m", "bench.postgres.large_table", url, "--most", str(most)]
    command += ["--pause", str(pause), "--seconds", str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield Sweeper(process)
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--most", type=int, required=True)
    parser.add_argument("--pause", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    removed = 0
    bites = []
    with Once(given.url) as once:
        start = time.perf_counter()
        ends = start + (given.seconds or SWEEP_SECONDS_MAX)
        while removed < given.most and time.perf_counter() < ends:
            began = time.perf_counter()
            count = once.sweep()
            took = time.perf_counter() - began
            if count:
                bites.append((began, began + took))
            removed += count
            if not count and not given.pause:
                break
            # As `oncekey sweep` and the background sweeper do.
            time.sleep(given.pause or pause_after(int(took * 1_000_000)) / 1_000_000)
        seconds = time.perf_counter() - start
    print(json.dumps({"removed": removed, "seconds": seconds, "bites": bites}))


if __name__ == "__main__":
    main()
