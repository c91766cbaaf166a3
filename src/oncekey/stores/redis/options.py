"""The options of a Redis store, and where its servers are: out of a URL, or out of a client of
redis-py that the caller has made.

    redis://user:password@host:6379/0          one server; rediss:// with TLS
    redis+sentinel://host:26379,host/service/0 the master that Sentinels name
    redis+cluster://host:6379,host             a cluster, asked for by some of its nodes

Parameters of the URL that are not our options are redis-py's. This module opens and closes nothing.
It knows redis-py only by its function that parses a URL, which differs for sync and async.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from oncekey.core.duration import Duration, microseconds
from oncekey.core.errors import ConfigurationError
from oncekey.stores.redis.durability import CLUSTER, FAILOVER, SENTINEL, STANDALONE
from oncekey.stores.redis.errors import invalid_address
from oncekey.stores.redis.keyspace import PREFIX_DEFAULT, PREFIX_MAX_CHARS, Node
from oncekey.stores.redis.scripts import TestClock

POOL_SIZE_MAX: Final = 256
PREFIX_WITHOUT: Final = "{}"
PORT_DEFAULT: Final = 6379
SENTINEL_PORT_DEFAULT: Final = 26379
HOSTS_MAX: Final = 64
_MODES: Final = {"sentinel": SENTINEL, "cluster": CLUSTER}
_SENTINEL_ONLY: Final = ("sentinel_username", "sentinel_password")

Pool = TypeVar("Pool")
ParseUrl = Callable[[str], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a store works; every value has a default.

    prefix              what the names of all its keys begin with
    reply_timeout       how long each reply of the server is awaited, and each connection
    call_timeout        how long a call may take in all, with everything that is repeated in it
    pool_size           how many connections per node a store of this process opens at most
    guarantee_interval  how old the reading of the server's settings may be when a claim is made
    failover            never: no replica is ever promoted
    """

    prefix: str = PREFIX_DEFAULT
    reply_timeout: Duration = "2s"
    call_timeout: Duration = "5s"
    pool_size: int = 16
    guarantee_interval: Duration = "5s"
    failover: str = "auto"
    clock: TestClock | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str) or not 0 < len(self.prefix) <= PREFIX_MAX_CHARS:
            raise ConfigurationError(
                f"prefix={self.prefix!r} must be text of 1 to {PREFIX_MAX_CHARS} characters"
            )
        # Braces would move the hash tag, and with it keys to other slots than their index.
        if not self.prefix.isprintable() or any(c in self.prefix for c in PREFIX_WITHOUT):
            raise ConfigurationError(
                f"prefix={self.prefix!r} must do without {{ }} and control characters"
            )
        if self.failover not in FAILOVER:
            raise ConfigurationError(
                f"failover={self.failover!r} is not known; choose {', '.join(FAILOVER)}"
            )
        if type(self.pool_size) is not int or not 1 <= self.pool_size <= POOL_SIZE_MAX:
            raise ConfigurationError(
                f"pool_size={self.pool_size!r} must be a number from 1 to {POOL_SIZE_MAX}"
            )
        for name in ("reply_timeout", "call_timeout", "guarantee_interval"):
            if microseconds(getattr(self, name), name=name) < 1_000:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} must be 1ms or longer")

    def seconds(self, name: str) -> float:
        """One of the durations in seconds."""
        return microseconds(getattr(self, name), name=name) / 1_000_000


