"""Reads what the servers say of themselves, beside other calls, and what the store has written down
about their replicas.

This module owns these calls and turns their replies into values. It judges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from oncekey.core.errors import StoreUnavailable
from oncekey.stores.redis import durability
from oncekey.stores.redis.calls import EVERY_NODE, Answer, Call, Calls
from oncekey.stores.redis.record_calls import RecordCalls, given
from oncekey.stores.replica_sightings import (
    Forgotten,
    Remembered,
    Replica,
    Sighting,
    forgotten_in,
    pack_replica,
    unpack_replica,
)

# What is read of every node. CONFIG may be forbidden; then its answer is an error.
_INFO: Final = Call("", EVERY_NODE, (), ("INFO", *durability.INFO_SECTIONS))
_CONFIG: Final = Call("", EVERY_NODE, (), ("CONFIG", "GET", *durability.CONFIG_NAMES))
# A replica that left its Cluster without being forgotten there is listed all the same.
_NODES: Final = Call("", 0, (), ("CLUSTER", "NODES"))

# How long a server may take to sync a write before its append-only file counts as not in place yet.
AOF_WAIT_MS: Final = 1_000
_TOUCH_MS: Final = 60_000
_FORGOTTEN: Final = b"forgotten "


def server_calls(calls: RecordCalls) -> list[Call]:
    """The calls that read what the servers say."""
    return [_INFO, _CONFIG, _NODES] if calls.is_cluster else [_INFO, _CONFIG]


def sightings_call(calls: RecordCalls) -> Call:
    """The call that reads which replicas were seen before."""
    return calls.one("sightings", 0, calls.keys.replicas)


def settings_calls(calls: RecordCalls) -> list[Call]:
    """Both, as they are sent beside claims."""
    return [sightings_call(calls), *server_calls(calls)]


def read_servers(answers: Sequence[Answer], mode: str) -> durability.Server | None:
    """The servers as one, by the weakest of them; None if they did not answer. `mode` is how they
    are reached."""
    if any(isinstance(answer, StoreUnavailable) for answer in answers[:2]):
        return None
    infos, configs, *nodes = cast("list[Any]", answers)
    found = [
        durability.parse_server(durability.parse_info(info), _config(config), mode=mode)
        for info, config in zip(infos, configs, strict=True)
        if not isinstance(info, Exception)
    ]
    if not found:
        return None
    server = durability.weakest(found)
    if nodes and not isinstance(nodes[0], Exception):
        known = durability.parse_nodes(nodes[0])
        server = server._replace(seen=(*server.seen, *known))
    return server


def _config(answer: Any) -> dict[str, str] | None:
    return None if isinstance(answer, Exception) else durability.parse_config(answer)


# --- replicas -------------------------------------------------------------------------------------


def read_remembered(answer: Sequence[Any]) -> Remembered:
    """The reply of the script sightings."""
    now, *values = answer
    sightings, forgotten = [], []
    for value in values:
        if value.startswith(_FORGOTTEN):
            name, _, note = value.removeprefix(_FORGOTTEN).decode().partition("\n")
            forgotten.append(Forgotten(name, note))
        else:
            first, last, known = value.split(b" ", 2)
            sightings.append(Sighting(unpack_replica(known), int(first), int(last)))
    return Remembered(int(now), tuple(sightings), tuple(forgotten))


def remember(calls: RecordCalls, replicas: Sequence[Replica]) -> Call:
    """The call that writes down which replicas are seen."""
    args = [arg for one in replicas for arg in (_field(one.name), pack_replica(one))]
    return calls.one("remember", 0, calls.keys.replicas, *args)


def remembered(calls: RecordCalls) -> Calls[Remembered]:
    """The replicas that were seen, and those that were forgotten."""
    (answer,) = given((yield [sightings_call(calls)]))
    return read_remembered(answer)


def forget(calls: RecordCalls, name: str, *, by: str, why: str) -> Calls[None]:
    """Declare a replica gone. ConfigurationError if none of this name was seen."""
    while True:
        found = yield from remembered(calls)
        sighting, note = forgotten_in(found, name, by=by, why=why)
        entry = (_FORGOTTEN + name.encode(), _FORGOTTEN + f"{name}\n{note}".encode())
        call = calls.one("forget", 0, calls.keys.replicas, _field(name), sighting.last_seen, *entry)
        (answer,) = given((yield [call]))
        if answer[1]:
            return


def _field(name: str) -> bytes:
    return b"replica " + name.encode()


# --- the append-only file -------------------------------------------------------------------------


def aof_calls(calls: RecordCalls, buckets: Sequence[int], wait_ms: int) -> list[Call]:
    """The calls that find out whether every node's append-only file is in place, by a bucket of
    each node. INFO does not say it while the file is rewritten; but a node whose first file is not
    complete acknowledges no write as synced. Both calls of a node go over one connection, since
    WAITAOF is about the writes of its own connection."""
    keys = calls.keys
    return [
        call
        for bucket in buckets
        for call in (
            calls.one("touch", bucket, keys.index("synced", bucket), _TOUCH_MS),
            Call("", bucket, (), ("WAITAOF", 1, 0, wait_ms)),
        )
    ]


def read_aof(answers: Sequence[Answer]) -> bool | None:
    """Whether every node has synced what was written; None if a node does not tell."""
    if any(isinstance(answer, Exception) for answer in answers):
        return None
    waits: list[Any] = [*answers[1::2]]
    return all(int(wait[0]) > 0 for wait in waits)
