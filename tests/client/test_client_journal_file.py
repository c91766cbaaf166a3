"""The journal's file and its limits: age, size, other users, a disk that fails."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.client.callers import calling
from tests.client.fake_time import DAY_NS, Calendar
from tests.client.scripted import Answer, Cut, Drop, Hang, serving

from oncekey import ConfigurationError, InFlight
from oncekey.client import Journal, NotSent, RetriesExhausted, Retry
from oncekey.client.journal import EntryHandle, entries
from oncekey.client.journal import journal as journals
from oncekey.client.journal.file import QUERIES

ONCE = Retry(attempts=1)


# --- age and size ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("hours", "same"), [(23, True), (24, False)])
def test_an_entry_past_its_keep_is_dropped(
    journal: Journal, calendar: Calendar, hours: int, same: bool
) -> None:
    with (
        serving(Drop(), Answer()) as server,
        calling("httpx", journal=journal, retry=ONCE) as caller,
    ):
        with pytest.raises(RetriesExhausted):
            caller.post(server.url)
        calendar.now += DAY_NS * hours // 24
        caller.post(server.url)
    assert (server.keys[0] == server.keys[1]) is same
    assert journal.open_entries() == 0


def test_there_is_a_limit_to_what_is_left_open(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "JOURNAL_ENTRIES_MAX", 2)
    with (
        serving(Drop(), Drop(), Answer()) as server,
        calling("httpx", journal=journal, retry=ONCE) as caller,
    ):
        for body in (b"1", b"2"):
            with pytest.raises(RetriesExhausted):
                caller.post(server.url, body=body)
        with pytest.raises(NotSent, match="2 requests that were never answered"):
            caller.post(server.url, body=b"3")
        caller.post(server.url, body=b"1")
    assert len(server.seen) == 3


def test_what_was_found_out_otherwise_can_be_forgotten(journal: Journal) -> None:
    hang = Hang()
    with (
        serving(Drop(), hang) as server,
        calling("httpx", journal=journal, retry=ONCE) as caller,
    ):
        with pytest.raises(RetriesExhausted) as caught:
            caller.post(server.url)
        assert journal.forget(caught.value.key)
        assert not journal.forget(caught.value.key)
        other = threading.Thread(target=caller.post, args=(server.url,))
        other.start()
        assert hang.here.wait(10)
        assert not journal.forget(str(server.keys[1]).strip('"')), "it is under way"
        hang.go.set()
        other.join(10)
    assert len(set(server.keys)) == 2


@pytest.mark.parametrize("keep", ["999ms", "366d", "soon", 5])
def test_keep_has_limits(journal_path: Path, keep: Any) -> None:
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


def test_what_is_under_way_is_never_too_old(journal: Journal, calendar: Calendar) -> None:
    slow, unnamed = begun(journal, "k1", "order-17"), begun(journal, "k2")
    calendar.now += 2 * DAY_NS
    with pytest.raises(InFlight):
        begun(journal, "k3", "order-17")
    end(slow, done=True)
    end(unnamed)
    assert begun(journal, "k4", "order-17").key == "k1", "kept from its answer on"
    assert begun(journal, "k5").key == "k5", "nobody held it any more, and it was old"


def test_what_was_done_stays_done_whatever_is_answered_later(journal: Journal) -> None:
    for done in (True, False):
        end(begun(journal, f"k-{done}", "order-17"), done=done)
    assert begun(journal, "k3", "order-17").key == "k-True"


@pytest.mark.parametrize("how", ["taken up", "answered"])
def test_keep_counts_from_the_last_that_was_heard_of_it(
    journal: Journal, calendar: Calendar, how: str
) -> None:
    first = begun(journal, "k1", "order-17")
    if how == "answered":
        calendar.now += DAY_NS * 2 // 3
        end(first, done=True)
    else:
        end(first)
        calendar.now += DAY_NS * 2 // 3
        end(begun(journal, "k2", "order-17"))
    calendar.now += DAY_NS * 2 // 3
    end(begun(journal, "k3", "order-18"))
    calendar.now += DAY_NS // 6
    again = begun(journal, "k4", "order-17")
    assert again.key == "k1"
    end(again)
    calendar.now += DAY_NS
    assert begun(journal, "k5", "order-17").key == "k5"


def test_there_is_a_limit_to_what_is_kept_as_answered(
    journal: Journal, calendar: Calendar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "JOURNAL_ANSWERED_MAX", 2)
    held = begun(journal, "k0", "order-0")
    held.close(done=True)
    for number in range(1, 6):
        calendar.now += 1_000_000
        end(begun(journal, f"k{number}", f"order-{number}"), done=True)
    open_one = begun(journal, "open", "order-open")
    with journal._file.transaction() as connection:
        kept = connection.execute("SELECT key FROM entries WHERE answered = 1").fetchall()
    assert {key for (key,) in kept} == {"k0", "k5"}, "the oldest go, but for the one that is held"
    assert open_one.key == "open"
    assert journal.open_entries() == 1


def test_an_intent_can_be_forgotten_by_its_name(journal: Journal) -> None:
    entry = begun(journal, "k1", "order-17", account="a")
    assert not journal.forget(intent="order-17", account="a"), "it is under way"
    end(entry, done=True)
    assert not journal.forget(intent="order-17"), "that of nobody in particular"
    assert journal.forget(intent="order-17", account="a")
    assert begun(journal, "k2", "order-17", account="a").key == "k2"
    for wrong in ({}, {"key": "k2", "intent": "order-17"}):
        with pytest.raises(ConfigurationError, match="a key or an intent"):
            journal.forget(**wrong)


# --- taking turns ---------------------------------------------------------------------------------


@contextmanager
def file_is_busy(journal: Journal) -> Iterator[None]:
    """Somebody else waits for the disk; others queue."""
    entered, go = threading.Event(), threading.Event()

    def wait() -> None:
        with journal._file.transaction():
            entered.set()
            go.wait(10)

    other = threading.Thread(target=wait)
    other.start()
    assert entered.wait(10)
    try:
        yield
    finally:
        go.set()
        other.join(10)


@pytest.mark.parametrize("done", [True, False])
def test_what_was_answered_while_another_queued_is_not_taken_up(
    journal: Journal, done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two purchases at the same time; the first is answered, cancelled while that is being
    written, and the second had queued for the disk before."""
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
            assert queued.wait(10)
            settling = pool.submit(first.close, done=done)
            while not journal._closed:
                time.sleep(0.001)
            first.release()
        beginning.result(10)
        settling.result(10)
    assert (second.key, second.reused) == ("k2", False)
    assert journal.open_entries() == 1


