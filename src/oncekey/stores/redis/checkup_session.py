"""The command line's own connections to Redis or Valkey servers, and what is read over them.

This module finds the masters that a URL means, and reads of each what the checks need; it writes
nothing, and judges nothing. A store's own connections are of no use here: they repeat what
fails, and a checkup wants to know that it failed. `inspect` answers what commands ask about a store
before it is opened (oncekey.stores.inspection).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple

from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.stores.inspection import Inspection
from oncekey.stores.record_format import VERSION
from oncekey.stores.redis import durability, errors
from oncekey.stores.redis.durability import CLUSTER, SENTINEL, Server, guarantee, refusal
from oncekey.stores.redis.keyspace import BUCKETS, Keyspace, Node, SingleNode, SlotTable
from oncekey.stores.redis.options import Address, Options, parse_address, split_url
from oncekey.stores.redis.server_settings import read_remembered
from oncekey.stores.replica_sightings import NOTHING, Remembered, Replica, ReplicaMemory

# A redis.Redis; its methods have no types of their own.
Client = Any

NEEDS: Final = "the store of redis:// needs redis-py: pip install 'oncekey[redis]'"
# How long a checkup waits for a connection, and for each reply.
CHECKUP_REPLY_SECONDS: Final = 5.0

_SETTINGS: Final = (*durability.CONFIG_NAMES, "timeout", "busy-reply-threshold", "lua-time-limit")
_FORMAT: Final = "records"
_PROBE: Final = "return 1"
_NO_ENGINE: Final = ("unknown command", "scripting engine")


class ServerReading(NamedTuple):
    """What was read of one server.

    name     its address, for messages
    server   what durability.py makes of it
    info     INFO by field
    config   CONFIG GET by name; None if the server does not allow it
    clock    its clock, and this host's before and after, in microseconds
    """

    name: str
    server: Server
    info: Mapping[str, str]
    config: Mapping[str, str] | None
    clock: tuple[int, int, int] = (0, 0, 0)

    def number(self, field: str) -> int:
        """A number of INFO; 0 if the server does not report it."""
        text = self.info.get(field, "")
        return int(text) if text.lstrip("-").isdecimal() else 0

    def setting(self, name: str) -> int | None:
        """A number of CONFIG; None if it cannot be read."""
        text = (self.config or {}).get(name, "")
        return int(text) if text.lstrip("-").isdecimal() else None


class CheckupSession:
    """Connections to the masters that a URL means, and what was read of each.

    nodes      what was read
    sentinel   what a Sentinel says of the master; None if none was asked
    cluster    what the first master says of the Cluster; None if there is none
    sightings  the replicas that are attached, or were seen by a store
    """

    def __init__(self, address: Address, options: Options, stack: ExitStack) -> None:
        self.options = options
        self.address = address
        self._stack = stack
        self._clients: dict[Node, Client] = {}
        self._table: SingleNode | SlotTable = SingleNode(address.nodes[0])
        self.sentinel: Mapping[str, str] | None = None
        self.cluster: Mapping[str, str] | None = None
        replicas: list[Replica] = []
        if address.mode == SENTINEL:
            self.sentinel = self._watched()
            self._table = SingleNode(Node(self.sentinel["ip"], int(self.sentinel["port"])))
        elif address.mode == CLUSTER:
            self._table, replicas = self._slots()
        mode = address.mode if address.mode == SENTINEL else ""
        self.nodes = [
            read_node(self._client(place), f"{place.host}:{place.port}", mode)
            for place in self._table.nodes()
        ]
        if address.mode == CLUSTER:
            self.nodes[0] = _with_replicas(self.nodes, replicas)
            self.cluster = durability.parse_info(self._first("CLUSTER", "INFO"))
        self.sightings = ReplicaMemory().observe(self.server.seen, self._remembered())

    @property
    def name(self) -> str:
        """Where the servers are, for messages."""
        return ", ".join(node.name for node in self.nodes)

    @property
    def server(self) -> Server:
        """All masters as one, by the weakest of them."""
        return durability.weakest([node.server for node in self.nodes])

    def ask(self, commands: Sequence[tuple[int, tuple[Any, ...]]]) -> list[Any]:
        """The replies to commands on keys of buckets, sent together to each node."""
        replies: list[Any] = [None] * len(commands)
        by_place: dict[Node, list[int]] = {}
        for position, (bucket, _) in enumerate(commands):
            place = self._table.node_of(bucket)
            if place is None:
                raise StoreUnavailable("no node of the Cluster has a key's slot", ambiguous=False)
            by_place.setdefault(place, []).append(position)
        for place, positions in by_place.items():
            pipeline = self._client(place).pipeline(transaction=False)
            for position in positions:
                pipeline.execute_command(*commands[position][1])
            for position, reply in zip(positions, pipeline.execute(), strict=True):
                replies[position] = reply
        return replies

    def _remembered(self) -> Remembered:
        """What stores have written down about replicas; nothing if it may not be read, which
        another check reports."""
        from redis.exceptions import ResponseError

        key = Keyspace(self.options.prefix).replicas
        try:
            (values,) = self.ask([(0, ("HVALS", key))])
        except ResponseError:
            return NOTHING
        return read_remembered((self.nodes[0].clock[0], *values))

    def count_records(self) -> int:
        """How many records the index of claims has."""
        keys = Keyspace(self.options.prefix)
        counts = self.ask([(n, ("ZCARD", keys.index("claims", n))) for n in range(BUCKETS)])
        return sum(counts)

    def count_keys(self) -> int:
        """How many keys the databases have, oncekey's and others."""
        return sum(self._client(place).execute_command("DBSIZE") for place in self._table.nodes())

    # --- who is where -------------------------------------------------------------------------

    def _client(self, place: Node, settings: Mapping[str, Any] | None = None) -> Client:
        if place not in self._clients:
            client = _connect(place, self.address.settings if settings is None else settings)
            self._stack.callback(client.close)
            self._clients[place] = client
        return self._clients[place]

    def _first(self, *command: str) -> Any:
        return self._client(self._table.nodes()[0]).execute_command(*command)

    def _watched(self) -> dict[str, str]:
        """What the first Sentinel that answers says of the master."""
        from redis.exceptions import ConnectionError, ResponseError, TimeoutError

        failure: Exception | None = None
        for place in self.address.nodes:
            client = self._client(place, self.address.sentinels)
            try:
                reply = client.execute_command("SENTINEL", "MASTER", self.address.service)
                return durability.parse_config(reply)
            except ResponseError as error:
                raise ConfigurationError(
                    f"the Sentinels watch no master named {self.address.service!r}: {error}"
                ) from error
            except (ConnectionError, TimeoutError) as error:
                failure = error
        raise StoreUnavailable("no Sentinel answers", ambiguous=False) from failure

    def _slots(self) -> tuple[SlotTable, list[Replica]]:
        """The table of slots as the first node that answers knows it, and the replicas."""
        from redis.exceptions import ConnectionError, TimeoutError

        table = SlotTable(self.address.nodes)
        failure: Exception | None = None
        for place in self.address.nodes:
            try:
                reply = self._client(place).execute_command("CLUSTER", "SLOTS")
            except (ConnectionError, TimeoutError) as error:
                failure = error
                continue
            if table.read(reply, place):
                nodes = self._client(place).execute_command("CLUSTER", "NODES")
                return table, durability.parse_nodes(nodes)
        raise StoreUnavailable("no node of the Cluster answers", ambiguous=False) from failure


