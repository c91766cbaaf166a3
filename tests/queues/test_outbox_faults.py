"""What must not hold up an outbox: refusals that look like outages, kept rows, old leases, size."""

from __future__ import annotations

import asyncio
import urllib.error
from collections.abc import Iterator, Sequence
from email.message import Message as Headers
from pathlib import Path

import pytest
import requests
from tests.queues.outbox_case import KINDS, SECOND, OutboxCase, Sent

from oncekey.queues.outbox import AsyncOutboxPublisher, OutgoingMessage
from oncekey.queues.outbox.senders import Results
from oncekey.stores.outbox_commands import Settle, Take
from oncekey.stores.postgres import outbox_program as postgres_program
from oncekey.stores.sqlite import outbox_program as sqlite_program


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OutboxCase]:
    case = OutboxCase(request.param, tmp_path)
    yield case
    case.close()


def http_error(status: int) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError(f"{status}", response=response)


@pytest.mark.parametrize(
    "error",
    [
        http_error(422),
        urllib.error.HTTPError("http://127.0.0.1/", 400, "bad", Headers(), None),
        FileNotFoundError("invoice.pdf"),
    ],
    ids=["requests", "urllib", "file"],
)
def test_a_refusal_that_is_an_oserror_is_parked_and_holds_up_nothing(
    case: OutboxCase, error: Exception
) -> None:
    sent = Sent(case)
    sent.errors["bad"] = error
    for body in ("bad", "good"):
        case.add(body)
    publisher = case.publisher(sent, max_tries=1, batch=1)
    assert publisher.publish_due() == 1
    assert sent.texts == ["good"]
    assert case.stats().parked == 1


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_is_overloaded_refuses_nothing(case: OutboxCase, status: int) -> None:
    sent = Sent(case)
    sent.errors["tea"] = http_error(status)
    case.add("tea")
    case.publisher(sent, max_tries=1).publish_due()
    assert case.stats().parked == 0


def test_kept_rows_are_deleted_without_a_loop_too(case: OutboxCase) -> None:
    """A job that calls publish_due from time to time must not fill the table."""
    publisher = case.publisher(Sent(case), keep="1h")
    case.add("old")
    publisher.publish_due()
    case.clock.advance(3_601 * SECOND)
    case.add("new")
    publisher.publish_due()
    assert case.bodies() == ["new"]


def test_a_message_with_an_old_lease_is_due_as_soon_as_the_one_before_it_is_sent(
    case: OutboxCase,
) -> None:
    """A publisher died with both of them; the next ones take one at a time."""
    for body in ("1", "2"):
        case.add(body, order_group="g")
    store = case.once._store
    case.do(store.outbox(Take(bytes(16), 30 * SECOND, 10)))
    case.clock.advance(31 * SECOND)
    owner = b"b" * 16
    (first,) = case.do(store.outbox(Take(owner, 30 * SECOND, 1)))
    assert case.do(store.outbox(Take(b"c" * 16, 30 * SECOND, 10))) == []  # behind the first
    case.do(store.outbox(Settle(owner, [first.seq], [], [], 0, 10)))
    (second,) = case.do(store.outbox(Take(owner, 30 * SECOND, 10)))
    assert second.body == b"2"


@pytest.fixture
def small_takes(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many bytes a take has now."""
    for program in (postgres_program, sqlite_program):
        monkeypatch.setattr(program, "TAKE_BYTES", 40)
    return 40


def test_a_take_is_bounded_in_bytes(case: OutboxCase, small_takes: int) -> None:
    """A batch of the largest messages must not fill the publisher's memory."""
    for number in range(10):
        case.add(bytes([number]) * (small_takes // 4), order_group="g")
    store, owner = case.once._store, bytes(16)
    seen: list[int] = []
    while entries := case.do(store.outbox(Take(owner, 30 * SECOND, 100))):
        assert 1 <= len(entries) <= 4
        seen += [entry.body[0] for entry in entries]
        case.do(store.outbox(Settle(owner, [entry.seq for entry in entries], [], [], 0, 100)))
    assert seen == list(range(10))


def test_a_message_larger_than_a_take_is_taken_all_the_same(
    case: OutboxCase, small_takes: int
) -> None:
    for body in ("small", "x" * small_takes * 2, "last"):
        case.add(body)
    assert case.publisher(Sent(case)).publish_due() == 3


@pytest.mark.parametrize("has_sender", [False, True])
def test_a_client_that_cancels_its_own_future_does_not_end_the_publisher(
    tmp_path: Path, has_sender: bool
) -> None:
    """Clients for asyncio do so when their connection is lost."""
    case = OutboxCase("sqlite-async", tmp_path)
    lost = [True]
    sent: list[str] = []

    async def publish(message: OutgoingMessage) -> None:
        if lost.pop() if lost else False:
            confirmation: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            confirmation.cancel()
            await confirmation
        sent.append(message.text)

    class BatchSender:
        batch_max = 1

        async def send(self, messages: Sequence[OutgoingMessage], /) -> Results:
            await publish(messages[0])
            return [None]

    case.add("tea")
    publisher = AsyncOutboxPublisher(
        case.once, BatchSender() if has_sender else publish, clock=case.clock, max_tries=1
    )
    assert case.do(publisher.publish_due()) == 0
    case.clock.advance(10 * SECOND)
    assert case.do(publisher.publish_due()) == 1
    assert (sent, case.stats().waiting) == (["tea"], 0)
    case.close()
