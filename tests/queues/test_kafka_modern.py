"""What only a broker of this decade shows, on Kafka 4.1: topic ids, group protocols, added
partitions, topics that it creates in the background."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka.admin import AdminClient
from tests.queues.kafka_clients import CLIENTS
from tests.queues.kafka_topics import NEW_GROUP, SECONDS, Topic, wait_for
from tests.support.kafka_servers import modern_kafka
from tests.support.servers import processes, require
from tests.support.servers.kraft_server import SOON_BACK, KraftServer

from oncekey.core.errors import ConfigurationError
from oncekey.queues.kafka import program
from oncekey.queues.kafka.aiokafka_topics import ask
from oncekey.queues.kafka.confluent_client import ConfluentTopics
from oncekey.queues.queue_message import Message


@pytest.fixture(params=CLIENTS)
def clients(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = CLIENTS[request.param]()
    yield made
    made.close()


@pytest.fixture
def topic() -> Topic:
    return Topic(modern_kafka().client)


# --- topics that are created again ----------------------------------------------------------------


class CreatedAgain:
    """A topic that is created again while a handler holds a message of the old one.

    Its consumer fetches nothing meanwhile, and does not hear that the topic was deleted. When it
    goes on, the new topic has grown past the place where it was.
    """

    OLD = ("old-1", "old-2", "old-3")
    NEW = tuple(f"new-{number}" for number in range(6))

    def __init__(self, topic: Topic, clients: Any) -> None:
        self.topic = topic
        self.seen: list[object] = []
        self._clients = clients
        self._go_on = threading.Event()

    def handle(self, message: Message) -> None:
        self.seen.append(message.json()["order"])
        if self.seen[-1] == self.OLD[-1]:
            assert self._go_on.wait(SECONDS)

    @contextmanager
    def running(self, **options: Any) -> Iterator[Any]:
        # Nobody asks for the topics again unless something makes it.
        config = {**self.topic.config, "topic.metadata.refresh.interval.ms": 300_000}
        given = {"config": config, "concurrency": 1, **options}
        consumer = self._clients.consumer(self.topic, self.handle, **given)
        with self._clients.running(consumer):
            yield consumer

    def create_again(self, consumer: Any) -> None:
        self.topic.send(*self.OLD)
        wait_for(lambda: self.seen == list(self.OLD), "the old ones are with the handler")
        wait_for(lambda: self.topic.committed()[0] == len(self.OLD) - 1, "nothing is to commit")
        self._clients.stop_fetching(consumer)
        modern_kafka().delete_topic(self.topic.name)
        self.topic.recreate()
        self.topic.send(*self.NEW)
        self._clients.fetch_again(consumer)
        self._go_on.set()

    def check_all_were_handled(self) -> None:
        everything = sorted([*self.OLD, *self.NEW])
        wait_for(lambda: sorted(map(str, self.seen)) == everything, "the new ones are handled")
        self.topic.wait_until_done()
        assert sorted(map(str, self.seen)) == everything, "each once"


@pytest.fixture
def again(topic: Topic, clients: Any, monkeypatch: pytest.MonkeyPatch) -> CreatedAgain:
    monkeypatch.setattr(program, "CHECK_EVERY_S", 0.1)
    return CreatedAgain(topic, clients)


def test_i4_no_message_of_a_topic_that_is_created_again_is_skipped(again: CreatedAgain) -> None:
    """The client goes on at the offset of the old topic, which the new one has grown past."""
    with again.running() as consumer:
        again.create_again(consumer)
        again.check_all_were_handled()


def test_i1_i4_delivery_keys_of_a_topic_that_is_created_again_are_new_ones(
    again: CreatedAgain,
) -> None:
    """The messages of the new topic have the offsets of old ones, which are done."""
    options = {"key": "delivery", "request": None}
    ended = pytest.raises(ConfigurationError, match="was created again")
    with ended, again.running(**options) as consumer:
        again.create_again(consumer)
        wait_for(lambda: not consumer._is_running, "the consumer ends")
    with again.running(**options):
        again.check_all_were_handled()


# --- topics that are missing at the start ---------------------------------------------------------


def check_confluent(address: str, topics: list[str]) -> None:
    ConfluentTopics({"bootstrap.servers": address}, SECONDS).check(topics)


def check_aiokafka(address: str, topics: list[str]) -> None:
    asyncio.run(ask({"bootstrap_servers": address}, topics, SECONDS))


@pytest.mark.parametrize("check", [check_confluent, check_aiokafka])
def test_topics_that_the_broker_creates_when_it_is_asked_are_waited_for(check: Any) -> None:
    """Kafka 4 creates a topic in the background, and does not know it until it is there."""
    names = [processes.fresh_name("orders") for _ in range(3)]
    check(modern_kafka().address, names)
    assert modern_kafka().topics() >= set(names)


@pytest.mark.parametrize("check", [check_confluent, check_aiokafka])
def test_a_topic_that_nobody_creates_is_named(check: Any) -> None:
    """The name of a topic has no space, so no broker creates it."""
    with pytest.raises(ConfigurationError, match="has no topic no topic; create it first"):
        check(modern_kafka().address, ["no topic"])


# --- members that come and go, and brokers --------------------------------------------------------

PROTOCOLS: dict[str, dict[str, Any]] = {
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    # A static member that leaves is missed only when its session is over.
    "static": {"group.instance.id": "member", "session.timeout.ms": 2_000},
    "consumer": NEW_GROUP,
    "classic": {},
}
CASES = [
    *(("confluent", protocol) for protocol in ("cooperative", "static", "consumer")),
    *(("aiokafka", protocol) for protocol in ("classic", "static")),  # it has no other
]


class Members:
    """Consumers of one group, whose handlers note the orders."""

    def __init__(self, topic: Topic, clients: Any) -> None:
        self.topic = topic
        self.seen: list[object] = []
        self._clients = clients
        self._numbers = itertools.count()
        self._sent = 0

    def member(self) -> Any:
        config, number = self.topic.config, next(self._numbers)
        if "group.instance.id" in config:
            config["group.instance.id"] += f"-{number}"
        return self._clients.consumer(self.topic, self._handle, config=config)

    def running(self, member: Any) -> Any:
        return self._clients.running(member)

    def _handle(self, message: Message) -> None:
        self.seen.append(message.json()["order"])

    def send(self, partitions: int) -> None:
        for partition in range(partitions):
            self.topic.send(*range(self._sent, self._sent + 5), partition=partition)
            self._sent += 5

    def check_all_were_handled(self) -> None:
        wait_for(lambda: len(set(self.seen)) == self._sent, "all are handled")
        assert sorted(map(int, map(str, self.seen))) == list(range(self._sent)), "each once"


@pytest.mark.parametrize(("clients", "protocol"), CASES, indirect=["clients"])
def test_i1_i4_members_come_and_go_and_partitions_are_added_under_load(
    clients: Any, protocol: str
) -> None:
    topic = Topic(modern_kafka().client, options=PROTOCOLS[protocol])
    members = Members(topic, clients)
    first, second = members.member(), members.member()
    more = topic.partitions + 1
    with ExitStack() as stack:
        with members.running(first):
            members.send(topic.partitions)
            wait_for(lambda: bool(members.seen), "the first has begun")
            stack.enter_context(members.running(second))
            broker: Any = second.broker
            members.send(topic.partitions)
            wait_for(lambda: bool(broker._work.partitions), "the second has a partition")
            modern_kafka().add_partitions(topic.name, more)
            topic.recreate()
            members.send(more)
            members.check_all_were_handled()
        members.send(more)
        members.check_all_were_handled()
        topic.wait_until_done()


@pytest.mark.soak  # it starts a broker of its own twice
def test_i1_i4_a_broker_that_is_killed_and_comes_back_loses_and_repeats_nothing(
    clients: Any,
) -> None:
    """The consumer goes on by itself, where the group has committed."""
    with require(lambda: KraftServer(settings=SOON_BACK)) as kafka:
        topic = Topic(kafka.client)
        members = Members(topic, clients)
        with members.running(members.member()):
            members.send(topic.partitions)
            members.check_all_were_handled()
            kafka.kill()
            kafka.start()
            members.send(topic.partitions)
            members.check_all_were_handled()
            topic.wait_until_done()


@pytest.mark.parametrize("clients", ["aiokafka"], indirect=True)
def test_a_client_whose_stop_failed_is_no_member_any_more(
    clients: Any, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or its partitions would be consumed by nobody: it polls no more, and still has a session."""
    getmany, stop = AIOKafkaConsumer.getmany, AIOKafkaConsumer.stop
    faults, seen = list[str](), list[str]()

    def once(fault: str) -> None:
        if fault not in faults:
            faults.append(fault)
            raise RuntimeError(fault)

    async def lost(self: AIOKafkaConsumer, *partitions: Any, **options: Any) -> Any:
        if seen:
            once("the connection is lost")
        return await getmany(self, *partitions, **options)

    async def failing(self: AIOKafkaConsumer) -> None:
        once("it does not stop")
        await stop(self)

    monkeypatch.setattr(AIOKafkaConsumer, "getmany", lost)
    monkeypatch.setattr(AIOKafkaConsumer, "stop", failing)
    topic.send("a")
    consumer = clients.consumer(topic, lambda message: seen.append(message.json()["order"]))
    with clients.running(consumer):
        wait_for(lambda: len(faults) == 2, "the client is lost, and did not stop")
        topic.send("b")
        wait_for(lambda: "b" in seen, "another client has the partition")
        admin = AdminClient(topic.client)
        (group,) = admin.describe_consumer_groups([topic.group]).values()
        assert len(group.result(timeout=60).members) == 1