def _with_replicas(nodes: Sequence[ServerReading], known: Sequence[Replica]) -> ServerReading:
    """The first node, with the replicas that the Cluster knows and that are attached to nobody:
    they may come back, and be promoted."""
    first = nodes[0].server
    attached = {replica for node in nodes for replica in node.server.seen}
    missing = [replica for replica in known if replica not in attached]
    count = first.replicas + len(missing)
    return nodes[0]._replace(server=first._replace(replicas=count, seen=(*first.seen, *missing)))


def read_node(client: Client, name: str, mode: str = "") -> ServerReading:
    """Read what a server says of itself."""
    info = durability.parse_info(client.execute_command("INFO"))
    config = _config(client)
    before = time.time_ns() // 1_000
    seconds, microseconds = client.execute_command("TIME")
    after = time.time_ns() // 1_000
    has_scripts = _has_scripts(client)
    server = durability.parse_server(info, config, mode=mode, has_scripts=has_scripts)
    if server.aof_in_place is None and info.get("aof_base_size", "0") != "0":
        # Nothing is written here, so this cannot be known for sure; a rewrite of a file that was
        # there before is by far the most likely.
        server = server._replace(aof_in_place=True)
    clock = (int(seconds) * 1_000_000 + int(microseconds), before, after)
    return ServerReading(name, server, info, config, clock)


