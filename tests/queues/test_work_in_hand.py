"""The messages in hand: order groups one after the other, and nothing lost or settled twice."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from oncekey.queues import Disposition, Kind, Message
from oncekey.queues.disposition import FOLLOWS, REMOVE
from oncekey.queues.work_in_hand import Entry, WorkInHand

RETRY = Disposition(Kind.RETRY, 1.0)
GROUPS = st.sampled_from([None, "a", "b"])
ENDS = st.sampled_from([REMOVE, RETRY, Disposition(Kind.DEAD_LETTER), Disposition(Kind.PARK)])


def message(number: int, group: str | None = None) -> Message:
    return Message(b"", "orders", delivery_id=f"m{number}", order_group=group)


def ids(entries: list[Entry]) -> list[str]:
    return [entry.message.delivery_id for entry in entries]


def test_messages_without_a_group_may_all_begin() -> None:
    hand = WorkInHand()
    assert ids(hand.take([message(1), message(2)], 0.0)) == ["m1", "m2"]
    assert len(hand) == 2


def test_the_next_of_a_group_begins_when_the_first_is_done_for_good() -> None:
    hand = WorkInHand()
    (first,) = hand.take([message(1, "a"), message(2, "a")], 0.0)
    assert hand.take([message(3, "a")], 0.0) == []
    settled, ready = hand.end(first, REMOVE)
    assert [found.delivery_id for found, _ in settled] == ["m1"]
    assert ids(ready) == ["m2"]


def test_a_message_that_comes_again_stays_first_of_its_group() -> None:
    hand = WorkInHand()
    (first, other) = hand.take([message(1, "a"), message(2, "a"), message(3, "b")], 0.0)
    settled, ready = hand.end(first, RETRY)
    assert [(found.delivery_id, end) for found, end in settled] == [("m1", RETRY), ("m2", FOLLOWS)]
    assert ready == []
    assert hand.held() == [other]
    assert ids(hand.take([message(1, "a")], 1.0)) == ["m1"]


@given(st.lists(GROUPS, min_size=1, max_size=12), st.data())
def test_i11_every_message_taken_is_settled_once_and_groups_in_order(
    groups: list[str | None], data: st.DataObject
) -> None:
    hand = WorkInHand()
    messages = [message(number, group) for number, group in enumerate(groups)]
    ready = hand.take(messages, 0.0)
    settled: list[tuple[Message, Disposition]] = []
    while ready:
        running = [entry.message.order_group for entry in ready]
        in_groups = [group for group in running if group is not None]
        assert len(set(in_groups)) == len(in_groups), "two of one group at the same time"
        entry = ready.pop(data.draw(st.integers(0, len(ready) - 1)))
        more, begun = hand.end(entry, data.draw(ENDS))
        settled += more
        ready += begun
    assert len(hand) == 0
    assert sorted(found.delivery_id for found, _ in settled) == sorted(
        found.delivery_id for found in messages
    )
    for group in ("a", "b"):
        order = [int(found.delivery_id[1:]) for found, _ in settled if found.order_group == group]
        assert order == sorted(order)
        ends = [end.lets_pass for found, end in settled if found.order_group == group]
        assert ends == sorted(ends, reverse=True), "one passed another that comes again"


def test_a_message_is_not_held_after_its_attempt_was_overtaken() -> None:
    hand = WorkInHand()
    first, second = hand.take([message(1), message(2)], 0.0)
    first.attempt = SimpleNamespace(lost=True)
    second.attempt = SimpleNamespace(lost=False)
    assert hand.held() == [second]
