"""`python -m bench queues`: guarded consumption beside the bare loop of the same client and broker.

Two handlers: one that takes a millisecond, as most that do anything do, and one that does nothing,
which shows the guard's own limit. A slice consumes some thousand messages, a round is one slice of
every contestant, and a figure the median of its slices.
"""

from __future__ import annotations

import asyncio
import warnings

from idemkit.backends.postgres import init_pg
from tests.support.servers.kafka_server import KafkaServer
from tests.support.servers.rabbitmq_server import RabbitServer
from tests.support.servers.redis_server import RedisServer

from bench.figures import Ratio, Report, in_turns
from bench.postgres import oncekey_runs
from bench.postgres import server as postgres_servers
from bench.queues.kafka import Topics
from bench.queues.meter import SLOW_S
from bench.queues.rabbitmq import RabbitQueues
from bench.queues.streams import Streams

ROUNDS = 3
SLOW_AT_ONCE = 8
FAST_AT_ONCE = 64
BATCH = 128
FEW = 1_500  # messages of those who take long for each


def run() -> list[Report]:
    warnings.filterwarnings("ignore", "idemkit")  # that no scope is set: there is one caller
    with postgres_servers.started() as database:
        database.create_database("oncekey")
        peer = database.create_database("idemkit")
        asyncio.run(init_pg(peer))
        url = database.url("oncekey")
        with RedisServer() as valkey:
            streams = _streams(Streams(valkey.url(), url, peer), url)
        with KafkaServer() as broker:
            topics = _kafka(Topics(broker.client, url, peer), url)
        with RabbitServer() as node:
            queues = _rabbitmq(RabbitQueues(node.url, url), url)
    return [streams, topics, queues]


def _streams(streams: Streams, url: str) -> Report:
    slow, bare_slow = "oncekey, 1 ms, 8 at once", "bare loop, 1 ms, 8 at once"
    fast, bare_fast = "oncekey, empty handler", "bare loop, empty handler"
    single, own = "oncekey around one message at a time", "oncekey's own first runs, 64 tasks"
    peer = "idemkit around 64 messages at once"
    timings = in_turns(
        {
            bare_slow: lambda _: streams.bare(SLOW_AT_ONCE, SLOW_S),
            slow: lambda _: streams.guarded(SLOW_AT_ONCE, BATCH, SLOW_S),
            bare_fast: lambda _: streams.bare(FAST_AT_ONCE, 0),
            fast: lambda _: streams.guarded(FAST_AT_ONCE, BATCH, 0),
            own: lambda _: oncekey_runs.in_tasks(url, FAST_AT_ONCE),
            single: lambda _: streams.one_at_a_time(0, FEW),
            peer: lambda _: streams.peer(FAST_AT_ONCE, 0, FEW),
        },
        ROUNDS,
        lines=True,
    )
    us = {name: timing.us for name, timing in timings.items()}
    ratios = [
        Ratio("Streams, 1 ms handler, of the bare loop", us[bare_slow] / us[slow], 0.8),
        Ratio("Streams, empty handler, of the store's own first runs", us[own] / us[fast], 0.7),
        Ratio("Streams, against a guard of one message at a time", us[single] / us[fast], 5),
        Ratio("Streams, against idemkit", us[peer] / us[fast]),
        Ratio("Streams, empty handler, of the bare loop", us[bare_fast] / us[fast]),
    ]
    return Report(
        "Redis Streams on Valkey, guarded on PostgreSQL, tasks", [*timings.values()], ratios
    )


def _kafka(topics: Topics, url: str) -> Report:
    slow, bare_slow = "oncekey, 1 ms, 8 at once", "bare loop, 1 ms, 8 at once"
    fast, bare_fast = "oncekey, empty handler", "bare loop, empty handler"
    single, own = "oncekey around one message at a time", "oncekey's own first runs, 64 threads"
    peer = "idemkit's documented loop"
    timings = in_turns(
        {
            bare_slow: lambda _: topics.bare(SLOW_AT_ONCE, SLOW_S),
            slow: lambda _: topics.guarded(SLOW_AT_ONCE, BATCH, SLOW_S),
            bare_fast: lambda _: topics.bare(FAST_AT_ONCE, 0),
            fast: lambda _: topics.guarded(FAST_AT_ONCE, BATCH, 0),
            own: lambda _: oncekey_runs.in_threads(url, FAST_AT_ONCE),
            single: lambda _: topics.one_at_a_time(0, FEW),
            peer: lambda _: topics.peer(0, FEW),
        },
        ROUNDS,
        lines=True,
    )
    us = {name: timing.us for name, timing in timings.items()}
    ratios = [
        Ratio("Kafka, 1 ms handler, of the bare loop", us[bare_slow] / us[slow], 0.8),
        Ratio("Kafka, empty handler, of the store's own first runs", us[own] / us[fast], 0.7),
        Ratio("Kafka, against a guard of one message at a time", us[single] / us[fast], 5),
        Ratio("Kafka, against idemkit's loop", us[peer] / us[fast]),
        Ratio("Kafka, empty handler, of the bare loop", us[bare_fast] / us[fast]),
    ]
    return Report("Kafka 0.9, guarded on PostgreSQL, threads", [*timings.values()], ratios)


def _rabbitmq(queues: RabbitQueues, url: str) -> Report:
    slow, bare_slow = "oncekey, 1 ms, 8 at once", "bare loop, 1 ms, 8 at once"
    fast, bare_fast = "oncekey, empty handler", "bare loop, empty handler"
    single, own = "oncekey around one message at a time", "oncekey's own first runs, 64 tasks"
    timings = in_turns(
        {
            bare_slow: lambda _: queues.bare(SLOW_AT_ONCE, BATCH, SLOW_S),
            slow: lambda _: queues.guarded(SLOW_AT_ONCE, BATCH, SLOW_S),
            bare_fast: lambda _: queues.bare(FAST_AT_ONCE, BATCH, 0),
            fast: lambda _: queues.guarded(FAST_AT_ONCE, BATCH, 0),
            own: lambda _: oncekey_runs.in_tasks(url, FAST_AT_ONCE),
            single: lambda _: queues.one_at_a_time(0, FEW),
        },
        ROUNDS,
        lines=True,
    )
    us = {name: timing.us for name, timing in timings.items()}
    ratios = [
        Ratio("RabbitMQ, 1 ms handler, of the bare loop", us[bare_slow] / us[slow], 0.8),
        Ratio("RabbitMQ, empty handler, of the store's own first runs", us[own] / us[fast], 0.7),
        Ratio("RabbitMQ, against a guard of one message at a time", us[single] / us[fast], 5),
        Ratio("RabbitMQ, empty handler, of the bare loop", us[bare_fast] / us[fast]),
    ]
    return Report(
        "RabbitMQ 4.3, a quorum queue, guarded on PostgreSQL, tasks", [*timings.values()], ratios
    )
