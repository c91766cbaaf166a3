"""What a PostgreSQL server can promise about a commit, according to its settings.

This module owns the rules by which acknowledged commits may be lost, and the text of the guarantee.
It knows no connection.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from oncekey.core.guarantees import ClockClass, Guarantee, Level
from oncekey.stores.postgres.standbys import Standbys, parse_names, walsender
from oncekey.stores.replica_sightings import (
    NOTHING,
    Forgotten,
    Remembered,
    Replica,
    ReplicaMemory,
    Sighting,
    forget_hint,
    unpack_replica,
)

# What our commits wait for. remote_apply promises no more than on, and takes longer.
SYNCHRONOUS_COMMIT: Final = ("on", "remote_apply", "local", "off")
FAILOVER: Final = ("auto", "never")
# The server's function that warns if no standby has confirmed a commit. Its name is not translated.
SYNC_REPLICATION_WAIT: Final = "SyncRepWaitForLSN"

NOT_CONNECTED: Final = Guarantee(
    Level.TRANSACTIONAL,
    "not connected yet; the server's settings are checked before the first operation",
    ClockClass.SERVER,
)


class Server(NamedTuple):
    """The server's settings and state, as it reports them."""

    version: int
    fsync: bool
    full_page_writes: bool
    standby: bool
    standbys: Standbys = Standbys()
    remembered: Remembered = NOTHING  # the standbys that were seen before
    identity: bytes = b""  # of the store in this database
    address: str = ""  # where that store is, for messages
    clock: int = 0

    @property
    def synchronous_standbys(self) -> bool:
        """True if commits wait for standbys."""
        return self.standbys.names.wanted > 0

    def seen(self) -> list[Replica]:
        """The standbys that are attached, and those that left a slot; none if the server is a
        standby itself, where nothing can be written down."""
        return [] if self.standby else self.standbys.seen(self.remembered.sightings)


def parse_server(row: Sequence[Any]) -> Server:
    """The server before oncekey's tables were looked at, which tell of standbys seen earlier."""
    version, fsync, full_page_writes, standby, names, attached, idle_slots = row
    return Server(
        version=version,
        fsync=fsync == "on",
        full_page_writes=full_page_writes == "on",
        standby=standby,
        standbys=_standbys(names, json.loads(attached), json.loads(idle_slots)),
    )


def _standbys(names: str, attached: list[Any] | None, idle_slots: list[str] | None) -> Standbys:
    return Standbys(
        parse_names(names),
        tuple(walsender(*each) for each in attached or ()),
        tuple(idle_slots or ()),
    )


def parse_settings(text: str, version: int = 0) -> Server:
    """The settings as the SQL function settings_2 reports them."""
    told = json.loads(text)
    return Server(
        version=version,
        fsync=told["fsync"] == "on",
        full_page_writes=told["full_page_writes"] == "on",
        standby=told["standby"],
        standbys=_standbys(told["synchronous_standby_names"], told["attached"], told["idle_slots"]),
        remembered=Remembered(
            told["now"],
            tuple(
                Sighting(unpack_replica(value), first, last)
                for value, first, last in told["sightings"] or ()
            ),
            tuple(Forgotten(*each) for each in told["forgotten"] or ()),
        ),
    )


def guarantee(
    server: Server,
    synchronous_commit: str,
    failover: str,
    sightings: Sequence[Sighting] | None = None,
) -> Guarantee:
    """The level that this server supports, and the reason. `sightings` are the standbys that count,
    if somebody keeps more of them in mind than the server does."""
    if sightings is None:
        sightings = ReplicaMemory().observe(server.seen(), server.remembered)
    weakness = _weakness(server, synchronous_commit, failover, sightings)
    if weakness:
        return Guarantee(Level.BEST_EFFORT, weakness, ClockClass.SERVER)
    if server.synchronous_standbys and synchronous_commit != "local":
        reason = "every commit is on disk here and on a synchronous standby before it returns"
    else:
        reason = "every commit is on disk before it returns"
    return Guarantee(Level.TRANSACTIONAL, f"PostgreSQL: {reason}", ClockClass.SERVER)


def _weakness(
    server: Server, synchronous_commit: str, failover: str, sightings: Sequence[Sighting]
) -> str:
    if not server.fsync:
        return "fsync is off: a crash of the host may lose or corrupt acknowledged commits"
    if not server.full_page_writes:
        return "full_page_writes is off: a crash of the host may corrupt the tables"
    if synchronous_commit == "off":
        return "synchronous_commit is off: a crash loses the last acknowledged commits"
    return "" if failover == "never" else standby_fault(server, synchronous_commit, sightings)


def standby_fault(server: Server, synchronous_commit: str, sightings: Sequence[Sighting]) -> str:
    """Which standbys may lack acknowledged commits when they are promoted, and what to do about it;
    empty if none."""
    standbys = server.standbys
    if synchronous_commit == "local":
        standbys = standbys._replace(names=parse_names(""))
    lacking = standbys.lacking(sightings)
    if not lacking:
        return ""
    attached = [str(one.replica) for one in lacking if standbys.is_attached(one)]
    if attached:
        return (
            f"an asynchronous standby is attached, {', '.join(attached)}: promoted after a failure "
            "it may lack acknowledged commits. Set synchronous_standby_names so that every commit "
            "waits for it, or failover='never' if no such standby is ever promoted"
        )
    return (
        f"an asynchronous standby was attached, {'; '.join(map(str, lacking))}: it may still be "
        f"promoted, and lacks acknowledged commits. If it is gone for good, say so: "
        f"{forget_hint(lacking[0].name)}; or set failover='never' if no such standby is ever "
        "promoted"
    )
