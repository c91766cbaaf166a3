"""The journal's file and its limits: age, number, other processes, a failing disk."""

from __future__ import annotations

import logging
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.client.clients import open_client
from tests.client.fake_retry_clock import DAY_NS, FakeWallClock
from tests.client.scripted_server import DropConnection, Hang, Respond, scripted_server

from oncekey import ConfigurationError, InFlight
from oncekey.client import Journal, NotSent, RetriesExhausted, Retry
from oncekey.client.journal import EntryHandle, entries
from oncekey.client.journal import journal as journals
from oncekey.client.journal.file import QUERIES

ONCE = Retry(attempts=1)


# --- age and size ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("hours", "same"), [(23, True), (24, False)])
def test_an_entry_past_its_keep_is_dropped(
    journal: Journal, wall_clock: FakeWallClock, hours: int, same: bool
) -> None:
    with (
        scripted_server(DropConnection(), Respond()) as server,
        open_client("httpx", journal=journal, retry=ONCE) as client,
    ):
        with pytest.raises(RetriesExhausted):
            client.post(server.url)
        wall_clock.now += DAY_NS * hours // 24
        client.post(server.url)
    assert (server.keys[0] == server.keys[1]) is same
    assert journal.open_entries() == 0


def test_open_entries_are_limited(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "JOURNAL_ENTRIES_MAX", 2)
    with (
        scripted_server(DropConnection(), DropConnection(), Respond()) as server,
        open_client("httpx", journal=journal, retry=ONCE) as client,
    ):
        for body in (b"1", b"2"):
            with pytest.raises(RetriesExhausted):
                client.post(server.url, body=body)
        with pytest.raises(NotSent, match="2 requests that were never answered"):
            client.post(server.url, body=b"3")
        client.post(server.url, body=b"1")
    assert len(server.received) == 3


def test_forget_drops_an_open_entry_by_its_key(journal: Journal) -> None:
    hang = Hang()
    with (
        scripted_server(DropConnection(), hang) as server,
        open_client("httpx", journal=journal, retry=ONCE) as client,
    ):
        with pytest.raises(RetriesExhausted) as caught:
            client.post(server.url)
        assert journal.forget(caught.value.key)
        assert not journal.forget(caught.value.key)
        other = threading.Thread(target=client.post, args=(server.url,))
        other.start()
        assert hang.arrived.wait(60)
        assert not journal.forget(str(server.keys[1]).strip('"')), "it is under way"
        hang.proceed.set()
        other.join(60)
    assert len(set(server.keys)) == 2


@pytest.mark.parametrize("keep", ["999ms", "366d", "soon", 5])
def test_keep_out_of_bounds_is_refused(journal_path: Path, keep: Any) -> None:
    with pytest.raises(ConfigurationError, match="keep"):
        Journal(journal_path, keep=keep)
    assert not journal_path.exists()


def begun(journal: Journal, key: str, intent: str | None = None, **more: Any) -> EntryHandle:
    entry = journal.entry_for(key, b"digest", intent=intent, **more)
    entry.begin()
    return entry


def end(entry: EntryHandle, *, done: bool | None = None) -> None:
    if done is not None:
        entry.close(done=done)
    entry.release()


def test_an_entry_that_is_held_does_not_expire(journal: Journal, wall_clock: FakeWallClock) -> None:
    slow, unnamed = begun(journal, "k1", "order-17"), begun(journal, "k2")
    wall_clock.now += 2 * DAY_NS
    with pytest.raises(InFlight):
        begun(journal, "k3", "order-17")
    end(slow, done=True)
    end(unnamed)
    assert begun(journal, "k4", "order-17").key == "k1", "kept from its answer on"
    assert begun(journal, "k5").key == "k5", "nobody held it any more, and it was old"


def test_an_entry_that_is_done_stays_done(journal: Journal) -> None:
    for done in (True, False):
        end(begun(journal, f"k-{done}", "order-17"), done=done)
    assert begun(journal, "k3", "order-17").key == "k-True"


@pytest.mark.parametrize("how", ["reused", "answered"])
def test_keep_counts_from_the_last_use_of_an_entry(
    journal: Journal, wall_clock: FakeWallClock, how: str
) -> None:
    first = begun(journal, "k1", "order-17")
    if how == "answered":
        wall_clock.now += DAY_NS * 2 // 3
        end(first, done=True)
    else:
        end(first)
        wall_clock.now += DAY_NS * 2 // 3
        end(begun(journal, "k2", "order-17"))
    wall_clock.now += DAY_NS * 2 // 3
    end(begun(journal, "k3", "order-18"))
    wall_clock.now += DAY_NS // 6
    again = begun(journal, "k4", "order-17")
    assert again.key == "k1"
    end(again)
    wall_clock.now += DAY_NS
    assert begun(journal, "k5", "order-17").key == "k5"


