"""How a member of a group of Kafka fares, whichever client it has: what is raised, and what is due.
No broker is asked here."""

from __future__ import annotations

import pytest

from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.disposition import REMOVE
from oncekey.queues.kafka.message import KafkaRecord
from oncekey.queues.kafka.order_queue import Position
from oncekey.queues.kafka.program import MemberState, PartitionWork
from oncekey.queues.kafka.settings import (
    CHECK_EVERY_S,
    CHECK_RETRY_S,
    COMMIT_RETRY_S,
    CONFLUENT,
    PAUSE_AFTER_S,
    settings_of,
)

CONFIG = {"bootstrap.servers": "127.0.0.1:9", "auto.offset.reset": "earliest"}
P0 = ("orders", 0)
AWAY = BrokerUnavailable("the broker is away")


class Member:
    """A member with one partition, and a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        settings = settings_of("orders", CONFIG, "shop", CONFLUENT, {})
        self.work = PartitionWork(settings, now=lambda: self.now)
        self.work.assign([P0])
        self.state = MemberState(self.work)

    def receive(self, offset: int) -> None:
        self.state.receive([KafkaRecord(Position(*P0, offset), None, b"{}", [], None)])


@pytest.fixture
def member() -> Member:
    return Member()


def test_a_trouble_of_a_member_is_raised_once(member: Member) -> None:
    member.state.note(AWAY)
    with pytest.raises(BrokerUnavailable):
        member.state.raise_trouble()
    member.state.raise_trouble()
    assert not member.state.is_lost


def test_the_first_failure_of_a_member_is_raised_again_and_again(member: Member) -> None:
    member.state.fail(AWAY)
    member.state.fail(ConfigurationError("a later one"))
    for _ in range(2):
        with pytest.raises(BrokerUnavailable):
            member.state.raise_trouble()
    assert member.state.is_lost, "another member may do better"


def test_a_member_that_kafka_refuses_is_not_replaced(member: Member) -> None:
    member.state.fail(ConfigurationError("refused"))
    with pytest.raises(ConfigurationError):
        member.state.raise_trouble()
    assert not member.state.is_lost


def test_a_member_takes_nothing_before_its_topics_are_checked(member: Member) -> None:
    member.receive(0)
    member.state.is_checked = False
    assert member.state.take(1) == []
    assert member.state.next_wait() is None
    member.state.checked(member.now)
    assert len(member.state.take(1)) == 1


@pytest.mark.parametrize("identity", [None, "the id of the topic"])
def test_topics_whose_id_is_in_the_keys_are_checked_after_each_receive(
    member: Member, identity: str | None
) -> None:
    member.work.identity = identity
    member.receive(0)
    assert member.state.is_checked is (identity is None)


def test_topics_are_checked_now_and_then_and_later_after_a_failed_check(member: Member) -> None:
    member.state.checked(member.now)
    assert not member.state.check_is_due()
    member.now = CHECK_EVERY_S
    assert member.state.check_is_due()
    assert not member.state.check_is_due(has_news=False)
    member.state.not_checked(AWAY)
    assert not member.state.check_is_due()
    member.now += CHECK_RETRY_S
    assert member.state.check_is_due()
    with pytest.raises(BrokerUnavailable):
        member.state.raise_trouble()


def test_an_offset_that_kafka_did_not_take_is_committed_again_after_a_while(member: Member) -> None:
    member.receive(0)
    (message,) = member.state.take(1)
    member.work.settle([(message, REMOVE)])
    assert member.work.commits() == {P0: 1}
    member.state.not_committed([P0])
    allowed = []
    for member.now in (0.0, COMMIT_RETRY_S):
        allowed.append(member.state.may_commit)
    assert allowed == [False, True]
    assert member.work.commits() == {P0: 1}


def test_partitions_are_paused_while_nobody_wants_messages(member: Member) -> None:
    member.state.want(PAUSE_AFTER_S)
    member.now = 2 * PAUSE_AFTER_S
    assert member.state.pause_changes().pause == []
    member.now += 0.1
    assert member.state.pause_changes().pause == [P0]
    member.state.want(member.now)
    assert member.state.pause_changes().resume == [P0]
