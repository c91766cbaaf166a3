"""What the servers' settings mean for a store: what it can promise, whether claims are refused, and
which replicas count.

The settings are read before the first use and then beside claims. Which replicas were seen is
written down in the store, so that every process knows of them. The rules are in durability.py; this
module knows no connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.stores.redis import durability, errors
from oncekey.stores.redis.keyspace import BUCKETS, SingleNode, SlotTable
from oncekey.stores.redis.options import Options
from oncekey.stores.redis.scripts import (
    EVERY_NODE,
    Answer,
    Call,
    Calls,
    RecordCalls,
    given,
    scripts,
)
from oncekey.stores.replica_sightings import (
    NOTHING,
    Forgotten,
    Remembered,
    Replica,
    ReplicaMemory,
    Sighting,
    forgotten_in,
    pack_replica,
    unpack_replica,
)
from oncekey.stores.server_watch import ServerClock, SettingsWatch

# What is read of every node. CONFIG may be forbidden; then its answer is an error.
_INFO: Final = Call("", EVERY_NODE, (), ("INFO", *durability.INFO_SECTIONS))
_CONFIG: Final = Call("", EVERY_NODE, (), ("CONFIG", "GET", *durability.CONFIG_NAMES))
# A replica that left its Cluster without being forgotten there is listed all the same.
_NODES: Final = Call("", 0, (), ("CLUSTER", "NODES"))

# How long a server may take to sync a write before its append-only file counts as not in place yet.
AOF_WAIT_MS: Final = 1_000
_TOUCH_MS: Final = 60_000
_FORGOTTEN: Final = b"forgotten "


class ServerSettings:
    """What a store knows of its servers.

    guarantee  what the store can promise
    refusal    why claims are refused; empty if they are not
    watch      when the settings are read again
    """

    def __init__(
        self, calls: RecordCalls, table: SingleNode | SlotTable, options: Options, mode: str
    ) -> None:
        """`mode` is how the servers are reached: standalone, sentinel or cluster; `table` says
        which of them has a bucket."""
        self._calls = calls
        self._table = table
        self._options = options
        self._mode = mode
        self._read_calls = [_INFO, _CONFIG, _NODES] if calls.is_cluster else [_INFO, _CONFIG]
        self.guarantee = durability.NOT_CONNECTED
        self.refusal = ""
        self.watch = SettingsWatch(options.seconds("guarantee_interval"))
        self._memory = ReplicaMemory()
        self._remembered = NOTHING
        self._sightings: tuple[Sighting, ...] = ()
        self._server = durability.UNKNOWN_SERVER
        self._ordinary_rewrite: tuple[str, ...] = ()  # of a file that was in place before

    # --- before the first use -------------------------------------------------------------------

    def prepare(self, server_clock: ServerClock) -> Calls[None]:
        """Load the scripts into every node, run one, and read the servers' settings."""
        load = [
            Call("", EVERY_NODE, (), ("SCRIPT", "LOAD", script.text))
            for script in scripts().values()
        ]
        answers = given((yield [*load, *self._read_calls]))
        server = read_servers(answers[len(load) :], self._mode)
        refused = [error for each in answers[: len(load)] for error in each if _is_error(error)]
        if server is None:
            raise errors.without_info(next((e for e in answers[len(load)] if _is_error(e)), None))
        if refused:
            server = server._replace(has_scripts=False)
        refusal = durability.refusal(server)
        if refusal:
            detail = f" ({refused[0]})" if refused else ""
            raise ConfigurationError(refusal + detail)
        (probe,) = self._calls.for_records("probe", [bytes(16)], [()])
        since = server_clock.send_time()
        answers = yield [probe.call, sightings_call(self._calls)]
        ((at, *forbidden),) = given(answers[:1])
        if forbidden:
            raise errors.commands_forbidden(forbidden)
        server_clock.observe(int(at), since)  # so that even the first claim has its latest time
        self._set_server(server, given(answers)[1])
        yield from self._follow_up()

    # --- beside claims --------------------------------------------------------------------------

    def calls(self) -> list[Call]:
        """The calls that read the settings, and the replicas that were seen before."""
        return [sightings_call(self._calls), *self._read_calls]

    def read(self, answers: Sequence[Answer]) -> Calls[None]:
        """Take in the answers to these calls, and find out what they do not say."""
        sightings, *others = answers
        server = read_servers(others, self._mode)
        if server is not None:
            self._set_server(server, sightings)
        yield from self._follow_up()

    def reread(self) -> Calls[None]:
        """Read the settings without a claim."""
        yield from self.read((yield self.calls()))

    def _set_server(self, server: durability.Server, sightings: Answer) -> None:
        """The servers were read, and the replicas that were seen before; if those could not be
        read, what was read of them earlier still holds."""
        self.refusal = durability.refusal(server)
        if not isinstance(sightings, Exception):
            self._remembered = read_remembered(sightings)
        # A replica takes no writes, and has other things to be said about it.
        seen = server.seen if server.role == "master" else ()
        self._sightings = self._memory.observe(seen, self._remembered)
        if server.aof_in_place is None and server.aof_rewrite == self._ordinary_rewrite:
            server = server._replace(aof_in_place=True)
        self._server = server
        if server.aof_in_place is not None:
            self._publish()

    def _follow_up(self) -> Calls[None]:
        """Write down which replicas were seen, and find out what the settings do not say."""
        due = self._memory.take_due()
        if due:
            (answer,) = yield [remember(self._calls, due)]
            if isinstance(answer, Exception):
                self._memory.note_failure(due, answer)
            else:
                self._memory.note_written(due)
        server = self._server
        if server.aof and server.aof_in_place is None:
            nodes = {self._table.node_of(bucket): bucket for bucket in range(BUCKETS)}
            wait_ms = min(AOF_WAIT_MS, int(self._options.seconds("reply_timeout") * 500))
            answers = yield aof_calls(self._calls, sorted(nodes.values()), wait_ms)
            in_place = read_aof(answers)
            if in_place:
                self._ordinary_rewrite = server.aof_rewrite  # it is not the first one
            if self._server is server:  # and was not read again meanwhile
                self._server = server._replace(aof_in_place=in_place)
        self._publish()

    def _publish(self) -> None:
        guarantee = durability.guarantee(self._server, self._options.failover, self._sightings)
        if guarantee != self.guarantee:
            self.guarantee = guarantee
        self.watch.renew()  # last: from now on claims rely on what was read


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


def _is_error(answer: Answer) -> bool:
    return isinstance(answer, Exception)


# --- replicas -------------------------------------------------------------------------------------


def sightings_call(calls: RecordCalls) -> Call:
    """The call that reads which replicas were seen before."""
    return calls.one("sightings", 0, calls.keys.replicas)


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
    """Whether every node has synced what was written; None if a node does not say."""
    if any(isinstance(answer, Exception) for answer in answers):
        return None
    waits: list[Any] = [*answers[1::2]]
    return all(int(wait[0]) > 0 for wait in waits)
