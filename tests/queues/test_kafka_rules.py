"""The pure rules of Kafka consumers: which offset may be committed, what is taken when, what is
refused. No broker is asked here."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey import AsyncOnce, Once
from oncekey.core.errors import ConfigurationError
from oncekey.queues.disposition import REMOVE, DeadLetter, Disposition, Kind
from oncekey.queues.kafka import AsyncKafkaConsumer, KafkaConsumer
from oncekey.queues.kafka.assigned_partitions import AssignedPartitions, PartitionOffsets
from oncekey.queues.kafka.message import KafkaRecord, received, to_dead_letter, to_retry
from oncekey.queues.kafka.order_queue import Entry, Position
from oncekey.queues.kafka.program import PartitionWork
from oncekey.queues.kafka.settings import CONFLUENT, KafkaSettings, settings_of
from oncekey.queues.message_key import key_reader

CONFIG: dict[str, Any] = {"bootstrap.servers": "127.0.0.1:9", "auto.offset.reset": "earliest"}
P0, P1 = ("orders", 0), ("orders", 1)


def settings(**options: Any) -> KafkaSettings:
    return settings_of("orders", CONFIG, "shop", CONFLUENT, options)


# --- offsets --------------------------------------------------------------------------------------


@given(st.data())
def test_a_committed_offset_never_passes_an_unfinished_message(data: st.DataObject) -> None:
    """Whatever ends in whatever order, with gaps between offsets (I4)."""
    gaps = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=30))
    received_offsets = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    finish_order = data.draw(st.permutations(received_offsets))
    offsets, unfinished, committed = PartitionOffsets(), set(received_offsets), -1
    for offset in received_offsets:
        assert offsets.receive(offset)
    for offset in finish_order:
        offsets.finish(offset)
        unfinished.discard(offset)
        position = offsets.committable
        if position is not None:
            assert position > committed
            committed = position
            offsets.commit(position)
        assert all(committed <= each for each in unfinished)
        assert offsets.oldest == min(unfinished, default=None)
    assert committed == received_offsets[-1] + 1
    assert offsets.uncommitted == 0


def test_an_offset_that_kafka_did_not_take_is_told_again() -> None:
    partitions = assigned()
    fill(partitions, 7)
    partitions.finish(partitions.take(1, now=0)[0], now=0)
    assert partitions.commits() == {P0: 8}
    assert partitions.commits() == {}
    partitions.not_committed([P0])
    assert partitions.commits() == {P0: 8}


# --- partitions and order -------------------------------------------------------------------------


def assigned(**limits: Any) -> AssignedPartitions[str]:
    partitions: AssignedPartitions[str] = AssignedPartitions(
        **{"max_uncommitted": 100, "stuck_after": 60.0, **limits}
    )
    partitions.assign([P0, P1])
    return partitions


def fill(partitions: AssignedPartitions[str], *offsets: int, group: str | None = None) -> None:
    for offset in offsets:
        partitions.receive(Position(*P0, offset), f"m{offset}", group, 0.0, 0.0)


def items(entries: list[Entry[str]]) -> list[str]:
    return [entry.item for entry in entries]


def test_no_more_of_a_group_is_taken_while_some_of_it_is_out() -> None:
    partitions = assigned()
    fill(partitions, 0, 1, 2, group="g")
    first = partitions.take(2, now=0)
    assert items(first) == ["m0", "m1"]
    assert partitions.take(9, now=0) == []
    partitions.finish(first[0], now=0)
    assert partitions.take(9, now=0) == []
    partitions.finish(first[1], now=0)
    assert items(partitions.take(9, now=0)) == ["m2"]


def test_a_stuck_message_that_has_left_does_not_wake_its_group_once_more() -> None:
    """Its time comes while the next one of its group is out."""
    partitions = assigned(stuck_after=3.0)
    fill(partitions, 0, 1, 2, group="g")
    (first,) = partitions.take(1, now=0)
    partitions.hold(first, until=5, now=0)
    (stuck,) = partitions.take_stuck(now=0)
    partitions.finish(stuck, now=0)  # the retry topic has it
    assert items(partitions.take(1, now=1)) == ["m1"]
    assert partitions.take(9, now=5) == []


def test_a_held_message_keeps_its_place_and_other_groups_go_on() -> None:
    partitions = assigned()
    fill(partitions, 0, 1, 2, group="g")
    fill(partitions, 3)
    taken = partitions.take(9, now=0)
    assert items(taken) == ["m0", "m1", "m2", "m3"]
    partitions.hold(taken[0], until=5, now=0)
    partitions.hold(taken[1], until=0, now=0)  # given back, because the one before it is not done
    partitions.hold(taken[2], until=0, now=0)
    partitions.finish(taken[3], now=0)
    assert partitions.take(9, now=4.9) == []
    assert partitions.next_time(4.9) == 5
    assert items(partitions.take(9, now=5)) == ["m0", "m1", "m2"]
    assert partitions.commits() == {P0: 0}


def test_the_offset_passes_when_the_first_is_done_after_the_others() -> None:
    partitions = assigned()
    fill(partitions, 0, 1, 2)
    first, second, third = partitions.take(9, now=0)
    partitions.finish(third, now=0)
    partitions.finish(second, now=0)
    assert partitions.commits() == {P0: 0}
    partitions.finish(first, now=0)
    assert partitions.commits() == {P0: 3}
    assert partitions.commits() == {}


def test_what_ends_after_its_partition_was_taken_away_commits_nothing() -> None:
    partitions = assigned()
    fill(partitions, 0, 1)
    old = partitions.take(9, now=0)
    partitions.end([P0])
    partitions.assign([P0])  # it comes back, and begins where the group has committed
    fill(partitions, 0, 1)
    partitions.finish(old[0], now=0)
    partitions.hold(old[1], until=0, now=0)
    assert partitions.commits() == {P0: 0}
    assert items(partitions.take(9, now=0)) == ["m0", "m1"]


def test_a_partition_that_is_about_to_be_revoked_becomes_idle_whatever_still_comes() -> None:
    """Under load a rebalance would take all the time it may, and the whole group waits for it."""
    partitions = assigned()
    fill(partitions, 0, 1)
    first, second = partitions.take(9, now=0)
    partitions.stop_taking([P0])
    fill(partitions, 2)
    assert partitions.take(9, now=0) == []
    partitions.finish(first, now=0)
    partitions.hold(second, until=0.0, now=0)  # its try failed, and the next one is somebody else's
    assert partitions.take(9, now=0) == []
    assert partitions.is_idle([P0])
    assert partitions.commits([P0]) == {P0: 1}
    partitions.end([P0])
    partitions.assign([P0])
    fill(partitions, 1, 2)
    assert items(partitions.take(9, now=0)) == ["m1", "m2"]


def test_a_partition_that_is_set_back_begins_anew() -> None:
    """As when its topic was deleted and created again: nothing of the new one is skipped."""
    partitions = assigned()
    fill(partitions, 40, 41)
    old = partitions.take(9, now=0)
    assert not partitions.receive(Position(*P0, 0), "new", None, 0.0, 0.0)
    partitions.finish(old[0], now=0)
    (new,) = partitions.take(9, now=0)
    assert new.item == "new"
    partitions.finish(new, now=0)
    assert partitions.commits() == {P0: 1}


def test_a_partition_that_was_paused_is_resumed_when_it_is_assigned_again() -> None:
    """The client remembers the pause, and would never fetch it again."""
    partitions = assigned()
    assert partitions.pause_changes().resume == [P0, P1]
    partitions.all_paused = True
    assert partitions.pause_changes().pause == [P0, P1]
    partitions.end([P0])
    partitions.assign([P0])
    partitions.all_paused = False
    assert partitions.pause_changes().resume == [P1, P0]
    assert partitions.pause_changes().resume == []


def test_a_full_partition_is_paused_until_half_of_its_room_is_free() -> None:
    partitions = assigned(max_uncommitted=4)
    fill(partitions, 0, 1, 2, 3)
    assert partitions.pause_changes().pause == [P0]
    taken = partitions.take(9, now=0)
    partitions.finish(taken[0], now=0)
    assert partitions.pause_changes().resume == []
    partitions.finish(taken[1], now=0)
    assert partitions.pause_changes().resume == [P0]


def test_only_what_waits_for_a_late_try_or_fills_its_partition_is_stuck() -> None:
    partitions = assigned(max_uncommitted=3, stuck_after=10.0)
    fill(partitions, 0, 1, 2)
    first, second, third = partitions.take(9, now=0)
    partitions.hold(third, until=11, now=0)
    assert items(partitions.take_stuck(now=0)) == ["m2"]  # its try comes too late
    partitions.hold(second, until=5, now=0)
    assert partitions.take_stuck(now=0) == []
    partitions.hold(first, until=5, now=0)
    assert items(partitions.take_stuck(now=0)) == ["m0"]  # it holds back a full partition


def test_only_messages_that_were_tried_are_looked_at_for_being_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is done with every settlement, so a backlog must not make each of them slow."""
    looks: list[Entry[str]] = []
    is_stuck = AssignedPartitions._is_stuck

    def counted(self: Any, entry: Entry[str], now: float) -> bool:
        looks.append(entry)
        return is_stuck(self, entry, now)

    monkeypatch.setattr(AssignedPartitions, "_is_stuck", counted)
    partitions = assigned(max_uncommitted=1_000)
    fill(partitions, *range(500))
    first, second = partitions.take(2, now=0)
    partitions.hold(first, until=5.0, now=0)
    partitions.finish(second, now=0)
    assert partitions.take_stuck(now=0) == []
    assert looks == [first]
    partitions.end([P0])
    assert partitions.take_stuck(now=0) == []
    assert looks == [first]


