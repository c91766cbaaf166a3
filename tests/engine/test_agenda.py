"""What a completer remembers: everything unfinished that was listed, and no more than its limit."""

from __future__ import annotations

import pytest
from tests.core.making import record

from oncekey.core.record import Record, State, Step
from oncekey.core.step_format import ARGUMENTS
from oncekey.core.store import Unfinished
from oncekey.engine import watchlist as module
from oncekey.engine.watchlist import MARGIN_US, PAGE, WHOLE_US, Watchlist

HERE = {"charge"}
NOW = 10**12


def listed(*times: int, operation: str = "charge") -> Unfinished:
    return Unfinished(tuple(made(n, at, operation) for n, at in enumerate(times)), NOW)


def made(number: int, at: int, operation: str = "charge") -> Record:
    return record(id=number.to_bytes(16, "big"), fence=at, operation=operation)


def test_a_short_page_moves_the_cursor_to_a_moment_ago() -> None:
    agenda = Watchlist()
    assert agenda.add(listed(5, 6), HERE, 0) is False
    assert (len(agenda), agenda.after) == (2, NOW - MARGIN_US)


def test_the_cursor_follows_a_store_clock_that_was_set_back() -> None:
    agenda = Watchlist()
    agenda.after = 2 * NOW
    agenda.add(listed(), HERE, 0)
    assert agenda.after == NOW - MARGIN_US


def test_i11_all_is_listed_again_every_hour() -> None:
    """What was committed late, or under a clock that was set, is found then at the latest."""
    agenda = Watchlist()
    agenda.begin(5)
    agenda.add(listed(), HERE, 5)
    agenda.begin(5 + WHOLE_US - 1)
    assert agenda.after == NOW - MARGIN_US
    agenda.begin(5 + WHOLE_US)
    assert agenda.after == 0


def test_a_full_page_is_followed_by_the_next() -> None:
    agenda = Watchlist()
    assert agenda.add(listed(*range(1, PAGE + 1)), HERE, 0) is True
    assert agenda.after == PAGE
    # A store never cuts through records of one fence: it gives a few more instead.
    assert agenda.add(listed(*[PAGE + 1] * (PAGE + 3)), HERE, 0) is True
    assert agenda.after == PAGE + 1


def test_what_is_not_registered_is_not_watched() -> None:
    agenda = Watchlist()
    agenda.add(listed(5, operation="other"), HERE, 0)
    assert len(agenda) == 0


def test_one_freed_before_any_step_is_not_watched() -> None:
    agenda = Watchlist()
    freed = made(1, 5)._replace(state=State.ABSENT, steps=(Step(ARGUMENTS, True, b"", 0),))
    begun = freed._replace(id=b"2" * 16, steps=(*freed.steps, Step("pay", False, b"", 0)))
    agenda.add(Unfinished((freed, begun), NOW), HERE, 0)
    assert agenda.due(0) == [begun.id]


def test_listed_again_it_keeps_its_time_and_its_count() -> None:
    agenda = Watchlist()
    agenda.add(listed(5), HERE, 0)
    (id,) = agenda.due(0)
    agenda.asked_in_vain(id, 0)
    agenda.add(listed(5), HERE, 1)
    assert (agenda.asked(id), agenda.due(1)) == (1, [])


def test_those_that_waited_longest_come_first() -> None:
    agenda = Watchlist()
    agenda.add(listed(1, 2, 3), HERE, 0)
    first, second, third = agenda.due(0)
    agenda.later(first, 0)
    assert agenda.due(0) == [second, third, first]


def test_i11_when_it_is_full_those_go_that_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WATCHED_MAX", 3)
    agenda = Watchlist()
    agenda.add(listed(1, 2, 3), HERE, 0)
    assert not agenda.has_room()
    first, *_ = agenda.due(0)
    assert agenda.leave(first, 0, "why")
    assert agenda.has_room()
    assert len(agenda) == 2


def test_why_it_is_left_is_news_once() -> None:
    agenda = Watchlist()
    agenda.add(listed(1), HERE, 0)
    (id,) = agenda.due(0)
    assert [agenda.leave(id, 0, why) for why in ("a", "a", "b")] == [True, False, True]
