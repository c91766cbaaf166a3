"""One Valkey or Redis node crashes under load: what it acknowledged is there if it may be (I4).

With an append-only file that is fsynced before every reply, nothing is lost. Without the file, and
with a file that is fsynced later, the same tests must find losses, and the guarantee says so
before. A killed process does not lose what it has written to a file, so a loss of power is played:
the file is cut to the length that the server itself had confirmed as fsynced (WAITAOF).
"""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.fault.store_load import LEASE, StoreLoad, lost
from tests.support.servers import require
from tests.support.servers.redis_server import (
    DURABLE,
    RedisServer,
    Settings,
    redis_program,
    valkey_program,
)

from oncekey.core.commands import Claim, Claimed, Done, Finish, Look, Seen
from oncekey.core.guarantees import Level
from oncekey.core.record import State
from oncekey.engine.store_urls import blocking_store

KEYS = 300  # the fewest that are acknowledged between two crashes
CONFIRMED_WITHIN_MS = 60_000
CUT_KEYS = 50
ENDLESS_US = 1_000_000_000


def report(line: str) -> None:
    """Print a line, which `pytest -s` shows."""
    sys.stdout.write(f"\n{line}\n")


def run(server: RedisServer, crashes: int) -> tuple[StoreLoad, list[str]]:
    """Kill the server under load until something is lost; return the load and the losses."""
    with closing(blocking_store(server.url())) as reader:
        with StoreLoad(server.url(), server.url()) as load:
            for _ in range(crashes):
                load.wait_for(KEYS)
                server.kill()
                server.start()
                found = lost(reader, dict(load.acknowledged))
                if found or load.wrong_replies:
                    return load, found
            load.wait_for(KEYS)  # the load continues
        return load, lost(reader, load.acknowledged)


PROGRAMS = {"valkey": valkey_program, "redis": redis_program}


@pytest.mark.parametrize(
    ("name", "crashes"),
    [("valkey", 3), *(pytest.param(name, 20, marks=pytest.mark.soak) for name in PROGRAMS)],
)
def test_i4_a_killed_node_with_a_synced_file_loses_nothing_acknowledged(
    name: str, crashes: int
) -> None:
    with require(lambda: RedisServer(PROGRAMS[name](), settings=DURABLE)) as server:
        load, found = run(server, crashes)
    report(f"{crashes} kills: {len(load.acknowledged)} claims, {len(load.finished)} finishes")
    assert load.wrong_replies == []
    assert found == []
    assert len(load.finished) > crashes * KEYS // 4
    assert load.sync_store.guarantee.level is not Level.BEST_EFFORT
    assert load.async_store.guarantee.level is not Level.BEST_EFFORT


def test_a_killed_node_without_a_file_loses_what_it_acknowledged_and_the_label_said_so() -> None:
    with require(RedisServer) as server:
        load, found = run(server, 1)
    report(f"without a file: {len(found)} of {len(load.acknowledged)} lost")
    assert any(line.startswith("claim") for line in found)
    assert load.sync_store.guarantee.level is Level.BEST_EFFORT
    assert load.async_store.guarantee.level is Level.BEST_EFFORT


# --- a loss of power ------------------------------------------------------------------------------


class PowerSwitch:
    """Cuts the power of one server: its file keeps what the server has confirmed, and no more."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.confirmed = self._length()

    def is_confirmed(self, within_ms: int = 1) -> bool:
        """True if the server confirms that everything so far is fsynced."""
        length = self._length()
        with self.server.client() as client:
            client.set("mark", length)
            local, _ = client.execute_command("WAITAOF", 1, 0, within_ms)
        if local:
            self.confirmed = length
        return bool(local)

    def hold_syncs(self) -> None:
        """Have the server fsync no more: it does not while a child of it saves, which never ends.

        Otherwise the second of everysec may be over just before the power is cut.
        """
        with self.server.client() as client:
            client.config_set("no-appendfsync-on-rewrite", "yes")
            client.config_set("rdb-key-save-delay", ENDLESS_US)
            client.bgsave()

    def cut(self) -> None:
        # What was written since is lost at the latest, and with always nothing is unconfirmed.
        everything = self.is_confirmed()
        self.server.kill()
        if not everything:
            os.truncate(self._file(), self.confirmed)
        self.server.start()

    def _file(self) -> Path:
        return next((self.server.directory / "appendonlydir").glob("*.incr.aof"))

    def _length(self) -> int:
        return self._file().stat().st_size


@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
def test_a_finish_survives_a_loss_of_power_only_if_the_file_is_always_synced(policy: str) -> None:
    """The claims are on the disk before if the server ever confirms it, so finishes are at risk."""
    settings: Settings = {"appendonly": "yes", "appendfsync": policy}
    # Valkey 9.1 confirms by WAITAOF at once with everysec too, so only Redis can be asked.
    with require(lambda: RedisServer(redis_program(), settings=settings)) as server:
        store = blocking_store(server.url())
        claims = [claim() for _ in range(CUT_KEYS)]
        switch = PowerSwitch(server)
        fences = [reply.fence for reply in store.apply(claims) if isinstance(reply, Claimed)]
        if policy != "no":
            assert switch.is_confirmed(within_ms=CONFIRMED_WITHIN_MS)
        if policy == "everysec":
            switch.hold_syncs()
        pairs = zip(claims, fences, strict=True)
        finishes = [Finish(one.id, one.owner, fence, State.SUCCEEDED, b"1") for one, fence in pairs]
        assert store.apply(finishes) == [Done()] * CUT_KEYS
        switch.cut()
        seen = store.apply([Look(one.id) for one in claims])
        kept = [reply.record for reply in seen if isinstance(reply, Seen)]
        states = {record.state if record is not None else None for record in kept}
        level = store.guarantee.level
        store.close()
    report(f"appendfsync {policy}: {states} after a loss of power; the label is {level.label}")
    expected = {"always": State.SUCCEEDED, "everysec": State.PENDING, "no": None}[policy]
    assert states == {expected}
    assert (level is Level.BEST_EFFORT) == (policy != "always")


def claim() -> Claim:
    return Claim(os.urandom(16), os.urandom(16), b"\x01f", LEASE, LEASE, 0, retry_safe=False)