@pytest.mark.parametrize("intent", [None, "order-17"])
def test_nor_what_was_answered_in_the_middle_of_its_turn(
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
    settling.join(10)
    assert journal._closed == {}


def test_an_intent_whose_answer_the_disk_did_not_take_is_still_its_own(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begun(journal, "k1", "order-17")
    with monkeypatch.context() as patch:
        broken = {**QUERIES, "mark_answered": "SELECT no_such_column"}
        patch.setattr(entries, "QUERIES", broken)
        end(first, done=True)
    assert begun(journal, "k2", "order-17").key == "k1"


# --- the file -------------------------------------------------------------------------------------


def test_a_journal_is_its_owners_alone_and_survives_being_closed(journal_path: Path) -> None:
    with Journal(journal_path) as journal:
        journal.entry_for("k1", b"digest").begin()
        for path in journal_path.parent.iterdir():
            assert path.stat().st_mode & 0o777 == 0o600, path
    with Journal(journal_path) as journal:
        entry = journal.entry_for("k2", b"digest")
        entry.begin()
        assert (entry.key, entry.reused) == ("k1", True)


def test_a_commit_waits_for_the_disk(journal: Journal) -> None:
    """So that power may fail too; nothing less than a power failure could tell otherwise."""
    with journal._file.transaction() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA locking_mode").fetchone() == ("exclusive",)


def test_one_journal_at_a_time(journal_path: Path) -> None:
    with Journal(journal_path) as journal:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=r"keys\.journal is in use by another"):
                Journal(journal_path)
        journal.entry_for("k1", b"digest").begin()
    Journal(journal_path).close()


def test_a_closed_journal_refuses(journal_path: Path, name: str) -> None:
    journal = Journal(journal_path)
    journal.close()
    with (
        serving() as server,
        calling(name, journal=journal) as caller,
        pytest.raises(NotSent, match="was closed"),
    ):
        caller.post(server.url)
    assert server.seen == []


@pytest.mark.parametrize("what", ["folder", "missing folder", "text", "other database", "later"])
def test_a_file_that_cannot_be_a_journal_is_named(journal_path: Path, what: str) -> None:
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


def test_a_journal_that_vanished_refuses(journal: Journal, journal_path: Path) -> None:
    journal_path.rename(journal_path.with_suffix(".old"))
    with (
        serving() as server,
        calling("httpx", journal=journal) as caller,
        pytest.raises(NotSent, match="deleted or replaced"),
    ):
        caller.post(server.url)
    assert server.seen == []


def test_a_disk_that_fails_refuses_new_requests_and_loses_no_answer(
    journal: Journal, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = Hang(Answer(201))
    broken = dict(QUERIES)
    broken["delete_without_intent"] = "DELETE FROM entries WHERE key = ? AND no_such_column"
    with (
        caplog.at_level(logging.WARNING, "oncekey"),
        serving(hang, Answer(202)) as server,
        calling("httpx", journal=journal) as caller,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(caller.post, server.url)
        assert hang.here.wait(10)
        with monkeypatch.context() as patch:
            patch.setattr(entries, "QUERIES", broken)
            hang.go.set()
            assert asked.result(10).status == 201
            assert journal.open_entries() == 1
            assert "stays in the journal" in caplog.text
            with pytest.raises(NotSent, match="cannot be written"):
                caller.post(server.url)
        # An answered request is not taken up, although its entry is still there.
        assert caller.post(server.url).status == 202
    assert len(set(server.keys)) == 2
    assert journal.open_entries() == 0
    for key in server.keys:
        assert str(key).strip('"') not in caplog.text


def test_an_answer_that_broke_off_leaves_it_open(name: str, journal: Journal) -> None:
    with (
        serving(Cut(5), Answer()) as server,
        calling(name, journal=journal, retry=ONCE) as caller,
    ):
        with pytest.raises(RetriesExhausted):
            caller.post(server.url)
        assert journal.open_entries() == 1


def test_a_hundred_requests_from_eight_threads(journal: Journal) -> None:
    """Every one has a key of its own, and none is left."""
    with (
        serving(*[Answer()] * 100) as server,
        calling("httpx", journal=journal) as caller,
        ThreadPoolExecutor(8) as pool,
    ):
        list(pool.map(lambda _: caller.post(server.url), range(100)))
    assert len(set(server.keys)) == 100
    assert journal.open_entries() == 0
