"""Two brokers never share a scope: a queue of the same name on another broker is refused, or has
keys of its own, and no message is removed unhandled (I8). On real brokers, and the pure rules."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from tests.queues.kafka_topics import Topic, consumer_of
from tests.queues.rabbit_queues import RabbitQueues
from tests.queues.sqs_queues import SqsQueues
from tests.queues.stream_queues import StreamQueues
from tests.support import kafka_servers, redis_stores
from tests.support.postgres_stores import RING, open_blocking
from tests.support.rabbitmq_queues import rabbitmq
from tests.support.servers import processes
from tests.support.servers.kafka_server import KafkaMock
from tests.support.servers.requirements import require
from tests.support.servers.server_lifetime import started
from tests.support.servers.sqs_server import sqs

from oncekey import AsyncOnce, Once
from oncekey.core.errors import ConfigurationError
from oncekey.queues import AsyncConsumer, AsyncMemoryBroker, Consumer, Kind, MemoryBroker, consume
from oncekey.queues.broker_identity import are_same, identity_of
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.kafka.aiokafka_topics import ask
from oncekey.queues.queue_message import Message
from oncekey.queues.rabbitmq.settings import RabbitSettings, parse_cluster
from oncekey.queues.sqs.settings import parse_attributes
from oncekey.stores.memory import MemoryStore
from oncekey.stores.move.dual_store import DualStore
from oncekey.testing.fake_clock import FakeClock

OPTIONS: dict[str, Any] = {"name": "shipping", "key": "json:$.id"}
TERMS: dict[str, Any] = {"keep": "6h", "audit": "6h"}  # what the ring has room for
MESSAGE = Message(b'{"id": 1}', "orders")


@pytest.fixture
def once() -> Iterator[Once]:
    with Once("memory://") as opened:
        yield opened


# --- real brokers ---------------------------------------------------------------------------------


def _two_virtual_hosts(queue: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    node, host = rabbitmq(), processes.fresh_name("host")
    node.ask("PUT", f"vhosts/{host}", {})
    node.ask(
        "PUT",
        f"permissions/{host}/guest",
        {"configure": ".*", "write": ".*", "read": ".*"},
    )
    urls = (node.url, node.url.rpartition("/")[0] + f"/{host}")
    return tuple(_made(RabbitQueues(url), queue, declare=True) for url in urls)  # type: ignore[return-value]


def _sqs_then_kafka(queue: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    topic = Topic(kafka_servers.quick_kafka_mock().client, queue, "g", is_fresh=True)
    queues = SqsQueues(sqs().options())
    queues.send(queue, [])

    def kafka(once: Once, handler: Any, **options: Any) -> Any:
        return consumer_of(topic, once, handler, **{**OPTIONS, **options})

    return _made(queues, queue), kafka


def _two_databases(queue: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    url = redis_stores.valkey().url().rstrip("/").rpartition("/")
    base = url[0] if url[2].isdigit() else "".join(url)
    return tuple(_made(StreamQueues(f"{base}/{n}"), queue) for n in (0, 1))  # type: ignore[return-value]


def _two_clusters(queue: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    made = []
    for mock in (kafka_servers.quick_kafka_mock(), require(_other_mock)):
        topic = Topic(mock.client, queue, "g", is_fresh=True)

        def make(once: Once, handler: Any, topic: Topic = topic, **options: Any) -> Any:
            return consumer_of(topic, once, handler, **{**OPTIONS, **options})

        made.append(make)
    return tuple(made)  # type: ignore[return-value]


@functools.cache
def _other_mock() -> KafkaMock:
    return started(KafkaMock(is_quick=True))


def _made(queues: Any, queue: str, **more: Any) -> Callable[..., Any]:
    def make(once: Once, handler: Any, **options: Any) -> Any:
        return queues.consumer(once, queue, handler, **{**OPTIONS, **more, **options})

    return make


PAIRS = {
    "two virtual hosts": _two_virtual_hosts,
    "SQS, then Kafka": _sqs_then_kafka,
    "two databases of Redis": _two_databases,
    "two clusters of Kafka": _two_clusters,
}


@pytest.mark.parametrize("pair", PAIRS)
def test_i8_a_queue_of_the_same_name_on_another_broker_is_refused_or_told_apart(
    once: Once, pair: str
) -> None:
    """`handle` begins as `run` does. The same key on both brokers is two messages to handle."""
    first, second = PAIRS[pair](processes.fresh_name("orders"))
    ran: list[str] = []

    def handler(where: str) -> Callable[[Message], None]:
        return lambda message: ran.append(where)

    consumer = first(once, handler("first"))
    assert consumer.handle(MESSAGE).kind is Kind.REMOVE
    other = second(once, handler("second"))
    with pytest.raises(ConfigurationError, match=r"removed unhandled.*broker_name=") as caught:
        other.handle(MESSAGE)
    assert repr(consumer.broker.facts().broker) in str(caught.value), "what to give if it has moved"
    named = second(once, handler("second"), broker_name="eu")
    assert named.handle(MESSAGE).kind is Kind.REMOVE
    assert ran == ["first", "second"]
    again = first(once, handler("first"))  # after a restart, on new connections
    assert again.handle(MESSAGE).kind is Kind.REMOVE
    assert ran == ["first", "second"], "its key still recognises the duplicate"
    for each in (consumer, other, named, again):
        each.broker.close()


def test_a_cluster_of_kafka_tells_its_id_to_both_clients() -> None:
    """Any cluster does since 0.10.1."""
    server = kafka_servers.headers_kafka()
    topic = Topic(server.client)
    with Once("memory://") as opened:
        broker = consumer_of(topic, opened, print).broker
        told = broker.facts().broker
    config = {"bootstrap_servers": server.address}
    _, cluster = asyncio.run(ask(config, [topic.name], 60.0))
    assert cluster
    assert told == identity_of("kafka", cluster=cluster)
    old = Topic(kafka_servers.old_kafka().client)
    with Once("memory://") as opened:
        assert consumer_of(old, opened, print).broker.facts().broker == "kafka"


def test_the_id_of_a_redis_server_is_copied_with_its_data() -> None:
    """So it stays the same after a failover, whatever the address is then."""
    server, queue = redis_stores.valkey(), processes.fresh_name("orders")
    with Once("memory://") as opened, redis.Redis.from_url(server.url()) as client:
        make = _made(StreamQueues(server.url()), queue)
        told = make(opened, print).broker.facts().broker
        client.delete(queue)  # a stream that is made again is on the same server
        assert make(opened, print).broker.facts().broker == told
        assert client.get(f"{queue}:oncekey-broker").decode() in told


# --- the rules ------------------------------------------------------------------------------------


def on(broker: str | None) -> MemoryBroker:
    return MemoryBroker(facts=BrokerFacts("orders", broker=broker))


def test_a_broker_that_was_moved_goes_on_with_its_keys(once: Once) -> None:
    ran: list[str] = []
    Consumer(once, lambda m: ran.append("old"), on("kafka cluster=a"), **OPTIONS).handle(MESSAGE)
    moved = {**OPTIONS, "broker_name": "kafka cluster=a"}
    consumer = Consumer(once, lambda m: ran.append("new"), on("kafka cluster=b"), **moved)
    assert consumer.handle(MESSAGE).kind is Kind.REMOVE
    assert ran == ["old"]


@pytest.mark.parametrize("moving", [False, True], ids=["alone", "moved-to"])
def test_a_ring_remembers_the_broker_longer_than_its_own_keys(moving: bool) -> None:
    """The binding has to outlive every slot of the ring, or the next broker would find its keys."""
    clock, ran = FakeClock(), list[Message]()
    store: Any = open_blocking(clock=clock.wall, **RING)
    with Once(DualStore(MemoryStore(clock=clock.wall), store) if moving else store) as opened:
        consumer = Consumer(opened, ran.append, on("kafka cluster=a"), **OPTIONS, **TERMS)
        assert consumer.handle(MESSAGE).kind is Kind.REMOVE
        for _ in range(3 * RING["ring_slots"]):  # three times round
            clock.advance(3 * 3_600_000_000)
            opened.run("other", "k", lambda attempt: None, keep="1s", audit="0s")
            opened.sweep()
        other = Consumer(opened, ran.append, on("kafka cluster=b"), **OPTIONS, **TERMS)
        with pytest.raises(ConfigurationError, match="belong to the broker"):
            other.handle(MESSAGE)
    assert ran == [MESSAGE]
    store.close()


def test_keys_from_before_a_broker_was_remembered_are_still_found(once: Once) -> None:
    """The scope of the first broker is what it always was."""
    ran: list[str] = []
    stored: dict[str, Any] = {"scope": "shipping/orders", "request": b"{}"}
    once.run("shipping", "1", lambda attempt: ran.append("before"), **stored)
    given = {**OPTIONS, "request": lambda message: b"{}"}
    Consumer(once, lambda m: ran.append("after"), on("kafka cluster=a"), **given).handle(MESSAGE)
    assert ran == ["before"]


def test_what_a_broker_does_not_tell_is_not_compared(once: Once) -> None:
    """Kafka before 0.10.1 has no id of its cluster, and gets one by an upgrade."""
    for broker in ("kafka", "kafka cluster=a", "kafka"):
        assert Consumer(once, print, on(broker), **OPTIONS).handle(MESSAGE).kind is Kind.REMOVE
    for other in ("rabbitmq vhost=/", None):
        with pytest.raises(ConfigurationError, match="belong to the broker"):
            Consumer(once, print, on(other), **OPTIONS).handle(MESSAGE)


def test_a_single_message_and_a_consumer_do_not_share_a_scope(once: Once) -> None:
    Consumer(once, print, on("kafka cluster=a"), **OPTIONS).handle(MESSAGE)
    with pytest.raises(ConfigurationError, match="belong to the broker"):
        consume(once, "1", MESSAGE.body, print, name="shipping", queue="orders")
    named = consume(
        once, "1", MESSAGE.body, print, name="shipping", queue="orders", broker_name="nats"
    )
    assert named.kind is Kind.REMOVE


def test_a_name_never_makes_the_scope_of_another_queue(once: Once) -> None:
    Consumer(once, print, on("kafka"), **OPTIONS, broker_name="eu").handle(MESSAGE)
    odd = MemoryBroker(facts=BrokerFacts("orders on eu", broker="kafka"))
    with pytest.raises(ConfigurationError, match="belong to the broker"):
        Consumer(once, print, odd, **OPTIONS).handle(MESSAGE)


def test_an_async_consumer_is_refused_as_well() -> None:
    async def ship(message: Message) -> None: ...

    async def main() -> None:
        async with AsyncOnce("memory://") as opened:
            first = AsyncMemoryBroker(on("kafka cluster=a"))
            await AsyncConsumer(opened, ship, first, **OPTIONS).handle(MESSAGE)
            other = AsyncMemoryBroker(on("kafka cluster=b"))
            with pytest.raises(ConfigurationError, match="belong to the broker"):
                await AsyncConsumer(opened, ship, other, **OPTIONS).run()
            named = AsyncConsumer(opened, ship, other, **OPTIONS, broker_name="b")
            assert (await named.handle(MESSAGE)).kind is Kind.REMOVE

    asyncio.run(main())


@pytest.mark.parametrize("name", ["", " ", "x" * 256, "a\nb", 3])
def test_a_broker_name_that_cannot_be_one_is_refused(once: Once, name: Any) -> None:
    with pytest.raises(ConfigurationError, match="broker_name"):
        Consumer(once, print, on(None), **OPTIONS, broker_name=name)


def test_identities_are_the_same_unless_they_contradict_each_other() -> None:
    a = identity_of("rabbitmq", vhost="/ my host", cluster=None)
    assert a == "rabbitmq vhost=/%20my%20host"
    assert are_same(a, identity_of("rabbitmq", vhost="/ my host", cluster="x y"))
    assert not are_same(a, identity_of("rabbitmq", vhost="/", cluster="x y"))
    assert not are_same("kafka", "rabbitmq")


def rabbit(cluster: str | bytes | None, *urls: str) -> BrokerFacts:
    """The facts of a queue of RabbitMQ whose server properties have this `cluster_name`."""
    settings = RabbitSettings(url=urls or ("amqp://host/",), queue="orders")
    return settings.facts((4, 3), None, parse_cluster({"cluster_name": cluster}))


def test_i8_two_brokers_of_rabbitmq_without_a_name_of_their_own_do_not_share_a_scope(
    once: Once,
) -> None:
    """Without set_cluster_name a broker tells the name of its node."""
    ran: list[str] = []
    eu, us = (MemoryBroker(facts=rabbit(name)) for name in (b"rabbit@eu1", "rabbit@us1"))
    first = Consumer(once, lambda m: ran.append("eu"), eu, **OPTIONS)
    assert first.handle(MESSAGE).kind is Kind.REMOVE
    with pytest.raises(ConfigurationError, match=r"rabbit@eu1.*set_cluster_name") as caught:
        Consumer(once, lambda m: ran.append("us"), us, **OPTIONS).handle(MESSAGE)
    assert ran == ["eu"]
    (same,) = re.findall(r"broker_name='(rabbitmq [^']*)'", str(caught.value))
    moved = Consumer(once, lambda m: ran.append("us"), us, **OPTIONS, broker_name=same)
    assert moved.handle(MESSAGE).kind is Kind.REMOVE
    assert ran == ["eu"], "the name of the remembered broker says that it is the same one"


def test_a_cluster_of_rabbitmq_without_a_name_is_refused_at_its_first_start(once: Once) -> None:
    """Which node answers is luck: each tells its own name."""
    two = ("amqp://n1/", "amqp://n2/")
    broker = MemoryBroker(facts=rabbit("rabbit@n1", *two))
    with pytest.raises(ConfigurationError, match=r"set_cluster_name.*broker_name="):
        Consumer(once, print, broker, **OPTIONS).handle(MESSAGE)
    assert Consumer(once, print, broker, **OPTIONS, broker_name="eu").handle(MESSAGE)
    named = MemoryBroker(facts=rabbit("production", *two))
    assert Consumer(once, print, named, **OPTIONS).handle(MESSAGE).kind is Kind.REMOVE


def test_a_broker_may_be_named_by_the_longest_identity(once: Once) -> None:
    host = "rabbit-server-0.rabbit-nodes.production-of-the-shop.svc.cluster.example.org"
    facts = rabbit(f"rabbit@{host}")
    assert facts.broker is not None
    assert len(facts.broker) > 100
    Consumer(once, print, MemoryBroker(facts=facts), **OPTIONS).handle(MESSAGE)
    moved = MemoryBroker(facts=rabbit("rabbit@other"))
    again = Consumer(once, print, moved, **OPTIONS, broker_name=facts.broker)
    assert again.handle(MESSAGE).kind is Kind.REMOVE


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("https://sqs.eu-central-1.amazonaws.com/1/orders", ""),
        ("https://vpce-1.sqs.eu-central-1.vpce.amazonaws.com/1/orders", ""),
        ("http://localhost:4566/1/orders", " endpoint=localhost:4566"),
    ],
)
def test_sqs_is_told_apart_by_account_and_region_and_only_emulators_by_address(
    url: str, endpoint: str
) -> None:
    given = {
        "QueueArn": "arn:aws:sqs:eu-central-1:1:orders",
        "CreatedTimestamp": "1",
        "MessageRetentionPeriod": "60",
        "MaximumMessageSize": "1024",
    }
    told = parse_attributes(url, given).broker
    assert told == f"sqs partition=aws region=eu-central-1 account=1{endpoint}"
