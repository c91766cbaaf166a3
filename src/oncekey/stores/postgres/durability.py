"""What a PostgreSQL server can promise, from its settings.

Owns the rules by which acknowledged commits may be lost, and the words for them. Knows no
connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from oncekey.core.guarantees import Guarantee, Level

# What we ask of every commit of ours. remote_apply promises no more than on, only later.
SYNCHRONOUS_COMMIT: Final = ("on", "remote_apply", "local", "off")
FAILOVER: Final = ("auto", "never")
# The function of the server that warns of a commit no standby has confirmed; never translated.
UNREPLICATED: Final = "SyncRepWaitForLSN"

UNSEEN: Final = Guarantee(
    Level.TRANSACTIONAL,
    "not connected yet; the server's settings are checked before the first operation",
)


class Server(NamedTuple):
    """What the server says of itself."""

    version: int
    fsync: bool
    full_page_writes: bool
    synchronous_standbys: bool
    standby: bool
    replicas: int
    identity: bytes = b""  # of the store in it, and where that is
    address: str = ""
    clock: int = 0


def server_of(row: Sequence[Any]) -> Server:
    return Server(
        version=row[0],
        fsync=row[1] == "on",
        full_page_writes=row[2] == "on",
        synchronous_standbys=bool(row[4].strip()),
        standby=row[5],
        replicas=max(0, row[6] - row[7]),  # who reads changes logically takes nothing over
    )


def settings_of(text: str) -> Server:
    """The same as settings_1 tells it, on the way: without version and identity."""
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
    """The level this server supports, and why it is no higher."""
    weak = _weakness(server, synchronous_commit, failover)
    if weak:
        return Guarantee(Level.BEST_EFFORT, weak)
    if server.synchronous_standbys and synchronous_commit != "local":
        reason = "every commit is on disk here and on a synchronous standby before it returns"
    else:
        reason = "every commit is on disk before it returns"
    return Guarantee(Level.TRANSACTIONAL, f"PostgreSQL: {reason}")


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
