"""A run may be interrupted anywhere: its key is never left in flight, and what its body has given
to oncekey is never lost (I10, I14). If its key cannot be closed, nothing keeps it alive (I11).

A signal's handler may raise wherever Python runs signal handlers. Each run here is interrupted at
one such place in oncekey, the next run at the next one, until there are no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engine.interrupter import Interrupter, Stop, TimeLimit

from oncekey import NotReplayable, Once, OutcomeUnknown, current_attempt
from oncekey.engine.attempts.attempt_base import enter
from oncekey.engine.attempts.runner import Runner
from oncekey.stores.memory import MemoryStore
from oncekey.testing import FakeClock
from oncekey.testing.contract.engine_case import wait_until_true

PLACES_MAX = 5_000
PLACES_MIN = 50
HOUR_US = 3_600_000_000


class Body:
    """A body that records how far it came. It is not interrupted itself."""

    def __init__(self) -> None:
        self.runs = 0
        self.returned = False

    def __call__(self, attempt: Any) -> str:
        self.runs += 1
        self.returned = True
        return "charged"


Start = Callable[[Once, str, Body], Any]


def as_function(once: Once, key: str, body: Body) -> Any:
    def function(attempt: Any) -> str:
        return body(attempt)

    return once.run("op", key, function).value


def as_object(once: Once, key: str, body: Body) -> Any:
    return once.run("op", key, body).value


def guarded(once: Once, key: str, body: Body) -> Any:
    def charge(order: str) -> str:
        return body(None)

    return once.guard("op", key=lambda order: order)(charge)(key)


@pytest.mark.parametrize("kind", [Stop, TimeLimit])
@pytest.mark.parametrize(
    ("store", "start"),
    [
        ("memory", as_function),
        ("memory", as_object),
        ("memory", guarded),
        ("sqlite", as_function),
    ],
)
def test_i14_a_run_interrupted_anywhere_closes_its_key(
    tmp_path: Path, store: str, start: Start, kind: type[BaseException]
) -> None:
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/shop.db?synchronous=off"
    with Once(url, cache=0) as once:
        start(once, "warm", Body())
        for place in range(1, PLACES_MAX):
            body, key = Body(), f"k{place}"
            with Interrupter(place, kind, returned=lambda: body.returned) as interrupted:  # noqa: B023
                try:
                    start(once, key, body)
                except (Stop, TimeLimit, NotReplayable):
                    pass
            check(once, key, body, start, interrupted)
            if not interrupted.came:
                assert place > PLACES_MIN, "it was hardly interrupted at all"
                return
    raise AssertionError("there is no end of places")


def check(once: Once, key: str, body: Body, start: Start, interrupted: Interrupter) -> None:
    came = interrupted.came
    assert not once._runner._heartbeat._attempts, f"{came}: an attempt is kept alive for ever"
    assert current_attempt() is None, came
    status = once.get("op", key)
    state = "free" if status is None else status.state
    assert state != "pending", f"{came}: the key is left in flight"
    assert body.runs <= 1
    if body.returned and (interrupted.handed or state == "succeeded"):
        assert state == "succeeded", f"{came}: a result that was returned is {state}"
        again = Body()
        assert start(once, key, again) == "charged"
        assert again.runs == 0
    elif body.returned:
        # On the way from the body's end to oncekey it counts as raised by the body.
        assert state == ("unknown" if interrupted.kind is Stop else "failed"), came
    elif start is not guarded or state not in ("unknown", "failed"):
        # The call of a guarded function is part of the body.
        assert state == "free", f"{came}: nothing happened, and the key is {state}"
        assert start(once, key, body) == "charged", came


# --- the key cannot be closed ---------------------------------------------------------------------


@pytest.fixture
def closes_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Signals interrupt an interrupted run again, whenever it tries to close its key."""

    def close(*_: object) -> None:
        raise Stop

    monkeypatch.setattr(Runner, "_close_interrupted", close)
    yield
    enter(None)  # nor could it leave its body


@pytest.mark.usefixtures("closes_nothing")
def test_i11_a_run_interrupted_again_and_again_is_not_kept_alive() -> None:
    with Once("memory://", cache=0) as once:
        heartbeat = once._runner._heartbeat
        as_function(once, "warm", Body())
        kept = []
        for place in range(1, PLACES_MAX):
            body = Body()
            with Interrupter(place, Stop) as interrupted:
                try:
                    as_function(once, f"k{place}", body)
                except Stop as error:
                    kept.append(error)  # which has the run's frames, and so its attempt
            heartbeat._update_beats()
            assert not heartbeat._beats, f"{interrupted.came}: an attempt is kept alive for ever"
            assert body.runs <= 1
            if not interrupted.came:
                assert place > PLACES_MIN, "it was hardly interrupted at all"
                assert kept, "nothing has interrupted it"
                return
    raise AssertionError("there is no end of places")


@pytest.mark.usefixtures("closes_nothing")
@pytest.mark.parametrize("retry_safe", [True, False])
def test_i10_the_lease_ends_a_run_that_was_interrupted_again_and_again(retry_safe: bool) -> None:
    clock = FakeClock()
    ran = []

    def body(attempt: Any) -> str:
        ran.append(attempt.number)
        if attempt.number == 1:
            raise Stop
        return "charged"

    with Once(MemoryStore(clock=clock.wall), clock=clock, cache=0) as once:
        interrupt_after_the_body(once)
        with pytest.raises(Stop):
            once.run("op", "k", body, retry_safe=retry_safe)
        assert once.get("op", "k").state == "pending"  # type: ignore[union-attr]
        for _ in range(4):
            clock.wait_until_due(HOUR_US)  # the heartbeat's thread waits
            clock.advance(10_000_000)
        if retry_safe:
            assert once.run("op", "k", body, retry_safe=True).value == "charged"
            assert ran == [1, 2]
        else:
            with pytest.raises(OutcomeUnknown):
                once.run("op", "k", body)
            assert ran == [1]


def test_a_run_goes_on_to_be_kept_alive_while_its_body_runs() -> None:
    """However long that is: only a run that is over is left to its lease."""
    clock = FakeClock()

    def body(attempt: Any) -> str:
        for _ in range(10):
            clock.wait_until_due(HOUR_US)
            deadline = attempt._deadline
            clock.advance(10_000_000)
            wait_until_true(lambda: attempt._deadline > deadline)  # noqa: B023
        return "charged"

    with Once(MemoryStore(clock=clock.wall), clock=clock, cache=0) as once:
        assert once.run("op", "k", body, retry_safe=True).value == "charged"


def interrupt_after_the_body(once: Once) -> None:
    """A signal's handler raises when the body of the first run has ended."""
    runner: Any = once._runner
    end_body = runner._end_body

    def interrupted(*arguments: object) -> None:
        runner._end_body = end_body
        raise Stop

    runner._end_body = interrupted
