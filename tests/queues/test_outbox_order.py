"""Messages of one order group are sent in order, and one that fails holds back nothing else.

On SQLite and PostgreSQL, sync and async. The clocks stand still until a test moves them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.queues.outbox_case import (
    KINDS,
    SECOND,
    AsyncBatchSender,
    BatchSender,
    OutboxCase,
    Sent,
    clear,
    database,
    refused,
)
from tests.support.servers import processes

from oncekey import Once
from oncekey.queues.outbox import Outbox, OutboxPublisher
from oncekey.stores.outbox_commands import Settle, Take


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OutboxCase]:
    made = OutboxCase(request.param, tmp_path)
    yield made
    made.close()


def test_a_group_is_sent_in_order_over_several_batches(case: OutboxCase) -> None:
    for number in range(7):
        case.add(str(number), order_group="g")
        case.clock.advance(1)
    sent = Sent()
    assert case.publisher(sent, batch=2).publish_due() == 7
    assert sent.texts == list("0123456")


def test_a_failed_message_holds_back_its_group_and_nothing_else(case: OutboxCase) -> None:
    for text in ("a1", "b1", "a2", "b2", "free"):
        group = None if text == "free" else text[0]
        case.add(text, order_group=group)
    sent = Sent()
    sent.errors["a1"] = refused()
    publisher = case.publisher(sent, backoff="10s")
    publisher.publish_due()
    assert sorted(sent.texts) == ["b1", "b2", "free"]
    assert [text for text in sent.texts if text != "free"] == ["b1", "b2"]
    sent.errors.clear()
    assert publisher.publish_due() == 0  # its backoff is not over
    case.clock.advance(10 * SECOND)
    assert publisher.publish_due() == 2
    assert sent.texts[-2:] == ["a1", "a2"]


def test_the_same_group_name_in_another_queue_is_another_group(case: OutboxCase) -> None:
    case.add("mail", queue="mail", order_group="g")
    case.add("order", order_group="g")
    sent = Sent()
    sent.errors["mail"] = refused()
    case.publisher(sent).publish_due()
    assert sent.texts == ["order"]


def test_a_message_behind_a_leased_one_of_its_group_is_not_taken(case: OutboxCase) -> None:
    case.add("1", order_group="g")
    other = case.do(case.once._store.outbox(Take(bytes(16), 30 * SECOND, 1)))
    assert len(other) == 1  # a publisher has it, and is slow
    case.add("2", order_group="g")
    sent = Sent()
    publisher = case.publisher(sent)
    assert publisher.publish_due() == 0
    # The slow one is done, and what waited behind it is due at once.
    case.do(case.once._store.outbox(Settle(bytes(16), [other[0].seq], [], [], 0, 100)))
    assert publisher.publish_due() == 1
    assert sent.texts == ["2"]


def test_many_messages_behind_a_failing_one_do_not_delay_other_groups(case: OutboxCase) -> None:
    sent = Sent()
    sent.errors["head"] = refused()
    publisher = case.publisher(sent, batch=5, backoff="60s")
    case.add("head", order_group="g")
    publisher.publish_due()
    for number in range(20):
        case.add(f"behind {number}", order_group="g")
    case.clock.advance(1)
    case.add("other", order_group="h")
    # Four batches of them are put off before the other group is reached, in the same take.
    assert publisher.publish_due() == 1
    assert sent.texts == ["other"]
    sent.errors.clear()
    case.clock.advance(60 * SECOND)
    assert publisher.publish_due() == 21
    assert sent.texts[1:] == ["head", *(f"behind {number}" for number in range(20))]


def test_a_sender_of_batches_gets_one_message_of_each_group_at_a_time(case: OutboxCase) -> None:
    for text in ("a1", "b1", "a2", "free", "b2"):
        case.add(text, order_group=None if text == "free" else text[0])
        case.clock.advance(1)
    sender = AsyncBatchSender() if case.is_async else BatchSender()
    sender.errors["a1"] = refused()
    case.publisher(sender).publish_due()
    assert sender.batches == [["a1", "b1", "free"], ["b2"]]
    assert case.bodies() == ["a1", "a2"]


# --- concurrency, on PostgreSQL -------------------------------------------------------------------


def test_messages_of_a_group_are_numbered_in_the_order_of_their_commits() -> None:
    """A second transaction waits for the first, so it cannot be committed and sent before it."""
    url = database()
    clear(url)
    sent = Sent()
    with Once(url) as once, psycopg.connect(url) as first, psycopg.connect(url) as second:
        outbox, publisher = Outbox(once), OutboxPublisher(once, sent)
        outbox.add(first, "q", "first", order_group="g")

        def add_second() -> None:
            outbox.add(second, "q", "second", order_group="g")
            second.commit()

        thread = threading.Thread(target=add_second)
        thread.start()
        waits = (
            "SELECT count(*) FROM pg_locks JOIN pg_database ON database = pg_database.oid "
            "WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"
        )
        with psycopg.connect(url, autocommit=True) as observer:
            processes.wait_until(
                lambda: observer.execute(waits).fetchone() == (1,), "the second waits"
            )
            outbox.add(first, "q", "another group", order_group="h")  # waits for nobody
        assert publisher.publish_due() == 0
        first.commit()
        thread.join(90)
        publisher.publish_due()
    assert [text for text in sent.texts if text != "another group"] == ["first", "second"]


def test_two_publishers_at_once_send_everything_once_and_in_order() -> None:
    url = database()
    clear(url)
    groups, each = 5, 40
    with Once(url) as once, psycopg.connect(url) as connection:
        outbox = Outbox(once)
        for number in range(groups * each):
            outbox.add(connection, "q", f"{number:04}", order_group=f"g{number % groups}")
        connection.commit()
        sent = Sent()
        threads = [
            threading.Thread(target=OutboxPublisher(once, sent, batch=7).publish_due)
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
        # Each may have ended while the other had the last messages of a group.
        OutboxPublisher(once, sent).publish_due()
    assert sorted(sent.texts) == [f"{number:04}" for number in range(groups * each)]
    for group in range(groups):
        texts = [message.text for message in sent.messages if message.order_group == f"g{group}"]
        assert texts == sorted(texts)


def test_a_take_reads_few_rows_of_a_long_queue() -> None:
    """Behind a failing message ten thousand others wait, and a thousand more are parked."""
    url = database()
    clear(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO oncekey.outbox (due_at, created_at, fence, id, queue, order_group, "
            "headers, body, state) SELECT CASE WHEN n = 1 THEN 2^61 ELSE 1 END, 1, 0, 'k' || n, "
            "'q', CASE WHEN n <= 10000 THEN 'g' END, '{}', '', (n > 10000)::integer "
            "FROM generate_series(1, 11000) n"
        )
        connection.execute("ANALYZE oncekey.outbox")
        for _ in range(15):  # each puts off ten batches of those that wait
            taken = connection.execute(TAKE).fetchall()
            assert taken == []
        with connection.transaction():  # in which no statistics are sent off
            before = _rows_read(connection)
            assert connection.execute(TAKE).fetchall() == []
            assert _rows_read(connection) - before < 100


TAKE = (
    "SELECT seq FROM oncekey.outbox_take_1(NULL, gen_random_uuid(), 1000, 100, 10, 60000000, "
    "300000000, 67108864)"
)


def _rows_read(connection: psycopg.Connection[Any]) -> int:
    """How many rows and index entries of the table this session has read lately."""
    row = connection.execute(
        "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_all_tables "
        "WHERE relid = 'oncekey.outbox'::regclass"
    ).fetchone()
    assert row is not None
    return int(row[0])
