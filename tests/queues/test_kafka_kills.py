"""Consumers of a real Kafka broker that are killed, stopped and woken: nothing is lost.

Each kill is a SIGKILL of a consumer process; another process goes on with the same group. They
share a store on PostgreSQL.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator

import pytest
from tests.queues import consumer_kills
from tests.queues.consumer_kills import Case, Kills
from tests.queues.kafka_processes import Workers, kafka_workers
from tests.queues.kafka_queues import KafkaQueues
from tests.queues.kafka_topics import NEW_GROUP, Topic, wait_for
from tests.queues.kafka_worker import POINTS, SHORT_LEASE
from tests.support import postgres_stores
from tests.support.kafka_servers import headers_kafka, kafka, modern_kafka
from tests.support.servers import processes

from oncekey import Once
from oncekey.stores.postgres import migrate

SECONDS = 120.0
MEMBERS = 3


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    store = postgres_stores.server().url(postgres_stores.DATABASE)
    migrate(store)
    with kafka_workers(tmp_path_factory.mktemp("kafka"), store) as running:
        yield running


def make_topic(*, is_async: bool = False, **options: str) -> Topic:
    client = (modern_kafka() if options or is_async else kafka()).client
    topic = Topic(client, options=options)
    for name in (topic.dead, topic.retry, topic.parked):
        topic.ends(name)  # a broker creates a topic when it is asked for it
    return topic


def outcome(workers: Workers, topic: Topic, order: str) -> object:
    """Return what the store has for an order."""
    with Once(workers.store) as once:
        status = once.get("shipping", order, scope=f"shipping/{topic.name}")
    assert status is not None
    return status.value


def test_i1_i4_i10_a_consumer_killed_at_any_point_loses_nothing(workers: Workers) -> None:
    topics = {point: make_topic() for point in POINTS}
    orders = {str(number) for number in range(6)}
    for topic in topics.values():
        topic.send(*sorted(orders)[:3], partition=0)
        topic.send(*sorted(orders)[3:], partition=1)
    victims = {p: workers.start(topic, point=p, lease=SHORT_LEASE) for p, topic in topics.items()}
    for pid in victims.values():
        workers.wait_gone(pid)
    # While the first consumer's session and leases end, the next one joins.
    heirs = {p: workers.start(topic) for p, topic in topics.items()}
    for point, topic in topics.items():
        topic.wait_until_done(SECONDS)
        workers.check_effects(topic, orders, heirs[point])
    killed_with = workers.effects(topics["after effect"]).counts(victims["after effect"])
    assert killed_with, "the victim has had an effect"
    for pid in heirs.values():
        workers.kill(pid)


def test_i1_an_unknown_outcome_is_parked_and_never_run_again(workers: Workers) -> None:
    topic = make_topic()
    topic.send("a")
    options = {"retry_safe": False}
    victim = workers.start(topic, point="after effect", options=options, lease=SHORT_LEASE)
    workers.wait_gone(victim)
    heir = workers.start(topic, options=options)
    topic.wait_until_done(SECONDS)
    assert workers.effects(topic).counts() == {"a": 1}
    assert [m.value() for m in topic.read(topic.parked, 1)] == [b'{"order": "a"}']
    workers.kill(heir)


def test_a_failed_message_before_good_ones_survives_a_kill(workers: Workers) -> None:
    """The loop that commits whatever came last loses the first message here: see
    bench/queues/kafka_lost_message.py, which runs the same on a peer."""
    topic = make_topic()
    topic.send("a", "b", "c", "d")
    options = {"order": "none", "backoff": "1h", "stuck_after": "2h"}
    victim = workers.start(topic, failing=["a"], options=options)
    wait_for(lambda: len(workers.effects(topic).finishes) == 3, "the good ones are done")
    workers.stop(victim)
    assert topic.committed()[0] == 0  # never past the failed one, though the others are done
    failed = workers.failures(topic)
    victim = workers.start(topic, failing=["a"], options=options)
    wait_for(lambda: workers.failures(topic) > failed, "it failed again")
    workers.kill(victim)
    (workers.directory / topic.name / "a").touch()  # from now on it can be shipped
    heir = workers.start(topic, failing=["a"], options=options)
    topic.wait_until_done(SECONDS)
    workers.check_effects(topic, {"a", "b", "c", "d"}, heir)
    workers.kill(heir)


@pytest.mark.parametrize(
    ("options", "is_async"),
    [({}, False), (NEW_GROUP, False), ({}, True)],
    ids=["classic", "consumer", "aiokafka"],
)
def test_i1_a_stopped_member_that_wakes_up_is_fenced_and_commits_nothing(
    workers: Workers, options: dict[str, str], is_async: bool
) -> None:
    topic = make_topic(is_async=is_async, **options)
    gate = workers.directory / processes.fresh_name("gate")
    topic.send("a", "b", "c")
    zombie = workers.start(topic, gate=str(gate), lease=SHORT_LEASE, is_async=is_async)
    wait_for(lambda: bool(workers.effects(topic).all), "the first handler has begun")
    workers.pause(zombie)
    heir = workers.start(topic, is_async=is_async)
    topic.send("d", "e", partition=1)
    topic.wait_until_done(SECONDS)
    assert outcome(workers, topic, "a") == heir  # it has taken over
    committed = topic.committed()
    gate.touch()
    workers.resume(zombie)
    topic.send("f", "g", "h", partition=2)  # under load, while the zombie joins again
    topic.wait_until_done(SECONDS)
    assert outcome(workers, topic, "a") == heir  # what the zombie brought was refused
    later = topic.committed()
    assert all(later[n] >= offset for n, offset in committed.items()), (committed, later)
    # The one that both ran had one child key.
    workers.check_effects(topic, set("abcdefgh"), heir)
    assert "a" in workers.effects(topic).counts(heir)
    # It is a member like any other again: it goes on when the heir leaves.
    workers.stop(heir)
    topic.send("i")
    topic.wait_until_done(SECONDS)
    assert outcome(workers, topic, "i") == zombie
    workers.stop(zombie)


LONG = [pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.mark.seeded
@pytest.mark.parametrize(
    ("options", "is_async", "messages", "faults"),
    [
        pytest.param({}, False, 60, 5, id="confluent-short"),
        pytest.param({}, False, 1_000, 60, marks=LONG, id="confluent"),
        pytest.param(NEW_GROUP, False, 1_000, 60, marks=LONG, id="confluent-new-protocol"),
        pytest.param({}, True, 1_000, 60, marks=LONG, id="aiokafka"),
    ],
)
def test_i1_i4_three_consumers_under_kills_and_pauses_handle_everything(
    workers: Workers,
    seed: int,
    options: dict[str, str],
    is_async: bool,
    messages: int,
    faults: int,
) -> None:
    """Duplicates have the same business id and another offset."""
    chance = random.Random(seed)
    topic = make_topic(is_async=is_async, **options)
    start = functools.partial(workers.start, topic, lease=SHORT_LEASE, is_async=is_async)

    def has_effects(least: int) -> bool:
        return len(workers.effects(topic).all) >= least

    members = [start() for _ in range(MEMBERS)]
    sent = itertools.count()
    stopped: list[int] = []
    for number in range(faults):
        part = range(messages * number // faults, messages * (number + 1) // faults)
        for order in part:
            topic.send_body(f'{{"order": {order}}}'.encode(), next(sent) % topic.partitions)
            if order % 5 == 0:
                topic.send_body(f'{{"order": {order}}}'.encode(), next(sent) % topic.partitions)
        topic.flush()
        # A fault comes when half of what was sent is done, so it often meets consumers at work.
        wait_for(functools.partial(has_effects, part.stop // 2), "they work", SECONDS)
        victim = chance.choice(members)
        if chance.random() < 0.5:
            workers.kill(victim)
            members[members.index(victim)] = start()
        else:
            workers.pause(victim)
            stopped.append(victim)
        for pid in set(stopped[:-1]) & set(members):
            workers.resume(pid)
    for pid in set(stopped) & set(members):
        workers.resume(pid)
    topic.wait_until_done(2 * SECONDS)
    workers.check_effects(topic, {str(order) for order in range(messages)})
    for pid in members:
        workers.kill(pid)


AIOKAFKA_CASES = [Case("async", point) for point in consumer_kills.POINTS]


@pytest.fixture(scope="module")
def kills(tmp_path_factory: pytest.TempPathFactory) -> Kills:
    store = postgres_stores.server().url(postgres_stores.DATABASE)
    migrate(store)
    folder = tmp_path_factory.mktemp("kills")
    return Kills(KafkaQueues, {"client": headers_kafka().client}, store, folder, AIOKAFKA_CASES)


@pytest.mark.parametrize("case", AIOKAFKA_CASES, ids=lambda case: case.point)
def test_a_killed_consumer_on_aiokafka_loses_nothing(kills: Kills, case: Case) -> None:
    kills[case].check(case.point)
