"""Inspects a prefix for the command line, and makes a store there: the functions of
oncekey.stores.inspection. etcd has no tables, so a store's only step is its format.
"""

from __future__ import annotations

from oncekey.core.errors import ConfigurationError
from oncekey.stores.etcd.cluster_store import ClusterStore, check_format
from oncekey.stores.etcd.etcd_url import split_url
from oncekey.stores.etcd.loop_thread import run_alone
from oncekey.stores.etcd.membership import guarantee_of, read_members
from oncekey.stores.etcd.transactions import get, range_of, transaction
from oncekey.stores.inspection import Inspection

STEP = "format 1"


def inspect(url: str) -> Inspection:
    """What is below the prefix. ConfigurationError if another release wrote it."""
    return run_alone(lambda: _inspect(url))


async def _inspect(url: str) -> Inspection:
    addresses, options = split_url(url)
    cluster = ClusterStore(addresses, options)
    keys, members = cluster.keys, cluster.members
    try:
        end = members.deadline()
        reply = await members.call("Txn", transaction((), [get(keys.format)]), end)
        found = reply.responses[0].response_range.kvs
        if found:
            check_format(found[0].value)
        first = range_of(keys.records, limit=1, keys_only=True)
        has_records = bool((await members.call("Range", first, end)).kvs)
        guarantee = guarantee_of(await read_members(members))
    finally:
        await cluster.close()
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
    cluster = ClusterStore(*split_url(url))
    try:
        await cluster.prepare()
    finally:
        await cluster.close()


def script_unavailable() -> ConfigurationError:
    """The error that says why there is no migration script for etcd."""
    return ConfigurationError(
        "etcd has no tables, so there is no SQL; `oncekey migrate` itself writes one key, and the "
        "application does the same when it opens the store"
    )