# --- records --------------------------------------------------------------------------------------


def record(topic: str = "orders", offset: int = 5, **headers: str) -> KafkaRecord:
    pairs = [(name.replace("_", "-"), value.encode()) for name, value in headers.items()]
    return KafkaRecord(Position(topic, 1, offset), b"k", b"{}", pairs, None)


def test_a_delivery_id_stays_the_same_through_the_retry_topic() -> None:
    """Also where its topic was created again meanwhile, it is not another message's id."""
    wanted = settings()
    first = received(record(), wanted, "topic-id")
    sent = to_retry(first, wanted, "topic-id", due=0.0, tries=1)
    back = KafkaRecord(Position(sent.topic, 0, 77), sent.key, sent.value, sent.headers, None)
    key = key_reader("delivery", "topic-id")
    assert key(received(back, wanted, "topic-id").message) == key(first.message)
    assert received(back, wanted, "another-id").message.delivery_id == "0/77"


def test_a_dead_letter_of_a_redriven_message_has_the_marks_of_the_last_failure_only() -> None:
    wanted = settings()
    again = received(
        record(oncekey_fence="7", oncekey_redrive="r-1", source="shop"), wanted, identity=None
    )
    letter = to_dead_letter(again, wanted, None, DeadLetter("ValueError: no", 9, 2))
    assert dict(letter.headers) == {
        "source": b"shop",
        "oncekey-error": b"ValueError: no",
        "oncekey-fence": b"9",
        "oncekey-tries": b"2",
    }