def _config(client: Client) -> dict[str, str] | None:
    """The settings one by one, because old servers take one name; None if CONFIG is forbidden."""
    from redis.exceptions import ResponseError

    found: dict[str, str] = {}
    try:
        for name in _SETTINGS:
            found |= durability.parse_config(client.execute_command("CONFIG", "GET", name))
    except ResponseError:
        return None
    return found


def _has_scripts(client: Client) -> bool:
    """Whether EVAL works. A server that is loading or busy is no server without scripts."""
    from redis.exceptions import NoPermissionError, ResponseError

    try:
        client.execute_command("EVAL", _PROBE, 0)
    except NoPermissionError:
        return False
    except ResponseError as error:
        if any(text in str(error).lower() for text in _NO_ENGINE):
            return False
        raise
    return True


def _connect(place: Node, settings: Mapping[str, Any]) -> Client:
    """A client that repeats nothing and returns replies as the server sent them."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    given = {
        "protocol": 2,
        "socket_timeout": CHECKUP_REPLY_SECONDS,
        "socket_connect_timeout": CHECKUP_REPLY_SECONDS,
        **{name: value for name, value in settings.items() if value is not None},
        "host": place.host,
        "port": place.port,
        "retry": Retry(NoBackoff(), 0),
    }
    client = redis.Redis(connection_pool=redis.ConnectionPool(**given))
    client.response_callbacks.clear()
    return client


def read_url(url: str) -> tuple[Address, Options]:
    """The servers' address and our options. ConfigurationError if the URL cannot be parsed, or if
    redis-py is missing."""
    try:
        from redis.connection import parse_url
    except ImportError as error:
        raise ConfigurationError(NEEDS) from error
    address, options = split_url(url)
    return parse_address(address, parse_url), options


@contextmanager
def checkup_session(url: str) -> Iterator[CheckupSession]:
    """A session on the masters that a URL means. Translates redis-py's errors."""
    address, options = read_url(url)
    from redis.exceptions import ConnectionError, RedisError, TimeoutError

    try:
        with ExitStack() as stack:
            yield CheckupSession(address, options, stack)
    except (ConnectionError, TimeoutError) as error:
        is_silent = isinstance(error, TimeoutError)
        raise errors.translate_setup_error(
            errors.translate_failure(error, is_sent=False, is_silent=is_silent, ambiguous=False)
        ) from error
    except RedisError as error:
        raise errors.translate_setup_error(
            errors.translate_response(error, ambiguous=False)
        ) from error


# --- before a store is opened ---------------------------------------------------------------------


def inspect(url: str) -> Inspection:
    """What is on the servers, read without writing anything. StoreUnavailable if they cannot be
    reached, ConfigurationError if the URL cannot be parsed or if a store would refuse to start
    there."""
    with checkup_session(url) as session:
        server = session.server
        reason = refusal(server)
        if reason:
            raise ConfigurationError(reason)
        return Inspection(
            name=f"{session.name}, prefix {session.options.prefix!r}",
            exists=True,
            has_records=session.count_records() > 0,
            applied={VERSION: _FORMAT},
            missing=[],
            guarantee=guarantee(server, session.options.failover, session.sightings),
        )


def migration_script(url: str) -> str:
    """Refused, because there are no tables."""
    read_url(url)
    raise ConfigurationError("redis:// has no tables, so there is no SQL to run")
