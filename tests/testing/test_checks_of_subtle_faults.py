"""Apps whose fault is easily missed: their answers look right, or only somebody else is harmed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.testing.guarded_apps import CHARGE, EVERYTHING
from tests.testing.handmade_guards import HandmadeGuard, Reply, handmade_app

from oncekey.testing import Effects, NotIdempotent, assert_idempotent

WITHOUT_CRASHES = {**EVERYTHING, "require": ()}


class SameReplies(HandmadeGuard):
    """A guard of an operation whose answer does not tell how often it ran."""

    def _run(self, request: Any) -> Reply:
        self._effects.record(request)
        return Reply(201, {"request": request})


class ForgetsTheFirstCaller(SameReplies):
    """The key of a second caller takes the place of the first one's."""

    def charge(self, caller: str | None, key: str, request: Any) -> Reply:
        reply = super().charge(caller, key, request)
        for other in [one for one in self._replies if one[0] != caller and one[1] == key]:
            del self._replies[other]
        return reply


class ClashesFail(HandmadeGuard):
    """Two different requests that meet under one key both fail, and one of them was carried out."""

    def __init__(self, fault: str, effects: Effects) -> None:
        super().__init__(fault, effects)
        self._clashes: set[Any] = set()

    def charge(self, caller: str | None, key: str, request: Any) -> Reply:
        reply = super().charge(caller, key, request)
        if reply.status == 422 and self._replies[caller, key][1] is None:
            self._clashes.add(key)
        return Reply(500, "clash") if key in self._clashes else reply


class ClaimsBeforeAuthentication(HandmadeGuard):
    """Who is not let in holds the key of somebody else."""

    def charge(self, caller: str | None, key: str, request: Any) -> Reply:
        with self._lock:
            found = self._replies.setdefault(key, (caller, None))
        if caller is None:
            return Reply(401, "who are you?")
        if found[0] is None:
            return Reply(409, "in flight")
        return super().charge(caller, key, request)


class TellsOfUsedKeys(HandmadeGuard):
    """Who is not let in learns which keys were used."""

    def charge(self, caller: str | None, key: str, request: Any) -> Reply:
        if caller is None and ("alice", key) in self._replies:
            return Reply(422, "this key has been used")
        return super().charge(caller, key, request)


@pytest.mark.parametrize(
    ("guard", "fault", "case", "words"),
    [
        (
            SameReplies,
            "mismatch destroys the record",
            "other_body",
            "the first one lost its answer",
        ),
        (ForgetsTheFirstCaller, "", "other_caller", "first caller's retry was carried out again"),
        (ClashesFail, "", "other_body", "none was answered, with 1 effect"),
        (ClaimsBeforeAuthentication, "", "rejected_caller", "a rejected caller had sent its key"),
        (TellsOfUsedKeys, "", "rejected_caller", "was told that the key has been used"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_fault_that_hides_is_found(
    guard: type[HandmadeGuard], fault: str, case: str, words: str
) -> None:
    effects = Effects()
    with pytest.raises(NotIdempotent) as raised:
        assert_idempotent(
            handmade_app(guard(fault, effects)), CHARGE, effects=effects, **WITHOUT_CRASHES
        )
    assert words in raised.value.report.violated[case]
    assert list(raised.value.report.violated) == [case]


def test_an_effect_after_the_last_answer_is_noticed() -> None:
    """Nobody can say which request it belongs to, but it must not be overlooked."""
    effects, replies = Effects(), dict[str, int]()
    counts = 0

    def charge(key: str, cents: int) -> int:
        if key not in replies:
            effects.record(cents)
        return replies.setdefault(key, cents)

    def count() -> int:
        """The last look finds one more: two first requests and a case look twice each."""
        nonlocal counts
        counts += 1
        return len(effects) + (counts > 2 + 2 + 2 + 1)

    with pytest.raises(AssertionError, match=r"(?s)1 more effects came after.*let effects= wait"):
        assert_idempotent(charge, 5, effects=count, only="completed")
