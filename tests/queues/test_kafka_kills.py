"""Consumers of a real Kafka broker (0.9.0.1) that are killed, stopped and woken: nothing is lost.

Each kill is a SIGKILL of a consumer process; another process goes on with the same group. They
share a store on PostgreSQL. ONCEKEY_SOAK=1 runs a thousand messages.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.queues import consumer_kills
from tests.queues.consumer_kills import KillResult, kill_everywhere
from tests.queues.kafka_processes import Workers, kafka_workers
from tests.queues.kafka_queues import KafkaQueues
from tests.queues.kafka_topics import Topic, wait_for
from tests.queues.kafka_worker import POINTS
from tests.support import postgres_stores
from tests.support.kafka_servers import kafka, kafka_mock
from tests.support.servers import processes

from oncekey import Once
from oncekey.stores.postgres import migrate

SOAK = bool(os.environ.get("ONCEKEY_SOAK"))
MESSAGES = 1_000 if SOAK else 60
FAULTS = 60 if SOAK else 5
SECONDS = 240.0 if SOAK else 55.0
MEMBERS = 3


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    store = postgres_stores.server().url(postgres_stores.DATABASE)
    migrate(store)
    with kafka_workers(tmp_path_factory.mktemp("kafka"), store) as running:
        yield running


def make_topic() -> Topic:
    topic = Topic(kafka().client)
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
    victims = {p: workers.start(topic, point=p) for p, topic in topics.items()}
    for pid in victims.values():
        workers.wait_gone(pid)
    # While the first consumer's session and leases end, the next one joins.
    heirs = {p: workers.start(topic) for p, topic in topics.items()}
    for topic in topics.values():
        topic.wait_until_done(SECONDS)
        # Wherever the process died, each of its two handlers may have had an effect that was not
        # finished: one thread reaches the point while the other is at work.
        workers.check_effects(topic, orders, repeated=2)
    for pid in heirs.values():
        workers.kill(pid)


def test_i1_an_unknown_outcome_is_parked_and_never_run_again(workers: Workers) -> None:
    topic = make_topic()
    topic.send("a")
    options = {"retry_safe": False}
    victim = workers.start(topic, point="after effect", options=options)
    workers.wait_gone(victim)
    heir = workers.start(topic, options=options)
    topic.wait_until_done(SECONDS)
    workers.check_effects(topic, {"a"})
    assert [m.value() for m in topic.read(topic.parked, 1)] == [b'{"order": "a"}']
    workers.kill(heir)


def test_a_failed_message_before_good_ones_survives_a_kill(workers: Workers) -> None:
    """The loop that commits whatever came last loses the first message here: see
    bench/queues/kafka_lost_message.py, which runs the same on a peer."""
    topic = make_topic()
    topic.send("a", "b", "c", "d")
    options = {"order": "none", "backoff": "1h", "stuck_after": "2h"}
    victim = workers.start(topic, failing=["a"], options=options)
    wait_for(lambda: len(workers.effects(topic)) == 3, "the good ones are done")
    workers.stop(victim)
    assert topic.committed()[0] == 0  # never past the failed one, though the others are done
    failed = len(workers.effects(topic, "effects.failed"))
    victim = workers.start(topic, failing=["a"], options=options)
    wait_for(lambda: len(workers.effects(topic, "effects.failed")) > failed, "it failed again")
    workers.kill(victim)
    (workers.directory / topic.name / "a").touch()  # from now on it can be shipped
    heir = workers.start(topic, failing=["a"], options=options)
    topic.wait_until_done(SECONDS)
    workers.check_effects(topic, {"a", "b", "c", "d"})
    workers.kill(heir)


def test_i1_a_stopped_member_that_wakes_up_is_fenced_and_commits_nothing(workers: Workers) -> None:
    topic = make_topic()
    gate = workers.directory / processes.fresh_name("gate")
    topic.send("a", "b", "c")
    zombie = workers.start(topic, gate=str(gate), lease="1s")
    wait_for(lambda: len(workers.effects(topic)) == 1, "the first handler has begun")
    workers.signal(zombie, signal.SIGSTOP)
    heir = workers.start(topic, lease="1s")
    topic.send("d", "e", partition=1)
    topic.wait_until_done(SECONDS)
    assert outcome(workers, topic, "a") == heir  # it has taken over
    committed = topic.committed()
    gate.touch()
    workers.signal(zombie, signal.SIGCONT)
    topic.send("f", "g", "h", partition=2)  # under load, while the zombie joins again
    topic.wait_until_done(SECONDS)
    assert outcome(workers, topic, "a") == heir  # what the zombie brought was refused
    assert all(topic.committed()[n] >= offset for n, offset in committed.items())
    # The one that both ran had one child key.
    workers.check_effects(topic, set("abcdefgh"), repeated=1)
    # It is a member like any other again: it goes on when the heir leaves.
    workers.stop(heir)
    topic.send("i")
    topic.wait_until_done(SECONDS)
    assert outcome(workers, topic, "i") == zombie
    workers.stop(zombie)


def test_i1_i4_three_consumers_under_kills_and_pauses_handle_everything(workers: Workers) -> None:
    """Duplicates have the same business id and another offset."""
    chance = random.Random(7)
    topic = make_topic()

    def has_effects(least: int) -> bool:
        return len(workers.effects(topic)) >= least

    members = [workers.start(topic, lease="1s") for _ in range(MEMBERS)]
    sent = itertools.count()
    stopped: list[int] = []
    for number in range(FAULTS):
        part = range(MESSAGES * number // FAULTS, MESSAGES * (number + 1) // FAULTS)
        for order in part:
            topic.send_body(f'{{"order": {order}}}'.encode(), next(sent) % topic.partitions)
            if order % 5 == 0:
                topic.send_body(f'{{"order": {order}}}'.encode(), next(sent) % topic.partitions)
        topic.flush()
        # A fault comes when half of what was sent is done, so it meets consumers at work.
        wait_for(functools.partial(has_effects, part.stop // 2), "they work", SECONDS)
        victim = chance.choice(members)
        if chance.random() < 0.5:
            workers.kill(victim)
            members[members.index(victim)] = workers.start(topic, lease="1s")
        else:
            workers.signal(victim, signal.SIGSTOP)
            stopped.append(victim)
        for pid in set(stopped[:-1]) & set(members):
            workers.signal(pid, signal.SIGCONT)
    for pid in set(stopped) & set(members):
        workers.signal(pid, signal.SIGCONT)
    began = time.monotonic()
    topic.wait_until_done(SECONDS)
    took = time.monotonic() - began
    figures = (
        f"{MESSAGES} orders in {next(sent)} messages, {FAULTS} faults, {took:.1f} s after them"
    )
    print(figures)  # noqa: T201
    workers.check_effects(topic, {str(order) for order in range(MESSAGES)}, repeated=2 * FAULTS)
    for pid in members:
        workers.kill(pid)


@functools.cache
def killed_on_the_mock(folder: Path) -> dict[str, KillResult]:
    return kill_everywhere(
        KafkaQueues,
        {"client": kafka_mock().client},
        postgres_stores.server().url(postgres_stores.DATABASE),
        folder,
        kind="async",
        points=consumer_kills.POINTS,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    migrate(postgres_stores.server().url(postgres_stores.DATABASE))
    return tmp_path_factory.mktemp("kills")


@pytest.mark.skipif(not SOAK, reason="a member of the mock takes seconds to join: ONCEKEY_SOAK=1")
@pytest.mark.parametrize("point", consumer_kills.POINTS)
def test_a_killed_consumer_on_aiokafka_loses_nothing_on_the_mock(folder: Path, point: str) -> None:
    """The real broker is too old for aiokafka; the mock stays when the consumer is killed."""
    killed_on_the_mock(folder)[point].check(point)
