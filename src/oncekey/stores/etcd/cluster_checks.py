"""What the command line reads of an etcd cluster and of a prefix: the functions of
oncekey.stores.inspection, and the checks of `oncekey doctor`, which read and create nothing.

etcd has no tables, so a store's only step is its format. This module owns what makes a cluster
unsafe, or stops it one day: members that are away, a release with a known fault, alarms, a quota
that is nearly used up, revisions that nobody compacts. How the findings are shown is not known here
(see oncekey.stores.inspection).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import grpc
from aetcd import rpc

from oncekey.core.errors import ConfigurationError
from oncekey.core.record import State
from oncekey.core.search import NEWEST, Query
from oncekey.stores.etcd import errors
from oncekey.stores.etcd.etcd_store import run_alone
from oncekey.stores.etcd.keyspace import FORMAT
from oncekey.stores.etcd.members import Member, guarantee_of, read_members
from oncekey.stores.etcd.options import split_url
from oncekey.stores.etcd.shared_store import SharedStore, check_format
from oncekey.stores.etcd.transactions import range_of
from oncekey.stores.inspection import (
    OVERDUE_MAX,
    RUNS_MAX,
    SWEEP_LATE_US,
    Check,
    Checkup,
    Finding,
    Inspection,
    ObservedRun,
    overdue_text,
)

STEP: Final = "format 1"
CLOCK_SKEW_US: Final = 1_000_000
# etcd's quota cannot be read before 3.6; this is its default.
QUOTA_DEFAULT_BYTES: Final = 2 * 1024**3
QUOTA_WARNING_PART: Final = 0.75
# From so many revisions on, one that was never compacted is a fault.
REVISIONS_MAX: Final = 1_000_000
NOT_ROOT: Final = "not checked: etcd tells it to its root user only"
FINISHED: Final = (State.SUCCEEDED, State.FAILED)

MEMBERS: Final = Check(
    "etcd.members",
    "whether every member answers",
    "with one member less the cluster survives one failure less, and without a majority nothing "
    "can be claimed",
    "start the members that are away; check the addresses in the URL",
)
MAJORITY: Final = Check(
    "etcd.majority",
    "how many members vote",
    "a write is acknowledged by a majority: one member alone survives no failure, and an even "
    "number survives no more than one member less",
    "run three or five members, each on a machine of its own",
)
VERSION: Final = Check(
    "etcd.version",
    "whether a release with a known fault runs",
    "etcd 3.5.0 to 3.5.2 may lose data after a crash; before 3.5.13 and 3.4.31 an overloaded "
    "leader may end leases too early, so that a key is taken over while its owner still runs",
    "upgrade to 3.5.13 or newer, or to 3.4.31 or newer",
)
ALARMS: Final = Check(
    "etcd.alarms",
    "whether an alarm is raised",
    "with NOSPACE no claim and no outcome is stored; with CORRUPT the members disagree",
    "NOSPACE: compact, defragment each member, and disarm the alarm. CORRUPT: replace the member",
)
QUOTA: Final = Check(
    "etcd.quota",
    "how large the database is",
    "at its quota (2 GiB unless --quota-backend-bytes says another) etcd takes no more writes",
    "shorten keep and audit, defragment, or raise --quota-backend-bytes up to 8 GiB",
)
COMPACTION: Final = Check(
    "etcd.compaction",
    "whether old revisions are removed",
    "etcd keeps every version of every key until it is compacted, so the database only grows",
    "start etcd with --auto-compaction-retention=1 (hours)",
)
RECORDS: Final = Check(
    "etcd.records",
    "whether the prefix holds oncekey's records",
    "an application that is given another prefix finds every key fresh and runs everything again",
    "check the prefix in the URL; `oncekey migrate` makes a new store",
)
CLOCK: Final = Check(
    "etcd.clock",
    "whether the clocks of the hosts agree",
    "leases do not depend on them, but how long outcomes are kept does",
    "run NTP (chrony) on every host",
)
SWEEPER: Final = Check(
    "etcd.sweeper",
    "whether records that nothing needs any more are removed",
    "the database grows until its quota is used up",
    "leave the engine's sweeper on, or run `oncekey sweep --every 10m`",
)
CHECKS: Final = (
    MEMBERS, MAJORITY, VERSION, ALARMS, QUOTA, COMPACTION, RECORDS, CLOCK, SWEEPER,
)  # fmt: skip


class _Status(NamedTuple):
    """What one member says of itself, where the user may ask it."""

    answers: bool
    version: str = ""
    size: int = 0


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[SharedStore]:
    cluster = SharedStore(*split_url(url))
    try:
        yield cluster
    finally:
        await cluster.close()


def inspect(url: str) -> Inspection:
    """What is below the prefix. ConfigurationError if another release wrote it."""
    return run_alone(lambda: _inspect(url))


async def _inspect(url: str) -> Inspection:
    addresses, options = split_url(url)
    async with _opened(url) as cluster:
        keys, members = cluster.keys, cluster.members
        end = members.deadline()
        found = (await members.read(keys.format, end)).kvs
        if found:
            check_format(found[0].value)
        first = range_of(keys.records, limit=1, keys_only=True)
        has_records = bool((await members.call("Range", first, end)).kvs)
        guarantee = guarantee_of(await read_members(members))
    return Inspection(
        name=f"etcd {','.join(addresses)}{options.root.rstrip('/')}",
        exists=bool(found),
        absence="" if found else "no oncekey store below this prefix; `oncekey migrate` makes one",
        has_records=has_records,
        applied={1: STEP} if found else {},
        missing=[] if found else [STEP],
        guarantee=guarantee,
    )


def migrate(url: str) -> None:
    """Make the store, if there is none."""
    run_alone(lambda: _migrate(url))


async def _migrate(url: str) -> None:
    async with _opened(url) as cluster:
        await cluster.prepare()


def migration_script(url: str) -> str:
    """Refused, because there are no tables."""
    raise ConfigurationError(
        "etcd has no tables, so there is no SQL; `oncekey migrate` itself writes one key, and the "
        "application does the same when it opens the store"
    )


# --- checks ---------------------------------------------------------------------------------------


def checkup(url: str) -> Checkup:
    """Check a cluster and a prefix. StoreUnavailable if no member answers."""
    return run_alone(lambda: _checkup(url))


async def _checkup(url: str) -> Checkup:
    async with _opened(url) as cluster:
        listed = await read_members(cluster.members)
        statuses = [await _status(cluster, one) for one in cluster.members.addresses]
        findings = [
            _members(cluster.members.addresses, statuses),
            _majority(listed),
            _version(statuses),
            await _alarms(cluster),
            _quota(statuses),
            await _compaction(cluster),
        ]
        records = await _records(cluster)
        findings.append(records)
        if records.mend:
            return Checkup(findings, [])  # there is nothing to look at
        findings += [await _clock(cluster), await _sweeper(cluster)]
        return Checkup(findings, await _runs(cluster))


async def _status(cluster: SharedStore, address: str) -> _Status:
    try:
        found = await cluster.members.ask(address, "Status", rpc.StatusRequest())
    except grpc.aio.AioRpcError as error:
        return _Status(errors.is_denied(error))
    return _Status(True, found.version, found.dbSize)


def _members(addresses: list[str], statuses: list[_Status]) -> Finding:
    away = [one for one, found in zip(addresses, statuses, strict=True) if not found.answers]
    if away:
        return MEMBERS.broken(f"no answer from {', '.join(away)}, of {len(addresses)}")
    return MEMBERS.ok(f"all {len(addresses)} of the URL answer")


def _majority(listed: list[Member]) -> Finding:
    voting = sum(member.is_voting for member in listed)
    if voting == 1:
        return MAJORITY.warning("one member: what it loses is lost")
    if voting % 2 == 0:
        return MAJORITY.warning(f"{voting} members, an even number")
    return MAJORITY.ok(f"{voting} members vote")


def _version(statuses: list[_Status]) -> Finding:
    versions = sorted({found.version for found in statuses if found.version})
    parsed = [tuple(int(part) for part in re.findall(r"\d+", one)[:3]) for one in versions]
    text = ", ".join(versions)
    if not versions:
        return VERSION.info(NOT_ROOT)
    if any((3, 5, 0) <= one < (3, 5, 3) for one in parsed):
        return VERSION.broken(text)
    if any(one < (3, 4, 31) or (3, 5, 0) <= one < (3, 5, 13) for one in parsed):
        return VERSION.warning(text)
    return VERSION.ok(text)


async def _alarms(cluster: SharedStore) -> Finding:
    request = rpc.AlarmRequest(action=rpc.AlarmRequest.GET)
    try:
        reply = await cluster.members.call("Alarm", request, cluster.members.deadline())
    except ConfigurationError:
        return ALARMS.info(NOT_ROOT)
    names = sorted({rpc.AlarmType.Name(one.alarm) for one in reply.alarms})
    return ALARMS.broken(", ".join(names)) if names else ALARMS.ok("none")


def _quota(statuses: list[_Status]) -> Finding:
    size = max(found.size for found in statuses)
    if not size:
        return QUOTA.info(NOT_ROOT)
    text = f"{size / 1024**2:,.0f} MiB"
    if size > QUOTA_WARNING_PART * QUOTA_DEFAULT_BYTES:
        return QUOTA.warning(f"{text}, of 2 GiB unless the servers have another quota")
    return QUOTA.ok(text)


async def _compaction(cluster: SharedStore) -> Finding:
    """The first revision can be read only if nothing was ever compacted."""
    members, key = cluster.members, cluster.keys.format
    reply = await members.call("Range", rpc.RangeRequest(key=key), members.deadline())
    newest = reply.header.revision
    try:
        await members.ask(
            members.addresses[0], "Range", rpc.RangeRequest(key=key, revision=min(2, newest))
        )
    except grpc.aio.AioRpcError as error:
        if "compacted" in errors.details_of(error):
            return COMPACTION.ok(f"revision {newest:,}; old ones were removed")
        return COMPACTION.info(f"not checked: {errors.details_of(error)[:100]}")
    if newest > REVISIONS_MAX:
        return COMPACTION.warning(f"revision {newest:,}, and nothing was ever compacted")
    return COMPACTION.ok(f"revision {newest:,}; nothing to remove yet")


async def _records(cluster: SharedStore) -> Finding:
    found = (await cluster.members.read(cluster.keys.format, cluster.members.deadline())).kvs
    root = cluster.keys.root.decode()
    if not found:
        return RECORDS.broken(f"there is no store below {root}")
    if found[0].value != FORMAT:
        return RECORDS.broken(
            f"{root} has format {found[0].value!r}, this release reads {FORMAT!r}"
        )
    return RECORDS.ok(root)


async def _clock(cluster: SharedStore) -> Finding:
    """A claim that seems to be made in the future was made by a host whose clock is ahead."""
    page = await cluster.lists.search(Query(expired=True), 1, NEWEST)
    ahead = page.records[0].fence - page.now if page.records else 0
    if ahead > CLOCK_SKEW_US:
        return CLOCK.warning(f"the newest claim is {ahead / 1_000_000:.1f}s ahead of this host")
    return CLOCK.ok("no claim is ahead of this host's clock")


async def _sweeper(cluster: SharedStore) -> Finding:
    measures = await cluster.lists.measure()
    late = measures.now - measures.oldest_due
    if measures.due and late > SWEEP_LATE_US:
        return SWEEPER.warning(overdue_text(min(measures.due, OVERDUE_MAX), late))
    return SWEEPER.ok("nothing is overdue by more than a day")


async def _runs(cluster: SharedStore) -> list[ObservedRun]:
    page = await cluster.lists.search(Query(states=frozenset(FINISHED)), RUNS_MAX, NEWEST)
    return [
        ObservedRun(
            one.operation, one.finished_at - one.created_at, one.lease_until - one.finished_at,
            one.keep,
        )
        for one in page.records
        if one.attempt == 1
    ]  # fmt: skip


def is_same_store(url: str, store: Any) -> bool | None:
    """Whether a store object has its records below the prefix of this URL. None if the addresses
    differ: the same cluster can be reached in several ways."""
    addresses, options = split_url(url)
    theirs = getattr(store, "options", None)
    if getattr(theirs, "root", None) != options.root:
        return False
    return True if set(addresses) & set(getattr(store, "addresses", ())) else None