def split_url(url: str) -> tuple[str, Options]:
    """The address and our options. Other parameters of the URL are redis-py's."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise invalid_address() from None
    known = {field.name: field for field in fields(Options) if field.name != "clock"}
    ours: dict[str, Any] = {}
    theirs: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            theirs.append((name, value))
            continue
        if name in ours:
            raise ConfigurationError(f"the option {name!r} is given twice in the store's URL")
        if name == "pool_size" and not value.isdecimal():
            raise ConfigurationError(f"{name}={value!r} must be a number")
        ours[name] = int(value) if name == "pool_size" else value
    rest = urlencode(theirs, quote_via=quote)
    return urlunsplit(parts._replace(query=rest)), Options(**ours)


# --- where the servers are ------------------------------------------------------------------------


class Address(NamedTuple):
    """Where the servers are.

    mode         standalone, sentinel or cluster
    nodes        the server, the Sentinels, or some nodes of the cluster
    settings     of connections to servers, as redis-py takes them
    service      the name of the master that the Sentinels watch
    sentinels    settings of connections to Sentinels
    """

    mode: str
    nodes: tuple[Node, ...]
    settings: dict[str, Any]
    service: str = ""
    sentinels: Mapping[str, Any] = {}


def parse_address(url: str, parse_url: ParseUrl) -> Address:
    """The address in a URL. ConfigurationError if it is none."""
    try:
        return _parse(url, parse_url)
    except ValueError:
        raise invalid_address() from None


def _parse(url: str, parse_url: ParseUrl) -> Address:
    parts = urlsplit(url)
    scheme, _, kind = parts.scheme.partition("+")
    mode = _MODES.get(kind, STANDALONE)
    login, at, places = parts.netloc.rpartition("@")
    default = SENTINEL_PORT_DEFAULT if mode == SENTINEL else PORT_DEFAULT
    nodes = tuple(_node(place, default) for place in places.split(",")[:HOSTS_MAX])
    service, path = "", parts.path
    if mode == SENTINEL:
        service, _, database = unquote(path).strip("/").partition("/")
        path = f"/{database}"
        if not service:
            raise ConfigurationError(
                "the URL does not name the master that the Sentinels watch; write "
                "redis+sentinel://host:26379/service"
            )
    elif mode == CLUSTER and path.strip("/") not in ("", "0"):
        raise ConfigurationError("a cluster has no numbered databases; leave the number out")
    elif len(nodes) > 1 and mode == STANDALONE:
        raise ConfigurationError(
            "redis:// means one server; write redis+sentinel:// or redis+cluster:// for several"
        )
    database = path.strip("/")
    if database and not database.isdecimal():
        raise invalid_address()  # redis-py would take database 0
    # The hosts are taken out, because redis-py parses only one.
    plain = parts._replace(scheme=scheme, netloc=f"{login}{at}host", path=path)
    settings = dict(parse_url(urlunsplit(plain)))
    sentinels = {
        name.removeprefix("sentinel_"): settings.pop(name, None) for name in _SENTINEL_ONLY
    }
    if settings.get("decode_responses"):
        raise ConfigurationError("decode_responses must be off: records are bytes")
    settings["host"], settings["port"] = nodes[0]
    return Address(mode, nodes, settings, service, sentinels)


def _node(place: str, port: int) -> Node:
    parts = urlsplit(f"//{place}")
    return Node(unquote(parts.hostname or "localhost"), parts.port or port)


def plain_address(pool: Any, sentinel_pool: type) -> Address:
    """The address behind the pool of a plain client. `sentinel_pool` is the class of pools that ask
    Sentinels for it."""
    settings: dict[str, Any] = pool.connection_kwargs
    _check(settings)
    mode = SENTINEL if isinstance(pool, sentinel_pool) else STANDALONE
    node = Node(settings.get("host") or "localhost", settings.get("port") or PORT_DEFAULT)
    return Address(mode, (node,), settings)


def cluster_address(client: Any, nodes_manager: Any) -> Address:
    """The address behind a client of a cluster, whose connections get the same settings."""
    settings = dict(getattr(nodes_manager, "connection_kwargs", None) or client.connection_kwargs)
    _check(settings)
    places = [*nodes_manager.startup_nodes.values(), *nodes_manager.nodes_cache.values()]
    nodes = tuple(dict.fromkeys(Node(str(place.host), int(place.port)) for place in places))
    for name in ("host", "port", "retry", "response_callbacks", "redis_connect_func"):
        settings.pop(name, None)
    return Address(CLUSTER, nodes, settings)


def _check(settings: dict[str, Any]) -> None:
    if settings.get("decode_responses"):
        raise ConfigurationError(
            "this client has decode_responses=True, which changes bytes into text; give the store "
            "a client without it"
        )


# --- how they are connected to --------------------------------------------------------------------


def connection_settings(
    address: Address, node: Node, options: Options, reply_seconds: float | None
) -> dict[str, Any]:
    """The settings of our own connections to a node. redis-py repeats nothing by itself then, which
    is right: only we know what may be repeated and until when."""
    settings = {
        "protocol": 2,
        "socket_connect_timeout": options.seconds("reply_timeout"),
        "max_connections": options.pool_size,
        **address.settings,
        "socket_timeout": reply_seconds,
        "host": node.host,
        "port": node.port,
    }
    if address.mode == SENTINEL:
        del settings["host"], settings["port"]
        if settings.pop("connection_class", None) is not None:  # rediss
            settings["ssl"] = True
    return settings


def known_options(pool: Pool) -> Pool:
    """This pool of redis-py's, if its connections take the options of the URL; it connects nothing.
    redis-py itself would find out with the first connection, and raise a TypeError."""
    made: Any = pool
    try:
        made.connection_class(**made.connection_kwargs)
    except TypeError as error:
        raise ConfigurationError(
            f"the store's URL has an option that neither oncekey nor redis-py knows ({error})"
        ) from None
    return pool


def sentinel_settings(address: Address, seconds: float) -> dict[str, Any]:
    """The settings of our own connections to Sentinels."""
    return {
        "protocol": 2,
        "socket_timeout": seconds,
        "socket_connect_timeout": seconds,
        **address.sentinels,
    }
