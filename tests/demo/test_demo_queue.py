"""The demo's broker behaves as brokers do: nothing is lost, and what is not removed comes again."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncekey.demo.shipping.sqlite_queue import OrderQueue
from oncekey.queues.disposition import REMOVE, DeadLetter, Disposition, Kind
from oncekey.queues.redrive import REDRIVE_HEADER

ORDER = {"order": "order-1"}
HOUR = 3_600.0
OVER = 0.0  # a lease that is over at once


@pytest.fixture
def queue(tmp_path: Path) -> OrderQueue:
    queue = OrderQueue(tmp_path / "queue.db", "orders")
    queue.send(ORDER)
    return queue


def test_a_message_that_was_taken_is_hidden_from_another_process(
    queue: OrderQueue, tmp_path: Path
) -> None:
    (taken,) = queue.receive(10, 0, HOUR)
    assert (taken.json(), taken.receive_count) == (ORDER, 1)
    assert OrderQueue(tmp_path / "queue.db", "orders").receive(10, 0, HOUR) == []
    assert len(queue) == 1


def test_a_message_that_was_not_removed_is_delivered_again(queue: OrderQueue) -> None:
    (first,) = queue.receive(10, 0, OVER)
    (again,) = queue.receive(10, 0, HOUR)
    assert (again.delivery_id, again.receive_count) == (first.delivery_id, 2)


def test_only_the_latest_delivery_removes_a_message(queue: OrderQueue) -> None:
    (first,) = queue.receive(10, 0, OVER)
    (again,) = queue.receive(10, 0, HOUR)
    queue.settle([(first, REMOVE)])
    assert len(queue) == 1
    queue.settle([(again, REMOVE)])
    assert len(queue) == 0


def test_an_extended_message_stays_hidden(queue: OrderQueue) -> None:
    (taken,) = queue.receive(10, 0, OVER)
    queue.extend([taken], HOUR)
    assert queue.receive(10, 0, HOUR) == []
    queue.settle([(taken, Disposition(Kind.GIVE_BACK))])
    assert len(queue.receive(10, 0, HOUR)) == 1


@pytest.mark.parametrize("kind", [Kind.DEAD_LETTER, Kind.PARK])
def test_a_message_that_was_moved_away_is_kept_and_not_delivered(
    queue: OrderQueue, kind: Kind
) -> None:
    (taken,) = queue.receive(10, 0, OVER)
    dead = DeadLetter("ValueError: no") if kind is Kind.DEAD_LETTER else None
    queue.settle([(taken, Disposition(kind, dead_letter=dead))])
    assert queue.receive(10, 0, HOUR) == []
    assert len(queue) == 1


def test_a_dead_letter_comes_back_with_its_error_and_the_mark_of_the_redrive(
    queue: OrderQueue,
) -> None:
    (taken,) = queue.receive(10, 0, OVER)
    dead = DeadLetter("ValueError: no", fence=7, tries=2)
    queue.settle([(taken, Disposition(Kind.DEAD_LETTER, dead_letter=dead))])
    assert queue.redrive(10, "today") == 1
    (back,) = queue.receive(10, 0, HOUR)
    assert back.headers[REDRIVE_HEADER] == "today"
    assert "ValueError: no" in back.headers.values()


def test_queues_of_one_file_are_apart(queue: OrderQueue, tmp_path: Path) -> None:
    other = OrderQueue(tmp_path / "queue.db", "other orders")
    assert other.receive(10, 0, HOUR) == []
    assert len(other) == 0
