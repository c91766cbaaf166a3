"""Publishers of an outbox: what they send, how often, and what they leave behind.

On SQLite and PostgreSQL, sync and async. The clocks stand still until a test moves them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.queues.outbox_case import KINDS, SECOND, BatchSender, OutboxCase, Sent, refused

from oncekey import ConfigurationError, StoreUnavailable
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.outbox import KEY_HEADER, OutgoingMessage
from oncekey.stores.outbox_commands import Settle, Take


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OutboxCase]:
    made = OutboxCase(request.param, tmp_path)
    yield made
    made.close()


# --- sending --------------------------------------------------------------------------------------


def test_a_committed_message_is_sent_with_its_id_headers_and_group(case: OutboxCase) -> None:
    id = case.add({"order": 17}, key="order-17", headers={"Kind": "placed"}, order_group="17")
    sent = Sent()
    assert case.publisher(sent).publish_due() == 1
    (message,) = sent.messages
    assert id == message.id == "order-17"
    assert message.json() == {"order": 17}
    assert message.headers == {"kind": "placed", KEY_HEADER: "order-17"}
    assert (message.queue, message.order_group, message.tries) == ("orders", "17", 1)
    assert case.stats() == (0, 0, 0, 0, 0.0)


def test_a_rolled_back_message_is_not_there(case: OutboxCase) -> None:
    case.add("gone", commit=False)
    assert case.stats().waiting == 0
    assert case.publisher(Sent()).publish_due() == 0


def test_a_message_of_the_same_key_is_one_message(case: OutboxCase) -> None:
    assert case.add("a", key="k") == case.add("a", key="k")
    assert case.bodies() == ["a"]


def test_a_batch_is_bounded_and_all_of_them_are_sent(case: OutboxCase) -> None:
    for number in range(7):
        case.add(str(number))
    sent = Sent()
    assert case.publisher(sent, batch=3).publish_due() == 7
    assert sorted(sent.texts) == list("0123456")


# --- failures -------------------------------------------------------------------------------------


def test_each_failed_try_waits_twice_as_long(case: OutboxCase) -> None:
    case.add("a")
    sent, tries = Sent(), []
    sent.errors["a"] = refused()
    sent.hook = lambda message: tries.append((message.tries, case.clock.now() - start))
    start = case.clock.now()
    publisher = case.publisher(sent, backoff="1s", backoff_max="3s")
    for _ in range(11):
        publisher.publish_due()
        case.clock.advance(SECOND)
    assert tries == [(n + 1, at * SECOND) for n, at in enumerate((0, 1, 3, 6, 9))]


def test_a_message_refused_too_often_is_parked_with_its_error(case: OutboxCase) -> None:
    id = case.add("a", order_group="g")
    case.add("b", order_group="g")
    sent = Sent()
    sent.errors["a"] = refused()
    publisher = case.publisher(sent, max_tries=2, backoff="1s")
    for _ in range(5):
        publisher.publish_due()
        case.clock.advance(SECOND)
    assert (case.stats().waiting, case.stats().parked) == (1, 1)
    (parked,) = case.do(case.outbox.parked())
    assert (parked.message.id, parked.refusals) == (id, 2)
    assert parked.error == "ValueError: the broker says no"
    # An operator lets it go, and what waited behind it follows.
    sent.errors.clear()
    assert case.do(case.outbox.release([id, "no such id"])) == 1
    publisher.publish_due()
    assert sent.texts == ["a", "b"]


def test_a_discarded_message_is_gone_and_its_group_goes_on(case: OutboxCase) -> None:
    id = case.add("a", order_group="g")
    case.add("b", order_group="g")
    sent = Sent()
    sent.errors["a"] = refused()
    publisher = case.publisher(sent, max_tries=1)
    publisher.publish_due()
    assert sent.texts == []
    assert case.do(case.outbox.discard([id])) == 1
    assert publisher.publish_due() == 1
    assert sent.texts == ["b"]
    assert case.stats().parked == 0


def test_a_message_that_waits_cannot_be_discarded(case: OutboxCase) -> None:
    id = case.add("a")
    assert case.do(case.outbox.discard([id])) == case.do(case.outbox.release([id])) == 0
    assert case.bodies() == ["a"]


@pytest.mark.parametrize("error", [BrokerUnavailable("down"), ConnectionResetError("down")])
def test_a_broker_that_is_down_refuses_nothing(case: OutboxCase, error: Exception) -> None:
    for text in "abc":
        case.add(text)
        case.clock.advance(1)
    sent = Sent()
    sent.errors = dict.fromkeys("abc", error)
    publisher = case.publisher(sent, max_tries=1, backoff="1s", batch=1 if case.is_async else 10)
    asked: list[str] = []
    sent.hook = lambda message: asked.append(message.text)
    publisher.publish_due()
    assert asked == ["a"]  # the others were not tried in vain
    for _ in range(5):
        case.clock.advance(10 * SECOND)
        publisher.publish_due()
    assert case.stats().parked == 0
    sent.errors.clear()
    case.clock.advance(300 * SECOND)
    assert publisher.publish_due() == 3


def test_a_sender_with_the_wrong_number_of_results_is_refused(case: OutboxCase) -> None:
    class Wrong(BatchSender):
        def send(self, messages: Sequence[OutgoingMessage]) -> list[Exception | None]:
            return []

    class AsyncWrong(BatchSender):
        async def send(  # type: ignore[override]
            self, messages: Sequence[OutgoingMessage]
        ) -> list[Exception | None]:
            return []

    case.add("a")
    with pytest.raises(ConfigurationError, match="given 1 messages and returned 0"):
        case.publisher(AsyncWrong() if case.is_async else Wrong()).publish_due()
    assert case.bodies() == ["a"]
    assert case.stats().taken == 0


# --- leases ---------------------------------------------------------------------------------------


def test_messages_of_a_dead_publisher_come_free_with_its_lease(case: OutboxCase) -> None:
    case.add("a")
    assert len(case.do(case.once._store.outbox(Take(bytes(16), 30 * SECOND, 10)))) == 1
    sent = Sent()
    publisher = case.publisher(sent)
    assert publisher.publish_due() == 0
    assert case.stats().taken == 1
    case.clock.advance(30 * SECOND)
    assert publisher.publish_due() == 1


def test_a_publisher_paused_past_its_lease_only_sends_the_same_id_again(case: OutboxCase) -> None:
    case.add("a", order_group="g")
    case.add("b", order_group="g")
    first, second = Sent(), Sent()
    fast = case.publisher(second)

    def paused(message: OutgoingMessage) -> object:
        first.hook = lambda message: None
        case.clock.advance(60 * SECOND)
        return fast.publisher.publish_due()  # an async one is awaited before this message is sent

    first.hook = paused
    case.publisher(first, lease="30s").publish_due()
    assert first.texts == ["a"]  # after its lease it began nothing more
    assert second.texts == ["a", "b"]
    assert first.messages[0].id == second.messages[0].id
    assert case.bodies() == []


def test_a_late_settlement_changes_nothing_that_another_publisher_has(case: OutboxCase) -> None:
    case.add("a")
    store = case.once._store
    (late,) = case.do(store.outbox(Take(b"1" * 16, SECOND, 10)))
    case.clock.advance(SECOND)
    (taken,) = case.do(store.outbox(Take(b"2" * 16, SECOND, 10)))
    assert taken.tries == 2
    assert case.do(store.outbox(Settle(b"1" * 16, [late.seq], [], [], 0, 10))) == 0
    assert case.stats().taken == 1
    assert case.do(store.outbox(Settle(b"2" * 16, [taken.seq], [], [], 0, 10))) == 1


def test_what_a_slow_publisher_has_no_time_for_is_given_back(case: OutboxCase) -> None:
    for text in "abc":
        case.add(text, order_group="g")
    sent = Sent()
    sent.hook = lambda message: case.clock.advance(9 * SECOND)
    publisher = case.publisher(sent, lease="30s")
    case.do(publisher.publisher._drive(publisher.publisher._flow.batch()))
    assert sent.texts == ["a", "b"]
    assert case.stats().taken == 0
    sent.hook = lambda message: None
    publisher.publish_due()
    assert [(message.text, message.tries) for message in sent.messages][-1] == ("c", 1)


# --- kept rows ------------------------------------------------------------------------------------


def test_a_published_message_that_is_kept_is_not_sent_again(case: OutboxCase) -> None:
    case.add("a", key="k")
    sent = Sent()
    publisher = case.publisher(sent, keep="1h")
    publisher.publish_due()
    case.add("a", key="k")
    assert publisher.publish_due() == 0
    assert sent.texts == ["a"]
    assert case.stats().published == 1


def test_kept_rows_are_deleted_in_bounded_batches(
    case: OutboxCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncekey.queues.outbox import publisher_flow

    monkeypatch.setattr(publisher_flow, "PURGE_LIMIT", 2)
    for number in range(5):
        case.add(str(number))
    sent = Sent()
    publisher = case.publisher(sent, keep="1h")
    publisher.publish_due()
    assert len(case.bodies()) == 5
    case.clock.advance(3_600 * SECOND)
    left = []

    def count(_: Any) -> None:
        left.append(len(case.bodies()))
        if len(left) == 3:
            publisher.stop()

    flow = publisher.publisher._flow.loop(count)
    _run_without_waiting(case, publisher, flow)
    assert left == [3, 1, 0]


def _run_without_waiting(case: OutboxCase, publisher: Any, flow: Any) -> None:
    """Drive a flow whose waits are over at once."""
    perform = publisher.publisher._perform
    from oncekey.queues.outbox.publisher_flow import Wait

    try:
        effect = next(flow)
        while True:
            try:
                result = None if isinstance(effect, Wait) else case.do(perform(effect))
            except Exception as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(result)
    except StopIteration:
        return


# --- the store ------------------------------------------------------------------------------------


def test_a_settlement_is_repeated_while_the_lease_lasts(
    case: OutboxCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.add("a")
    sent = Sent()
    publisher = case.publisher(sent)
    store, failures = case.once._store, [StoreUnavailable("away")] * 2
    outbox = store.outbox

    def failing(command: Any) -> Any:
        if isinstance(command, Settle) and failures:
            case.clock.advance(SECOND)
            raise failures.pop()
        return outbox(command)

    monkeypatch.setattr(store, "outbox", failing)
    _run_without_waiting(case, publisher, publisher.publisher._until_empty())
    assert sent.texts == ["a"]
    assert case.bodies() == []


def test_a_publisher_that_starts_before_its_store_waits_for_it(
    case: OutboxCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.add("a")
    sent = Sent()
    publisher = case.publisher(sent)
    sent.hook = lambda message: publisher.publisher.stop()
    failures = [StoreUnavailable("not up yet")] * 2

    def ready() -> Any:
        if failures:
            raise failures.pop()
        return asyncio.sleep(0) if case.is_async else None

    monkeypatch.setattr(case.once, "_ready", ready)
    _run_without_waiting(case, publisher, publisher.publisher._begin())
    assert (sent.texts, failures) == (["a"], [])


def test_an_interruption_settles_what_was_sent(case: OutboxCase) -> None:
    for text in "abc":
        case.add(text, order_group="g")
    sent = Sent()

    async def cancelled() -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(30)

    if case.is_async:  # asyncio makes a cancellation of Ctrl-C
        sent.hook = lambda message: cancelled() if message.text == "b" else None
    else:
        sent.errors["b"] = KeyboardInterrupt()
    with pytest.raises(asyncio.CancelledError if case.is_async else KeyboardInterrupt):
        case.publisher(sent).publish_due()
    assert case.bodies() == ["b", "c"]
    assert case.stats().taken == 0


def test_an_outbox_without_its_table_says_what_to_do(tmp_path: Path, case: OutboxCase) -> None:
    if case.kind.startswith("postgres"):
        with case.transaction() as connection:
            connection.execute("DROP TABLE oncekey.outbox CASCADE")
    else:
        with case.transaction() as connection:
            connection.execute("DROP TABLE oncekey_outbox")
    try:
        for call in (lambda: case.add("a"), case.publisher(Sent()).publish_due, case.stats):
            with pytest.raises(ConfigurationError, match="oncekey migrate --outbox"):
                call()
    finally:
        case.do(case.outbox.create_table())
    case.add("a")
    assert case.bodies() == ["a"]


def test_a_publisher_that_ends_with_an_error_says_so_in_the_log(
    case: OutboxCase, caplog: pytest.LogCaptureFixture
) -> None:
    """What a thread or a task raises is easily missed."""
    publisher = case.publisher(Sent()).publisher

    def broken(command: object) -> None:
        raise Exception("of no class that anybody names")

    publisher._store = type("Broken", (), {"outbox": staticmethod(broken)})()
    with caplog.at_level("INFO", "oncekey"), pytest.raises(Exception, match="of no class"):
        case.do(publisher.run())
    assert "publisher outbox ends: Exception: of no class that anybody names" in caplog.text
