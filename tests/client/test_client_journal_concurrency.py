"""The journal and concurrent requests: two at the same time stay two, and each holds its entry."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from tests.client.clients import AsyncHttpxClient, open_client
from tests.client.scripted_server import DropConnection, Hang, Respond, scripted_server

from oncekey import InFlight
from oncekey.client import Journal, RetriesExhausted, Retry
from oncekey.client.journal import EntryHandle

ONCE = Retry(attempts=1)


# --- requests at the same time -------------------------------------------------------------------


def test_identical_requests_at_the_same_time_stay_two(client_name: str, journal: Journal) -> None:
    first, second = Hang(Respond(201)), Hang(Respond(201))
    if client_name == "httpx-async":
        _send_two_on_a_loop(journal, first, second)
        return
    with (
        scripted_server(first, second) as server,
        open_client(client_name, journal=journal) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        sent = [pool.submit(client.post, server.url) for _ in range(2)]
        assert first.arrived.wait(60)
        assert second.arrived.wait(60)
        assert journal.open_entries() == 2
        first.proceed.set()
        second.proceed.set()
        assert [one.result(60).status for one in sent] == [201, 201]
    assert len(set(server.keys)) == 2
    assert journal.open_entries() == 0


def _send_two_on_a_loop(journal: Journal, first: Hang, second: Hang) -> None:
    with (
        scripted_server(first, second) as server,
        open_client("httpx-async", journal=journal) as client,
    ):
        assert isinstance(client, AsyncHttpxClient)
        post = client.httpx_client.post

        async def both() -> None:
            tasks = [asyncio.create_task(post(server.url)) for _ in range(2)]
            for hang in (first, second):
                assert await asyncio.to_thread(hang.arrived.wait, 10)
            assert journal.open_entries() == 2
            first.proceed.set()
            second.proceed.set()
            await asyncio.gather(*tasks)

        client.runner.run(both())
    assert len(set(server.keys)) == 2
    assert journal.open_entries() == 0


def test_two_open_entries_are_reused_by_two_requests(journal: Journal) -> None:
    lost = [Hang(DropConnection()), Hang(DropConnection())]
    with (
        scripted_server(*lost, Respond(), Respond(), Respond()) as server,
        open_client("httpx", journal=journal, retry=ONCE) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        sent = [pool.submit(client.post, server.url) for _ in range(2)]
        for hang in lost:
            assert hang.arrived.wait(60)
        for hang in lost:
            hang.proceed.set()
        for one in sent:
            with pytest.raises(RetriesExhausted):
                one.result(60)
        assert journal.open_entries() == 2
        for _ in range(3):
            client.post(server.url)
    assert set(server.keys[:2]) == set(server.keys[2:4])
    assert len(set(server.keys)) == 3


def test_a_cancelled_request_leaves_its_entry_for_the_next(journal: Journal) -> None:
    hang = Hang()
    with (
        scripted_server(hang, Respond()) as server,
        open_client("httpx-async", journal=journal) as client,
    ):
        assert isinstance(client, AsyncHttpxClient)
        post = client.httpx_client.post

        async def cancel() -> None:
            task = asyncio.create_task(post(server.url, content=b"{}"))
            assert await asyncio.to_thread(hang.arrived.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        client.runner.run(cancel())
        assert journal.open_entries() == 1
        client.post(server.url)
    assert len(set(server.keys)) == 1
    assert journal.open_entries() == 0


def test_an_entry_that_is_released_before_it_begins_is_not_written(journal: Journal) -> None:
    """The thread of a cancelled request may get to the disk after the cancellation."""
    late = journal.entry_for("k1", b"digest")
    late.release()
    late.begin()
    assert journal.open_entries() == 0
    next_one = journal.entry_for("k2", b"digest")
    next_one.begin()
    assert (next_one.key, next_one.held, late.held) == ("k2", True, False)


def test_a_hundred_requests_from_eight_threads_have_their_own_keys(journal: Journal) -> None:
    with (
        scripted_server(*[Respond()] * 100) as server,
        open_client("httpx", journal=journal) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        list(pool.map(lambda _: client.post(server.url), range(100)))
    assert len(set(server.keys)) == 100
    assert journal.open_entries() == 0


# --- entries at the same time --------------------------------------------------------------------


def begun(journal: Journal, key: str, intent: str | None = None, **more: Any) -> EntryHandle:
    entry = journal.entry_for(key, b"digest", intent=intent, **more)
    entry.begin()
    return entry


@contextmanager
def file_is_busy(journal: Journal) -> Iterator[None]:
    """Another thread has the transaction, so that others wait for it."""
    entered, proceed = threading.Event(), threading.Event()

    def wait() -> None:
        with journal._file.transaction():
            entered.set()
            proceed.wait(60)

    other = threading.Thread(target=wait)
    other.start()
    assert entered.wait(60)
    try:
        yield
    finally:
        proceed.set()
        other.join(60)


@pytest.mark.parametrize("done", [True, False])
def test_an_entry_closed_while_another_request_waits_is_not_reused(
    journal: Journal, done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two purchases at the same time. The second waits for the file when the first is answered and
    then cancelled while its entry is being closed."""
    first = begun(journal, "k1")
    second = journal.entry_for("k2", b"digest")
    with ThreadPoolExecutor(2) as pool:
        with file_is_busy(journal):
            queued, transaction = threading.Event(), journal._file.transaction

            def announced() -> AbstractContextManager[sqlite3.Connection]:
                queued.set()
                return transaction()

            monkeypatch.setattr(journal._file, "transaction", announced)
            beginning = pool.submit(second.begin)
            assert queued.wait(60)
            settling = pool.submit(first.close, done=done)
            while not journal._closed:
                time.sleep(0.001)
            first.release()
        beginning.result(60)
        settling.result(60)
    assert (second.key, second.reused) == ("k2", False)
    assert journal.open_entries() == 1


@pytest.mark.parametrize("intent", [None, "order-17"])
def test_an_entry_closed_during_another_requests_transaction_is_not_reused(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, intent: str | None
) -> None:
    first = begun(journal, "k1", intent)
    second = journal.entry_for("k2", b"digest", intent=intent)
    name = "find_by_digest" if intent is None else "find_by_intent"
    find = getattr(journal._entries, name)

    def find_late(*args: Any) -> Any:
        found = find(*args)
        settling.start()
        while not journal._closed:
            time.sleep(0.001)
        first.release()
        return found

    settling = threading.Thread(target=first.close, kwargs={"done": True})
    monkeypatch.setattr(journal._entries, name, find_late)
    if intent is None:
        second.begin()
        assert (second.key, second.reused) == ("k2", False)
    else:
        with pytest.raises(InFlight):
            second.begin()
    settling.join(60)
    assert journal._closed == {}
