"""The watchlist of a completer has every unfinished record that was listed, up to its limit."""

from __future__ import annotations

import pytest
from tests.core.sample_records import record

from oncekey.core.record import Record, State, Step
from oncekey.core.step_format import ARGUMENTS
from oncekey.core.store import Unfinished
from oncekey.engine.background import watchlist as module
from oncekey.engine.background.watchlist import LIST_ALL_US, MARGIN_US, PAGE, Watchlist

HERE = {"charge"}
NOW = 10**12


def listed(*times: int, operation: str = "charge") -> Unfinished:
    return Unfinished(tuple(made(n, at, operation) for n, at in enumerate(times)), NOW)


def made(number: int, at: int, operation: str = "charge") -> Record:
    return record(id=number.to_bytes(16, "big"), fence=at, label=operation)


def test_after_a_short_page_the_cursor_is_a_margin_before_now() -> None:
    watchlist = Watchlist()
    assert watchlist.add(listed(5, 6), HERE, 0) is False
    assert (len(watchlist), watchlist.after) == (2, NOW - MARGIN_US)


def test_the_cursor_follows_a_store_clock_that_was_set_back() -> None:
    watchlist = Watchlist()
    watchlist.after = 2 * NOW
    watchlist.add(listed(), HERE, 0)
    assert watchlist.after == NOW - MARGIN_US


def test_i11_everything_is_listed_again_every_hour() -> None:
    """A record that became visible late, or while the clock was set, is found then."""
    watchlist = Watchlist()
    watchlist.begin_listing(5)
    watchlist.add(listed(), HERE, 5)
    watchlist.begin_listing(5 + LIST_ALL_US - 1)
    assert watchlist.after == NOW - MARGIN_US
    watchlist.begin_listing(5 + LIST_ALL_US)
    assert watchlist.after == 0


def test_a_full_page_is_followed_by_the_next() -> None:
    watchlist = Watchlist()
    assert watchlist.add(listed(*range(1, PAGE + 1)), HERE, 0) is True
    assert watchlist.after == PAGE
    # A store never splits records of one fence between pages: it returns a few more instead.
    assert watchlist.add(listed(*[PAGE + 1] * (PAGE + 3)), HERE, 0) is True
    assert watchlist.after == PAGE + 1


def test_a_record_of_an_unregistered_operation_is_not_watched() -> None:
    watchlist = Watchlist()
    watchlist.add(listed(5, operation="other"), HERE, 0)
    assert len(watchlist) == 0


def test_a_record_freed_before_any_step_is_not_watched() -> None:
    watchlist = Watchlist()
    freed = made(1, 5)._replace(state=State.ABSENT, steps=(Step(ARGUMENTS, True, b"", 0),))
    begun = freed._replace(id=b"2" * 16, steps=(*freed.steps, Step("pay", False, b"", 0)))
    watchlist.add(Unfinished((freed, begun), NOW), HERE, 0)
    assert watchlist.due(0) == [begun.id]


def test_a_record_that_is_listed_again_keeps_its_due_time_and_its_count() -> None:
    watchlist = Watchlist()
    watchlist.add(listed(5), HERE, 0)
    (id,) = watchlist.due(0)
    watchlist.recover_failed(id, 0)
    watchlist.add(listed(5), HERE, 1)
    assert (watchlist.recover_calls(id), watchlist.due(1)) == (1, [])


def test_records_that_have_waited_longest_are_due_first() -> None:
    watchlist = Watchlist()
    watchlist.add(listed(1, 2, 3), HERE, 0)
    first, second, third = watchlist.due(0)
    watchlist.postpone(first, 0)
    assert watchlist.due(0) == [second, third, first]


def test_i11_a_full_watchlist_drops_records_that_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WATCHED_MAX", 3)
    watchlist = Watchlist()
    watchlist.add(listed(1, 2, 3), HERE, 0)
    assert not watchlist.has_room()
    first, *_ = watchlist.due(0)
    assert watchlist.leave(first, 0, "why")
    assert watchlist.has_room()
    assert len(watchlist) == 2


def test_a_reason_to_leave_a_record_is_reported_once() -> None:
    watchlist = Watchlist()
    watchlist.add(listed(1), HERE, 0)
    (id,) = watchlist.due(0)
    assert [watchlist.leave(id, 0, why) for why in ("a", "a", "b")] == [True, False, True]
