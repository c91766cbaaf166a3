"""Observers see bodies, steps and batches from inside; without listeners nothing is measured."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.log_records import written_log

from oncekey import AsyncOnce, Event, EventKind, NotStarted, Observer, Once
from oncekey.engine import event_bus
from oncekey.testing import FakeClock

MS = 1_000


class Diary(Observer):
    """Writes down what it was called about, and where."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.threads: set[int] = set()
        self.events: list[Event] = []
        self.batches: list[int] = []

    def on_event(self, event: Event) -> None:
        self.lines.append(event.kind)
        self.events.append(event)

    def on_body(self, event: Event) -> Callable[[], None]:
        self.threads.add(threading.get_ident())
        self.lines.append(f"body {event.operation}")
        return lambda: self.lines.append("end of body")

    def on_step(self, operation: str, tag: str, step: str) -> Callable[[], None]:
        self.lines.append(f"step {step}")
        return lambda: self.lines.append("end of step")

    def on_batch(self, size: int, elapsed_us: int) -> None:
        self.batches.append(size)


def test_an_observer_is_called_around_bodies_and_steps_in_their_thread() -> None:
    diary = Diary()
    with Once("memory://") as once:
        stop = once.observe(diary)
        once.run("checkout", "k", lambda attempt: attempt.step("pay", lambda key: 1))
        stop()
        once.run("checkout", "k2", lambda attempt: 1)
    assert diary.lines == [
        "claimed",
        "body checkout",
        "step pay",
        "end of step",
        "end of body",
        "finished",
    ]
    assert diary.threads == {threading.get_ident()}


def test_an_async_body_and_its_steps_are_observed_alike() -> None:
    diary = Diary()

    async def main() -> None:
        async def body(attempt: Any) -> Any:
            await asyncio.sleep(0)
            return await attempt.step("pay", lambda key: 1)

        async with AsyncOnce("memory://") as once:
            once.observe(diary)
            await once.run("checkout", "k", body)

    asyncio.run(main())
    assert diary.lines[1:5] == ["body checkout", "step pay", "end of step", "end of body"]


@pytest.mark.parametrize("error", [None, NotStarted(), ValueError("no"), KeyboardInterrupt()])
def test_the_last_event_says_how_long_body_and_finish_took(error: BaseException | None) -> None:
    clock, diary = FakeClock(), Diary()

    def body(attempt: object) -> int:
        clock.advance(30 * MS)
        if error is not None:
            raise error
        return 1

    with Once("memory://", clock=clock) as once:
        once.observe(diary)
        with suppress(NotStarted, ValueError, KeyboardInterrupt):
            once.run("charge", "k", body)
    last = diary.events[-1]
    assert (last.body_us, last.finish_us, last.elapsed_us) == (30 * MS, 0, 30 * MS)
    assert "end of body" in diary.lines


def test_a_body_in_a_transaction_is_observed(tmp_path: Path) -> None:
    diary = Diary()
    with Once(f"sqlite:///{tmp_path / 'keys.db'}") as once:
        once.observe(diary)
        connection = sqlite3.connect(tmp_path / "keys.db")
        with connection:
            once.in_transaction(connection).run("charge", "k", lambda attempt: 1)
        connection.close()
    assert diary.lines == ["claimed", "body charge", "end of body", "finished"]


def test_batches_are_told_to_observers(tmp_path: Path) -> None:
    diary = Diary()
    with Once(f"sqlite:///{tmp_path / 'keys.db'}") as once:
        once.observe(diary)
        once.run("charge", "k", lambda attempt: 1)
    assert diary.batches == [1, 1]


def test_an_observer_that_fails_breaks_nothing() -> None:
    class Broken(Observer):
        def on_event(self, event: Event) -> None:
            raise ZeroDivisionError

        def on_body(self, event: Event) -> Callable[[], None]:
            raise ZeroDivisionError

        def on_step(self, operation: str, tag: str, step: str) -> Callable[[], float]:
            return lambda: 1 / 0

    with written_log("oncekey") as log, Once("memory://") as once:
        once.observe(Broken())
        result = once.run("checkout", "k", lambda attempt: attempt.step("pay", lambda key: 1))
    assert result.value == 1
    assert "an observer failed" in log.text


def test_nothing_is_measured_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*arguments: object) -> None:
        raise AssertionError("an event or a measurement was made for nobody")

    monkeypatch.setattr(event_bus, "Event", forbidden)
    monkeypatch.setattr(event_bus, "from_fields", forbidden)
    monkeypatch.setattr(event_bus, "Measured", forbidden)
    with Once("memory://", cache=0) as once:
        once.run("charge", "k", lambda attempt: attempt.step("pay", lambda key: 1))
        assert once.run("charge", "k", lambda attempt: 1).replayed


def test_a_subscriber_that_comes_during_a_run_gets_its_end() -> None:
    kinds: list[EventKind] = []
    with Once("memory://") as once:

        def body(attempt: object) -> int:
            once.subscribe(lambda event: kinds.append(event.kind))
            return 1

        once.run("charge", "k", body)
    assert kinds == [EventKind.FINISHED]
