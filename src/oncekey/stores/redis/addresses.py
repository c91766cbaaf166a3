"""Where the servers are: the URL's part that is not our options, taken apart.

    redis://user:password@host:6379/0          one server; rediss:// with TLS
    redis+sentinel://host:26379,host/service/0 the master that Sentinels name
    redis+cluster://host:6379,host             a cluster, asked for by some of its nodes

This module knows redis-py only by its function that parses a URL, which differs for sync and async.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from oncekey.core.errors import ConfigurationError
from oncekey.stores.redis import durability
from oncekey.stores.redis.errors import invalid_address
from oncekey.stores.redis.options import Options
from oncekey.stores.redis.slot_table import Node

PORT_DEFAULT: Final = 6379
SENTINEL_PORT_DEFAULT: Final = 26379
HOSTS_MAX: Final = 64
_MODES: Final = {"sentinel": durability.SENTINEL, "cluster": durability.CLUSTER}
_SENTINEL_ONLY: Final = ("sentinel_username", "sentinel_password")

Pool = TypeVar("Pool")
ParseUrl = Callable[[str], Mapping[str, Any]]


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
    if address.mode == durability.SENTINEL:
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


def _parse(url: str, parse_url: ParseUrl) -> Address:
    parts = urlsplit(url)
    scheme, _, kind = parts.scheme.partition("+")
    mode = _MODES.get(kind, durability.STANDALONE)
    login, at, places = parts.netloc.rpartition("@")
    default = SENTINEL_PORT_DEFAULT if mode == durability.SENTINEL else PORT_DEFAULT
    nodes = tuple(_node(place, default) for place in places.split(",")[:HOSTS_MAX])
    service, path = "", parts.path
    if mode == durability.SENTINEL:
        service, _, database = unquote(path).strip("/").partition("/")
        path = f"/{database}"
        if not service:
            raise ConfigurationError(
                "the URL does not name the master that the Sentinels watch; write "
                "redis+sentinel://host:26379/service"
            )
    elif mode == durability.CLUSTER and path.strip("/") not in ("", "0"):
        raise ConfigurationError("a cluster has no numbered databases; leave the number out")
    elif len(nodes) > 1 and mode == durability.STANDALONE:
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
