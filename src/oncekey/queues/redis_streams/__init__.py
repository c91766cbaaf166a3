"""Redis Streams: consumers and senders with redis-py, for Redis 7 and Valkey 7.2 or newer."""

from __future__ import annotations

from oncekey.queues.redis_streams.consumers import AsyncRedisStreamConsumer, RedisStreamConsumer
from oncekey.queues.redis_streams.sender import AsyncRedisStreamSender, RedisStreamSender
from oncekey.queues.redis_streams.settings import StreamRefused

__all__ = [
    "AsyncRedisStreamConsumer",
    "AsyncRedisStreamSender",
    "RedisStreamConsumer",
    "RedisStreamSender",
    "StreamRefused",
]
