"""What a PostgreSQL server can promise about a commit, according to its settings.

This module owns the rules by which acknowledged commits may be lost, and the text of the guarantee.
It knows no connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from oncekey.core.guarantees import ClockClass, Guarantee, Level

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
    synchronous_standbys: bool
    standby: bool
    replicas: int
    identity: bytes = b""  # of the store in this database
    address: str = ""  # where that store is, for messages
    clock: int = 0


def parse_server(row: Sequence[Any]) -> Server:
    return Server(
        version=row[0],
        fsync=row[1] == "on",
        full_page_writes=row[2] == "on",
        synchronous_standbys=bool(row[4].strip()),
        standby=row[5],
        replicas=max(0, row[6] - row[7]),  # a logical replica is never promoted
    )


def parse_settings(text: str) -> Server:
    """The settings as the SQL function settings_1 reports them: without version and identity."""
    fsync, full_page_writes, standbys, standby, replicas, logical = text.split()
    return Server(
        version=0,
        fsync=fsync == "on",
        full_page_writes=full_page_writes == "on",
        synchronous_standbys=standbys == "t",
        standby=standby == "t",
        replicas=max(0, int(replicas) - int(logical)),
    )


def guarantee(server: Server, synchronous_commit: str, failover: str) -> Guarantee:
    """The level that this server supports, and the reason."""
    weakness = _weakness(server, synchronous_commit, failover)
    if weakness:
        return Guarantee(Level.BEST_EFFORT, weakness, ClockClass.SERVER)
    if server.synchronous_standbys and synchronous_commit != "local":
        reason = "every commit is on disk here and on a synchronous standby before it returns"
    else:
        reason = "every commit is on disk before it returns"
    return Guarantee(Level.TRANSACTIONAL, f"PostgreSQL: {reason}", ClockClass.SERVER)


def _weakness(server: Server, synchronous_commit: str, failover: str) -> str:
    if not server.fsync:
        return "fsync is off: a crash of the host may lose or corrupt acknowledged commits"
    if not server.full_page_writes:
        return "full_page_writes is off: a crash of the host may corrupt the tables"
    if synchronous_commit == "off":
        return "synchronous_commit is off: a crash loses the last acknowledged commits"
    local = synchronous_commit == "local" or not server.synchronous_standbys
    if failover == "auto" and server.replicas and local:
        return (
            "an asynchronous standby is attached: promoted after a failure it may lack "
            "acknowledged commits. Set synchronous_standby_names, or failover='never' if no "
            "standby is ever promoted"
        )
    return ""
