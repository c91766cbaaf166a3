"""Redis Streams with clients of the caller, on a Cluster, and with servers that refuse."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.sentinel import Sentinel
from tests.support.redis_stores import sentinel, valkey, valkey_cluster
from tests.support.servers import processes
from tests.support.servers.redis_sentinel import SERVICE
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.requirements import require

from oncekey import AsyncOnce, Once
from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.queue_message import Message
from oncekey.queues.redis_streams import (
    AsyncRedisStreamConsumer,
    RedisStreamConsumer,
    StreamRefused,
)

ORDERS = 20
OPTIONS: dict[str, Any] = {
    "name": "shipping",
    "key": "json:$.order",
    "start": "first",
    "retention": "1h",
    "retry_safe": True,
}


def consume(client: Any, stream: str, **options: Any) -> Counter[int]:
    """Add orders and consume them; how often each was handled."""
    for order in range(ORDERS):
        client.xadd(stream, {"body": json.dumps({"order": order})})
    handled: Counter[int] = Counter()

    def handler(message: Message) -> None:
        handled[message.json()["order"]] += 1

    with Once("memory://") as once:
        consumer = RedisStreamConsumer(once, handler, stream, **{**OPTIONS, **options})

        def stop_at_the_end(message: Message, disposition: Any) -> None:
            if sum(consumer.counts.values()) == ORDERS:
                consumer.stop()

        consumer.on_settled = stop_at_the_end
        consumer.run()
    assert client.xpending(stream, "shipping")["pending"] == 0
    return handled


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_client_of_the_caller_is_used_and_stays_open(protocol: int) -> None:
    with redis.Redis(port=valkey().port, protocol=protocol, socket_timeout=5) as client:
        handled = consume(client, processes.fresh_name("caller"), server=client)
        assert client.ping()
    assert handled == dict.fromkeys(range(ORDERS), 1)


def test_a_cluster_has_all_keys_of_a_stream_in_one_slot() -> None:
    node = valkey_cluster().masters()[0]
    stream = "{" + processes.fresh_name("orders") + "}"
    with redis.RedisCluster(host="127.0.0.1", port=node.port) as client:
        assert consume(client, stream, server=client) == dict.fromkeys(range(ORDERS), 1)
        with Once("memory://") as once, pytest.raises(ConfigurationError, match="with braces"):
            RedisStreamConsumer(once, print, "orders", server=client, **OPTIONS)


@pytest.mark.soak  # a Sentinel's master is a plain client
def test_a_master_that_sentinels_watch_is_consumed() -> None:
    service, stream = sentinel(), processes.fresh_name("watched")
    places = [("127.0.0.1", watcher.port) for watcher in service.sentinels]
    manager: Any = Sentinel(places)  # type: ignore[no-untyped-call]
    with manager.master_for(SERVICE) as client:
        assert consume(client, stream, server=client) == dict.fromkeys(range(ORDERS), 1)


def test_a_cluster_is_consumed_in_an_event_loop() -> None:
    handled: Counter[int] = Counter()
    stream = "{" + processes.fresh_name("orders") + "}"

    async def handler(message: Message) -> None:
        handled[message.json()["order"]] += 1

    async def main() -> None:
        node = valkey_cluster().masters()[0]
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=node.port)
        async with client, AsyncOnce("memory://") as once:
            for order in range(ORDERS):
                await client.xadd(stream, {"body": json.dumps({"order": order})})
            consumer = AsyncRedisStreamConsumer(once, handler, stream, server=client, **OPTIONS)

            def stop_at_the_end(message: Message, disposition: Any) -> None:
                if sum(consumer.counts.values()) == ORDERS:
                    consumer.stop()

            consumer.on_settled = stop_at_the_end
            await consumer.run()

    asyncio.run(main())
    assert handled == dict.fromkeys(range(ORDERS), 1)


def test_a_user_without_rights_and_a_server_that_is_away_are_told_apart() -> None:
    with require(RedisServer) as server:
        server.execute("ACL", "SETUSER", "guest", "on", ">pw", "~*", "+ping", "+client")
        url = f"redis://guest:pw@127.0.0.1:{server.port}/0"
        with Once("memory://") as once:
            consumer = RedisStreamConsumer(once, print, "orders", server=url, **OPTIONS)
            with pytest.raises(StreamRefused, match="lacks rights"):
                consumer.run()
            server.kill()
            away = RedisStreamConsumer(once, print, "orders", server=server.url(), **OPTIONS)
            with pytest.raises(BrokerUnavailable):  # which `run` waits for
                away.broker.facts()
