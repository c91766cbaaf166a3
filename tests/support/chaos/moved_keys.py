"""Keys that are on their way to another store: the old one on the database, the new one on Valkey.

The copy is complete from the start, since both are empty. So one worker may know both stores while
another one knows the new one alone: the time of a move in which a setting of the new store counts
most, and in which the old one still has to hear of everything.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

from tests.support.servers import RedisServer
from tests.support.servers.processes import wait_until
from tests.support.servers.redis_server import DURABLE

from oncekey.core.identity import Identities
from oncekey.engine.store_urls import blocking_store
from oncekey.stores.move import DualStore

_SCHEMA: Final = "moving"  # in the database of the other keys
_INTERVAL: Final = "1s"


class MovedKeys:
    """The two stores, and what is done to the new one: `with MovedKeys(...) as moved:`."""

    def __init__(self, database: str, options: str) -> None:
        self.server = RedisServer(settings=DURABLE)
        self._old = f"{database}&{options}&schema={_SCHEMA}"

    def __enter__(self) -> MovedKeys:
        self.server.start()
        old = blocking_store(self._old)
        with closing(DualStore(old, blocking_store(self.new))) as both:
            both.bind(Identities(None).check_value())
            both.finish_copy()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.close()

    @property
    def new(self) -> str:
        return f"{self.server.url()}?guarantee_interval={_INTERVAL}"

    @property
    def urls(self) -> tuple[str, str]:
        """The stores of a worker that knows both, and of one that knows the new one alone."""
        return f"moving://{self._old},{self.new}", self.new

    # --- what the nemesis does ------------------------------------------------------------------

    def stop_appending(self) -> None:
        """Switch the append-only file off, as somebody does who finds the server too slow."""
        self.server.configure({"appendonly": "no"})

    def keep_what_there_is(self) -> None:
        """Write a snapshot: a crash will lose what comes after it, and nothing else."""
        self.server.execute("SAVE")

    def crash(self) -> None:
        """Crash and come back with the snapshot, then append again."""
        self.server.kill()
        self.server.start()
        self.server.configure({"appendonly": "yes"})
        wait_until(self._appends, "the server has written its append-only file")

    def _appends(self) -> bool:
        told = self.server.info("persistence")
        rewriting = (told["aof_rewrite_in_progress"], told["aof_rewrite_scheduled"])
        return told["aof_enabled"] == "1" and rewriting == ("0", "0")

    def fill(self) -> None:
        self.server.configure({"maxmemory": 1})

    def make_room(self) -> None:
        self.server.configure({"maxmemory": 0})
