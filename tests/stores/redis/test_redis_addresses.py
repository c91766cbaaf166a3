"""URLs, options and clients: what is understood, what is refused, and that no password is shown."""

from __future__ import annotations

from typing import Any

import pytest
import redis
import redis.asyncio
from redis.connection import SSLConnection, parse_url

from oncekey.core.errors import ConfigurationError
from oncekey.engine.store_urls import async_store, blocking_store
from oncekey.stores.redis import AsyncRedisStore, RedisStore, open_blocking
from oncekey.stores.redis.keyspace import Node
from oncekey.stores.redis.options import Options, connection_settings, parse_address, split_url

URLS: dict[str, Any] = {
    "redis://h:7/3": ("standalone", [("h", 7)], {"db": 3}),
    "redis://u:p%40ss@h": ("standalone", [("h", 6379)], {"username": "u", "password": "p@ss"}),
    "rediss://h": ("standalone", [("h", 6379)], {"connection_class": SSLConnection}),
    "redis://[::1]:7": ("standalone", [("::1", 7)], {}),
    "redis+cluster://a:1,b,c:3": ("cluster", [("a", 1), ("b", 6379), ("c", 3)], {}),
    "redis+sentinel://:pw@a,b:2/main": (
        "sentinel",
        [("a", 26379), ("b", 2)],
        {"password": "pw"},
    ),
    "rediss+sentinel://a/main/4": ("sentinel", [("a", 26379)], {"db": 4}),
    "redis://h?client_name=shop": ("standalone", [("h", 6379)], {"client_name": "shop"}),
}


@pytest.mark.parametrize("url", URLS)
def test_an_address_is_taken_apart(url: str) -> None:
    mode, nodes, settings = URLS[url]
    address = parse_address(url, parse_url)
    assert (address.mode, list(address.nodes)) == (mode, nodes)
    assert settings.items() <= address.settings.items()


def test_sentinels_name_the_service_and_may_have_a_login_of_their_own() -> None:
    url = "rediss+sentinel://:pw@a:1/main?sentinel_password=other"
    address = parse_address(url, parse_url)
    assert (address.service, address.sentinels["password"]) == ("main", "other")
    settings = connection_settings(address, Node("a", 1), Options(), 2.0)
    assert settings["ssl"] is True
    assert "host" not in settings
    assert "sentinel_password" not in settings


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("redis://a,b", "redis\\+sentinel"),
        ("redis+sentinel://a", "does not name the master"),
        ("redis+cluster://a/3", "no numbered databases"),
        ("redis://h?decode_responses=true", "decode_responses"),
        ("redis://:secret@h:port", "not one Redis understands"),
        ("redis://:sec[ret@h:port", "not one Redis understands"),
        ("redis://h?prefix={x}", "must do without"),
        ("redis://h?prefix=", "1 to 100"),
        ("redis://h?pool_size=0", "1 to 256"),
        ("redis://h?pool_size=many", "must be a number"),
        ("redis://h?call_timeout=0s", "1ms or longer"),
        ("redis://h?failover=maybe", "choose auto, never"),
        ("redis://h?prefix=a&prefix=b", "given twice"),
    ],
)
def test_what_cannot_work_is_refused_without_showing_a_password(url: str, match: str) -> None:
    with pytest.raises(ConfigurationError, match=match) as caught:
        open_blocking(url)
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_options_are_taken_out_of_the_url() -> None:
    address, options = split_url("redis://h/2?prefix=shop&reply_timeout=1s&client_name=a%20b")
    assert (options.prefix, options.seconds("reply_timeout")) == ("shop", 1.0)
    assert address == "redis://h/2?client_name=a%20b"


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster", "rediss+cluster"])
def test_the_engine_opens_every_scheme(scheme: str) -> None:
    assert type(blocking_store(f"{scheme}://h")) is RedisStore
    assert type(async_store(f"{scheme}://h")) is AsyncRedisStore
    sentinel = f"{scheme.partition('+')[0]}+sentinel://h/main"
    assert type(blocking_store(sentinel)) is RedisStore


@pytest.mark.parametrize(
    ("kind", "client", "match"),
    [
        (RedisStore, redis.Redis(decode_responses=True), "decode_responses"),
        (AsyncRedisStore, redis.asyncio.Redis(decode_responses=True), "decode_responses"),
        (RedisStore, redis.asyncio.Redis(), "AsyncRedisStore"),
        (AsyncRedisStore, redis.Redis(), "RedisStore"),
        (RedisStore, 7, "neither an address nor"),
    ],
)
def test_a_client_that_cannot_serve_is_refused(kind: Any, client: Any, match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        kind(client)