def test_answered_entries_are_limited(
    journal: Journal, wall_clock: FakeWallClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "JOURNAL_ANSWERED_MAX", 2)
    held = begun(journal, "k0", "order-0")
    held.close(done=True)
    for number in range(1, 6):
        wall_clock.now += 1_000_000
        end(begun(journal, f"k{number}", f"order-{number}"), done=True)
    open_one = begun(journal, "open", "order-open")
    with journal._file.transaction() as connection:
        kept = connection.execute("SELECT key FROM entries WHERE answered = 1").fetchall()
    assert {key for (key,) in kept} == {"k0", "k5"}, (
        "the oldest are dropped, except for the one that is held"
    )
    assert open_one.key == "open"
    assert journal.open_entries() == 1


def test_forget_drops_an_entry_by_its_intent(journal: Journal) -> None:
    entry = begun(journal, "k1", "order-17", account="a")
    assert not journal.forget(intent="order-17", account="a"), "it is under way"
    end(entry, done=True)
    assert not journal.forget(intent="order-17"), "that of nobody in particular"
    assert journal.forget(intent="order-17", account="a")
    assert begun(journal, "k2", "order-17", account="a").key == "k2"
    for wrong in ({}, {"key": "k2", "intent": "order-17"}):
        with pytest.raises(ConfigurationError, match="a key or an intent"):
            journal.forget(**wrong)


# --- the file -------------------------------------------------------------------------------------


def test_a_journal_is_readable_by_its_owner_only_and_can_be_reopened(journal_path: Path) -> None:
    with Journal(journal_path) as journal:
        journal.entry_for("k1", b"digest").begin()
        for path in journal_path.parent.iterdir():
            assert path.stat().st_mode & 0o777 == 0o600, path
    with Journal(journal_path) as journal:
        entry = journal.entry_for("k2", b"digest")
        entry.begin()
        assert (entry.key, entry.reused) == ("k1", True)


def test_the_file_is_synchronous_and_exclusive(journal: Journal) -> None:
    """These pragmas keep entries through a power failure, which a test cannot cause."""
    with journal._file.transaction() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA locking_mode").fetchone() == ("exclusive",)


def test_a_second_journal_on_the_same_file_is_refused(journal_path: Path) -> None:
    with Journal(journal_path) as journal:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=r"keys\.journal is in use by another"):
                Journal(journal_path)
        journal.entry_for("k1", b"digest").begin()
    Journal(journal_path).close()


def test_a_closed_journal_refuses_requests(journal_path: Path, client_name: str) -> None:
    journal = Journal(journal_path)
    journal.close()
    with (
        scripted_server() as server,
        open_client(client_name, journal=journal) as client,
        pytest.raises(NotSent, match="was closed"),
    ):
        client.post(server.url)
    assert server.received == []


@pytest.mark.parametrize("what", ["folder", "missing folder", "text", "other database", "later"])
def test_a_file_that_cannot_be_a_journal_is_refused(journal_path: Path, what: str) -> None:
    if what == "folder":
        journal_path.mkdir()
    elif what == "missing folder":
        journal_path = journal_path / "nowhere" / "keys"
    elif what == "text":
        journal_path.write_text(
            "not a database at all, but a text that is long enough to tell " * 20
        )
    else:
        if what == "later":
            Journal(journal_path).close()
        connection = sqlite3.connect(journal_path)
        connection.execute("CREATE TABLE other (x)")
        connection.execute("PRAGMA user_version = 2")
        connection.commit()
        connection.close()
    with pytest.raises(ConfigurationError, match="keys"):
        Journal(journal_path)


def test_a_journal_whose_file_was_moved_refuses_requests(
    journal: Journal, journal_path: Path
) -> None:
    journal_path.rename(journal_path.with_suffix(".old"))
    with (
        scripted_server() as server,
        open_client("httpx", journal=journal) as client,
        pytest.raises(NotSent, match="deleted or replaced"),
    ):
        client.post(server.url)
    assert server.received == []


def test_a_failing_disk_refuses_new_requests_and_loses_no_response(
    journal: Journal, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = Hang(Respond(201))
    broken = dict(QUERIES)
    broken["delete_without_intent"] = "DELETE FROM entries WHERE key = ? AND no_such_column"
    with (
        caplog.at_level(logging.WARNING, "oncekey"),
        scripted_server(hang, Respond(202)) as server,
        open_client("httpx", journal=journal) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        sent = pool.submit(client.post, server.url)
        assert hang.arrived.wait(60)
        with monkeypatch.context() as patch:
            patch.setattr(entries, "QUERIES", broken)
            hang.proceed.set()
            assert sent.result(60).status == 201
            assert journal.open_entries() == 1
            assert "stays in the journal" in caplog.text
            with pytest.raises(NotSent, match="cannot be written"):
                client.post(server.url)
        # The key of an answered request is not reused, although its entry is still there.
        assert client.post(server.url).status == 202
    assert len(set(server.keys)) == 2
    assert journal.open_entries() == 0
    for key in server.keys:
        assert str(key).strip('"') not in caplog.text


def test_an_intent_whose_closing_failed_on_disk_keeps_its_key(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begun(journal, "k1", "order-17")
    with monkeypatch.context() as patch:
        broken = {**QUERIES, "mark_answered": "SELECT no_such_column"}
        patch.setattr(entries, "QUERIES", broken)
        end(first, done=True)
    assert begun(journal, "k2", "order-17").key == "k1"
