"""The checks of `oncekey doctor` on oncekey's own keys in Redis or Valkey.

This module owns what can be wrong with them: a prefix under which there is nothing, records that
nobody removes. `checkup` at its end puts all checks of a Redis store together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from oncekey.core.record import State
from oncekey.core.search import NEWEST, PAGE_LIMIT_MAX, Query
from oncekey.stores.inspection import (
    OVERDUE_MAX,
    RUNS_MAX,
    SWEEP_LATE_US,
    Check,
    Checkup,
    Finding,
    ObservedRun,
    overdue_text,
)
from oncekey.stores.redis import server_checks
from oncekey.stores.redis.checkup_session import CheckupSession, checkup_session, read_url
from oncekey.stores.redis.durability import refusal
from oncekey.stores.redis.keyspace import BUCKETS, Keyspace
from oncekey.stores.redis.options import Address, Options

if TYPE_CHECKING:
    from oncekey.core.store import Store

RECORDS: Final = Check(
    "redis.records",
    "how many records there are under the URL's prefix",
    "under another prefix, or in another database, every key is fresh",
    "check prefix= and the number of the database in the URL",
)
SWEEPER: Final = Check(
    "redis.sweeper",
    "whether the index entries of records that nothing needs any more are removed",
    "outcomes expire by themselves, but their index entries and past generations do not: memory "
    "grows without bound",
    "give the application sweep_every=, or run `oncekey sweep` from cron",
)
LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
_ENDS: Final = (State.SUCCEEDED, State.FAILED)
CHECKS: Final = (
    *server_checks.SERVER_CHECKS, *server_checks.TOPOLOGY_CHECKS, RECORDS, SWEEPER
)  # fmt: skip


def _records(session: CheckupSession) -> Finding:
    count, keys = session.count_records(), session.count_keys()
    where = f"under the prefix {session.options.prefix!r}, {session.name}"
    if count or not keys:
        return RECORDS.ok(f"{count:,} {where}")
    return RECORDS.info(f"none {where}, beside {keys:,} keys of others")


def _sweeper(session: CheckupSession) -> Finding:
    keyspace = Keyspace(session.options.prefix)
    now = session.nodes[0].clock[0]
    indexes = [
        (bucket, keyspace.index(name, bucket))
        for name in ("due", "past")
        for bucket in range(BUCKETS)
    ]
    late = now - SWEEP_LATE_US
    count = sum(session.ask([(n, ("ZCOUNT", key, "-inf", late)) for n, key in indexes]))
    if not count:
        return SWEEPER.ok("nothing is overdue by more than a day")
    first = session.ask([(n, ("ZRANGE", key, 0, 0, "WITHSCORES")) for n, key in indexes])
    oldest = min(float(entry[1]) for entry in first if entry)
    return SWEEPER.warning(overdue_text(min(count, OVERDUE_MAX + 1), int(now - oldest)))


def _topology(session: CheckupSession) -> Iterator[Finding]:
    address = session.address
    yield server_checks.failovers(session.nodes, session.options.failover, session.sightings)
    if session.cluster is not None:
        yield server_checks.cluster_state(session.cluster)
    elif any(node.info.get("cluster_enabled") == "1" for node in session.nodes):
        yield server_checks.cluster_by_address()
    else:
        yield server_checks.CLUSTER_STATE.ok("no Cluster")
    if session.sentinel is None:
        yield server_checks.SENTINELS.ok("none in the URL")
    else:
        others = int(session.sentinel.get("num-other-sentinels", "0"))
        quorum = int(session.sentinel.get("quorum", "0"))
        yield server_checks.sentinels(others + 1, session.sentinel.get("flags", ""), quorum)
    yield server_checks.tls(
        is_encrypted="ssl" in str(address.settings.get("connection_class", "")).lower(),
        is_verified=address.settings.get("ssl_cert_reqs", "required") == "required",
        is_local=all(node.host in LOCAL_HOSTS for node in address.nodes),
    )


def observed_runs(store: Store) -> list[ObservedRun]:
    """The first attempts among the newest records that have ended."""
    found: list[ObservedRun] = []
    query, after, looked_at = Query(expired=True), NEWEST, 0
    while looked_at < RUNS_MAX:
        page = store.search(query, PAGE_LIMIT_MAX, after)
        looked_at += len(page.records)
        found += [
            ObservedRun(
                record.operation,
                record.finished_at - record.created_at,
                record.lease_until - record.finished_at,
                record.keep,
            )
            for record in page.records
            if record.state in _ENDS and record.attempt == 1
        ]
        if page.next is None or not page.records:
            break
        after = page.next
    return found


# --- everything -----------------------------------------------------------------------------------


def checkup(url: str, open_store: Callable[[str], Store]) -> Checkup:
    """Check servers and keys. StoreUnavailable if the servers do not answer."""
    with checkup_session(url) as session:
        findings = [*server_checks.server_findings(session.nodes), *_topology(session)]
        if server_checks.cluster_by_address() in findings:
            return Checkup(findings, [])  # the keys of the other nodes cannot be read from here
        findings += [_records(session), _sweeper(session)]
        if refusal(session.server) or session.server.role == "replica":
            return Checkup(findings, [])  # a store there would not start
    with closing(open_store(url)) as store:
        return Checkup(findings, observed_runs(store))


def is_same_store(url: str, store: object) -> bool | None:
    """Whether a store object has its records under the prefix of this URL. None if only the hosts
    differ, as the same servers can be reached in several ways, or if it was given a client."""
    address, options = read_url(url)
    theirs: Any = getattr(store, "_options", None)
    if not isinstance(theirs, Options):
        return False
    if theirs.prefix != options.prefix:
        return False
    other: Any = getattr(getattr(store, "_connections", None), "_address", None)
    if not isinstance(other, Address):
        return None
    if other.settings.get("db", 0) != address.settings.get("db", 0):
        return False
    same = (other.mode, other.service, set(other.nodes)) == (
        address.mode, address.service, set(address.nodes),
    )  # fmt: skip
    return True if same else None
