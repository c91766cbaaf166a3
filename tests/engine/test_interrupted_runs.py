"""A run may be interrupted anywhere: its key is never left in flight, and what its body returned is
never lost (I10, I14).

A signal's handler may raise wherever Python runs signal handlers. Each run here is interrupted at
one such place in oncekey, the next run at the next one, until there are no more.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engine.interrupter import Interrupter, Stop, TimeLimit

from oncekey import NotReplayable, Once, current_attempt

PLACES_MAX = 5_000
PLACES_MIN = 50


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
            with Interrupter(place, kind) as interrupted:
                try:
                    start(once, key, body)
                except (Stop, TimeLimit, NotReplayable):
                    pass
            check(once, key, body, start, interrupted.came)
            if not interrupted.came:
                assert place > PLACES_MIN, "it was hardly interrupted at all"
                return
    raise AssertionError("there is no end of places")


def check(once: Once, key: str, body: Body, start: Start, came: str) -> None:
    assert not once._runner._heartbeat._attempts, f"{came}: an attempt is kept alive for ever"
    assert current_attempt() is None, came
    status = once.get("op", key)
    state = "free" if status is None else status.state
    assert state != "pending", f"{came}: the key is left in flight"
    assert body.runs <= 1
    if body.returned:
        assert state == "succeeded", f"{came}: a result that was returned is {state}"
        again = Body()
        assert start(once, key, again) == "charged"
        assert again.runs == 0
    elif start is not guarded or state not in ("unknown", "failed"):
        # The call of a guarded function is part of the body.
        assert state == "free", f"{came}: nothing happened, and the key is {state}"
        assert start(once, key, body) == "charged", came
