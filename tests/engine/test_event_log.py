"""The engine's log: what is rare is written by itself, once, and names no key."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.log_records import Written, written_log

from oncekey import Once, StoreUnavailable
from oncekey.core.errors import InFlight, Mismatch, OutcomeUnknown
from oncekey.core.events import Event, EventKind
from oncekey.engine.event_log import LINES_MAX, LOG_PERIOD_US, LogLines, sentence
from oncekey.stores.memory import MemoryStore
from oncekey.testing import FakeClock, FaultyStore

SECRET_KEY = "sk_live_4242424242424242"
SECRET_BODY = "card 4000 0566 5566 5556"
LEASE = 30_000_000


@pytest.fixture
def log() -> Iterator[Written]:
    with written_log("oncekey") as written:
        yield written


def event(kind: EventKind, operation: str = "charge", **more: Any) -> Event:
    return Event(kind, operation, "acct_1", "5f2d9c01aa34")._replace(**more)


def test_a_healthy_run_and_its_replay_write_nothing(log: Written) -> None:
    with Once("memory://") as once:
        once.run("charge", "k", lambda attempt: 1)
        once.run("charge", "k", lambda attempt: 1)
    assert log.lines == []


def test_a_mismatch_is_a_warning_that_names_operation_scope_and_tag(log: Written) -> None:
    with Once("memory://") as once:
        once.run("charge", SECRET_KEY, lambda attempt: SECRET_BODY, scope="acct_1", request="a")
        with pytest.raises(Mismatch) as raised:
            once.run("charge", SECRET_KEY, lambda attempt: 1, scope="acct_1", request=SECRET_BODY)
    (record,) = log.records
    assert record.levelno == logging.WARNING
    expected = f"charge [{raised.value.tag}] scope 'acct_1': the key belongs to another request"
    assert record.getMessage().startswith(expected)
    assert SECRET_KEY not in log.text
    assert SECRET_BODY not in log.text


def test_unknown_keys_and_takeovers_are_written(log: Written) -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock.wall)
    with Once(store, clock=clock) as once:
        for retry_safe in (False, True):
            key, options = f"{SECRET_KEY}-{retry_safe}", {"retry_safe": retry_safe}
            held = once._jobs.make("charge", key, "acct_1", None, None, options)
            store.apply([held.claim])
            clock.advance(LEASE)
            if not retry_safe:
                with pytest.raises(OutcomeUnknown):
                    once.run("charge", key, lambda attempt: 1, scope="acct_1")
            else:
                once.run("charge", key, lambda attempt: 1, scope="acct_1", retry_safe=True)
    assert [line.partition(": ")[2][:25] for line in log.lines] == [
        "its outcome is unknown: r",
        "attempt 2 took over: the ",
    ]
    assert SECRET_KEY not in log.text


def test_an_interrupted_body_says_that_its_outcome_is_unknown(log: Written) -> None:
    def body(attempt: object) -> None:
        raise KeyboardInterrupt

    with Once("memory://") as once, pytest.raises(KeyboardInterrupt):
        once.run("charge", SECRET_KEY, body)
    (line,) = log.lines
    assert "its outcome is unknown" in line


def test_a_store_that_goes_and_comes_back_writes_one_line_each(log: Written) -> None:
    faulty = FaultyStore(MemoryStore())
    with Once(faulty, cache=0) as once:
        faulty.down = True
        for number in range(3):
            with pytest.raises(StoreUnavailable):
                once.run("charge", f"k{number}", lambda attempt: 1)
        faulty.down = False
        once.run("charge", "k", lambda attempt: 1)
        once.run("charge", "k", lambda attempt: 1)
        assert [line.partition(": ")[2].partition(";")[0] for line in log.lines] == [
            "the store does not answer",
            "the store is back",
        ]
        assert once._outcomes.events.subscribers == ()  # nobody listens any more


def test_a_key_in_flight_is_no_cause_for_a_line(log: Written) -> None:
    with Once("memory://") as once:
        held = once._jobs.make("charge", "k", "", None, None, {})
        once._store.apply([held.claim])
        with pytest.raises(InFlight):
            once.run("charge", "k", lambda attempt: 1)
    assert log.lines == []


# --- limits ---------------------------------------------------------------------------------------


def test_mismatches_are_limited_to_one_line_per_period_and_operation() -> None:
    clock = FakeClock()
    lines = LogLines(clock.now)
    mismatch = event(EventKind.MISMATCH)
    written = [len(lines.lines_for(mismatch)) for _ in range(5)]
    assert written == [1, 0, 0, 0, 0]
    assert len(lines.lines_for(event(EventKind.MISMATCH, "refund"))) == 1
    clock.advance(LOG_PERIOD_US)
    (line,) = lines.lines_for(mismatch)
    assert line.left_out == 4
    assert sentence(mismatch, line).endswith("(4 more like this were left out)")


def test_a_flood_of_unknown_keys_is_limited_too() -> None:
    lines = LogLines(FakeClock().now)
    written = [len(lines.lines_for(event(EventKind.UNKNOWN))) for _ in range(LINES_MAX + 5)]
    assert sum(written) == LINES_MAX


def test_a_line_break_in_a_name_begins_no_line_of_its_own() -> None:
    forged = event(EventKind.LOST, "charge\nERROR forged", scope="a\nb", route="GET /\n")
    (line,) = LogLines(FakeClock().now).lines_for(forged._replace(surface="http"))
    assert "\n" not in sentence(forged._replace(surface="http"), line)
