"""The command line's own connections to Redis or Valkey servers, and what is read over them.

This module finds the masters that a URL means, and reads of each what the checks and the inspection
need; it writes nothing. It judges nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from oncekey.stores.redis import durability
from oncekey.stores.redis.server_checks import Node

if TYPE_CHECKING:
    import redis

# How long a checkup waits for a connection, and for each reply.
CHECKUP_REPLY_SECONDS: Final = 5.0

_SETTINGS: Final = (*durability.CONFIG_NAMES, "timeout", "busy-reply-threshold", "lua-time-limit")
_PROBE: Final = "return 1"


class Master(NamedTuple):
    """A connection to a master, and what was read of it."""

    client: redis.Redis
    node: Node


class CheckupSession:
    """The masters that a URL means."""

    def __init__(self, masters: Sequence[Master], sentinel: Mapping[str, str] | None) -> None:
        """`sentinel`: what a Sentinel says of the master, if one was asked."""
        self.masters = masters
        self.sentinel = sentinel

    @property
    def nodes(self) -> list[Node]:
        return [master.node for master in self.masters]

    @property
    def name(self) -> str:
        """Where the servers are, for messages."""
        return ", ".join(node.name for node in self.nodes)

    @property
    def server(self) -> durability.Server:
        """All masters as one, by the weakest of them."""
        return durability.weakest([node.server for node in self.nodes])

    def cluster_info(self) -> dict[str, str]:
        """CLUSTER INFO, as the first master sees the Cluster."""
        reply = self.masters[0].client.execute_command("CLUSTER", "INFO")
        return durability.parse_info(reply)


def read_node(client: redis.Redis, name: str, mode: str = "", known_replicas: int = 0) -> Node:
    """Read what a server says of itself."""
    info = durability.parse_info(client.execute_command("INFO"))
    config = _config(client)
    before = time.time_ns() // 1_000
    seconds, microseconds = client.execute_command("TIME")
    after = time.time_ns() // 1_000
    server = durability.parse_server(
        info,
        config,
        mode=mode,
        known_replicas=known_replicas,
        has_scripts=_has_scripts(client),
    )
    clock = (int(seconds) * 1_000_000 + int(microseconds), before, after)
    return Node(name, server, info, config, clock)


def _config(client: redis.Redis) -> dict[str, str] | None:
    """The settings one by one, because old servers take one name; None if CONFIG is forbidden."""
    from redis.exceptions import ResponseError

    found: dict[str, str] = {}
    try:
        for name in _SETTINGS:
            found |= durability.parse_config(client.execute_command("CONFIG", "GET", name))
    except ResponseError:
        return None
    return found


def _has_scripts(client: redis.Redis) -> bool:
    """Whether EVAL works. A server that is loading or busy is no server without scripts."""
    from redis.exceptions import NoPermissionError, ResponseError

    try:
        client.execute_command("EVAL", _PROBE, 0)
    except NoPermissionError:
        return False
    except ResponseError as error:
        if "unknown command" in str(error).lower() or "engine" in str(error).lower():
            return False
        raise
    return True