@pytest.mark.parametrize(("order", "group"), [("partition", "1"), ("key", "1/6b"), ("none", None)])
def test_the_order_decides_which_messages_wait_for_each_other(
    order: str, group: str | None
) -> None:
    wanted = settings(order=order)
    assert received(record(), wanted, None).message.order_group == group
    retried = record(topic="orders.shop.retry")
    assert received(retried, wanted, None).message.order_group is None


def test_a_message_that_could_not_be_written_to_another_topic_stays() -> None:
    now = [0.0]
    work = PartitionWork(settings(), now=lambda: now[0], wall_clock=lambda: 0.0)
    work.assign([P0])
    work.receive([record(offset=0)._replace(position=Position(*P0, 0))])
    (message,) = work.take(9)
    (forward,) = work.settle([(message, Disposition(Kind.PARK, reason="unknown"))])
    assert not work.is_idle([P0])
    work.written(forward, "the broker is away")
    assert work.commits() == {P0: 0}
    now[0] = 5.0
    (again,) = work.take(9)
    assert again.receive_count == 2
    work.settle([(again, REMOVE)])
    assert work.commits() == {P0: 1}


def test_a_retry_topic_that_takes_nothing_is_tried_now_and_then_and_not_in_a_loop() -> None:
    now = 0.0
    work = PartitionWork(settings(), now=lambda: now)
    work.assign([P0])
    work.receive([KafkaRecord(Position(*P0, 0), None, b"{}", [], None)])
    (message,) = work.take(1)
    now = 70.0
    forwards = work.settle([(message, Disposition(Kind.RETRY, 300.0))])
    writes = 0
    for _ in range(200):  # the thread polls so often in ten seconds
        for forward in forwards:
            writes += 1
            work.written(forward, "the topic does not take it")
        now += 0.05
        forwards = work.stuck()
    assert writes == 2
    assert work.take(1) == []  # and its backoff is not cut short


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"auto.offset.reset": None}, "auto.offset.reset is missing"),
        ({"auto.offset.reset": "largest"}, "is not a choice"),
        ({"enable.auto.commit": True}, "enable.auto.commit must be off"),
        ({"enable.auto.commit": "true"}, "enable.auto.commit must be off"),
        ({"max.poll.interval.ms": 10_000}, "revoke_timeout of 10 s must be shorter"),
        ({"group.id": ""}, "must be the name of a consumer group"),
        ({"bootstrap.servers": None}, "config= has no bootstrap.servers"),
    ],
)
def test_options_of_the_client_that_lose_messages_are_refused(
    changed: dict[str, Any], said: str
) -> None:
    with Once("memory://") as once, pytest.raises(ConfigurationError, match=said):
        KafkaConsumer(
            once, print, "orders", name="shop", key="json:$.id", config={**CONFIG, **changed}
        )


