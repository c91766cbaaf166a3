"""After a call without a reply one call at a time tries again, even if that try is interrupted."""

from __future__ import annotations

import pytest

from oncekey.core.errors import StoreUnavailable
from oncekey.stores.server_watch import REST_SECONDS, CircuitBreaker

CALL_SECONDS = 5.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_one_call_tries_again_and_its_reply_closes_the_breaker() -> None:
    clock = Clock()
    breaker = CircuitBreaker(CALL_SECONDS, clock)
    assert not breaker.enter()
    breaker.leave(False, replied=False)
    with pytest.raises(StoreUnavailable, match="nothing was sent"):
        breaker.enter()
    clock.now += REST_SECONDS
    assert breaker.enter()
    with pytest.raises(StoreUnavailable):
        breaker.enter()
    breaker.leave(True, replied=True)
    assert not breaker.enter()


@pytest.mark.parametrize("leaves", [True, False])
def test_i11_an_interrupted_try_does_not_keep_others_from_trying(leaves: bool) -> None:
    clock = Clock()
    breaker = CircuitBreaker(CALL_SECONDS, clock)
    breaker.leave(False, replied=False)
    clock.now += REST_SECONDS
    assert breaker.enter()
    if leaves:
        breaker.leave(True, replied=None)
    else:  # a signal came before it could
        clock.now += CALL_SECONDS
    assert breaker.enter()
