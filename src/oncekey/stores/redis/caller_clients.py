"""Clients of redis-py that the caller has made and gives to a store.

This module reads where they connect to, and refuses those that would change our bytes. It closes
nothing, since they are the caller's.
"""

from __future__ import annotations

from typing import Any

from oncekey.core.errors import ConfigurationError
from oncekey.stores.redis import durability
from oncekey.stores.redis.addresses import PORT_DEFAULT, Address
from oncekey.stores.redis.slot_table import Node


def plain_mode(pool: Any, sentinel_pool: type) -> Address:
    """The address behind the pool of a plain client. `sentinel_pool` is the class of pools that ask
    Sentinels for it."""
    settings: dict[str, Any] = pool.connection_kwargs
    _check(settings)
    mode = durability.SENTINEL if isinstance(pool, sentinel_pool) else durability.STANDALONE
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
    return Address(durability.CLUSTER, nodes, settings)


def _check(settings: dict[str, Any]) -> None:
    if settings.get("decode_responses"):
        raise ConfigurationError(
            "this client has decode_responses=True, which changes bytes into text; give the store "
            "a client without it"
        )
