"""What the store reads of its server and writes down about standbys, as generators of statements.

This module must not know drivers, and judges nothing; see durability.py and standbys.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from oncekey.stores.postgres.durability import Server, parse_settings
from oncekey.stores.postgres.statements import Statement, Statements
from oncekey.stores.replica_sightings import Remembered, Replica, forgotten_in, pack_replica


def read_server() -> Statements[Server]:
    """The server's current settings and state, and the standbys that were seen."""
    return parse_settings((yield Statement("settings"))[0][0])


def read_remembered() -> Statements[Remembered]:
    """The standbys that were seen, and those that were forgotten."""
    return (yield from read_server()).remembered


def remember(replicas: Sequence[Replica]) -> Statements[None]:
    """Write down which standbys are seen."""
    names = [replica.name for replica in replicas]
    yield Statement("remember_replicas", (names, list(map(pack_replica, replicas))))


def forget(name: str, *, by: str, why: str) -> Statements[None]:
    """Declare a standby gone. ConfigurationError if none of this name was seen."""
    while True:
        remembered = yield from read_remembered()
        sighting, note = forgotten_in(remembered, name, by=by, why=why)
        if (yield Statement("forget_replica", (name, sighting.last_seen, note.encode()))):
            return