def test_aiokafka_is_refused_the_same_under_its_own_names() -> None:
    async def handler(message: object) -> None: ...

    config = {"bootstrap_servers": "127.0.0.1:9", "auto_offset_reset": "earliest"}
    for changed, said in (
        ({"auto_offset_reset": "oldest"}, "auto_offset_reset='oldest' is not a choice"),
        ({"enable_auto_commit": True}, "enable_auto_commit must be off"),
        ({"bootstrap_servers": ""}, "config= has no bootstrap_servers"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            AsyncKafkaConsumer(
                AsyncOnce("memory://"),
                handler,
                "orders",
                name="shop",
                key="json:$.id",
                config={**config, **changed},
            )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"order": "offset"}, "must be one of partition, key, none"),
        ({"max_uncommitted": 0}, "whole number from 1"),
        ({"stuck_after": "soon"}, "stuck_after"),
        ({"dead_letter_topic": "orders"}, "must be different topics"),
        ({"concurency": 3}, "unknown option"),
    ],
)
def test_wrong_options_are_refused_when_they_are_given(options: dict[str, Any], said: str) -> None:
    with Once("memory://") as once, pytest.raises(ConfigurationError, match=said):
        KafkaConsumer(once, print, "orders", name="shop", key="json:$.id", config=CONFIG, **options)


def test_a_pattern_of_topics_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="one topic"):
        settings_of("^orders.*", CONFIG, "shop", CONFLUENT, {})


def test_the_topics_that_are_not_named_belong_to_the_group() -> None:
    assert settings().written == ["orders.shop.retry", "orders.shop.dead", "orders.shop.parked"]
    assert settings(retry_topic=None).consumed == ["orders"]
