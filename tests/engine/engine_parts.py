"""Parts of an engine without an engine, for tests of one of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from oncekey.core.commands import Claim
from oncekey.core.effects import Grant
from oncekey.core.guarantees import Guarantee, Level
from oncekey.engine.attempts.attempt_base import AttemptBase
from oncekey.engine.once_base import EngineParts, make_parts
from oncekey.testing.fake_clock import FakeClock

STRONG = Guarantee(Level.TRANSACTIONAL, "a file")
WEAK = Guarantee(Level.BEST_EFFORT, "it forgets")


def parts_with(guarantee: Guarantee = STRONG, **changes: Any) -> EngineParts:
    """The job factory and the outcomes of an engine with these options."""
    options: dict[str, Any] = {
        "policy": None,
        "secret": None,
        "codec": None,
        "cache": None,
        "raw_keys": False,
        "clock": FakeClock(),
    }
    return make_parts(lambda: guarantee, **{**options, **changes})


def grant_of(id: bytes, lease: int, deadline: int) -> Grant:
    """The grant of a first attempt."""
    claim = Claim(id, b"o", b"\x01f", lease, 100, 100, False)
    return Grant(claim, 1, 1, deadline)


def attempt_with(clock: Any, grant: Grant) -> AttemptBase:
    """A running attempt that nothing drives."""
    jobs = parts_with(clock=clock).jobs
    job = jobs.make("op", "k", "", None, None, {})
    return AttemptBase(SimpleNamespace(jobs=jobs), job, grant)
