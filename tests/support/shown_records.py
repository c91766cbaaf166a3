"""Records in every state a key can have, and what people are shown of them, to compare readers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from tests.core.sample_records import record

from oncekey import Once
from oncekey.core.identity import Identities
from oncekey.core.record import Record, State, Step
from oncekey.core.step_format import pack_step

HOUR = 3_600_000_000
OPERATION, SCOPE = "charge", "acct"


class Shown(NamedTuple):
    """What a reader says of one key."""

    tag: str
    state: str
    expired: bool
    finished_at: datetime | None
    expires_at: datetime | None


def records_in_every_state(now: int) -> Iterator[Record]:
    """One record for each state, with and without `retry_safe`, whose owner is alive, is silent or
    whose time is over, whether or not it is kept until somebody decides it. Their keys are stored
    raw. Two of each have a step, so that a freed one is shown."""
    for state in State:
        for retry_safe in (False, True):
            for name, age in (("alive", 0), ("silent", 2 * HOUR), ("expired", 90 * HOUR)):
                yield _record(f"{state.name}-{retry_safe}-{name}", state, retry_safe, now - age, {})
    for name, age in (("kept", 2 * HOUR), ("over", 90 * HOUR)):
        limits = {"keep_unknown": 48 * HOUR}
        yield _record(f"limited-{name}", State.UNKNOWN, False, now - age, limits)
        yield _record(f"limited-silent-{name}", State.PENDING, False, now - age, limits)


def _record(key: str, state: State, retry_safe: bool, at: int, more: dict[str, int]) -> Record:
    is_ended = state in (State.SUCCEEDED, State.FAILED, State.UNKNOWN)
    fields: dict[str, Any] = {
        "id": Identities().identify(SCOPE, OPERATION, key).id,
        "scope": SCOPE,
        "label": OPERATION,
        "key": key,
        "retry_safe": retry_safe,
        "fence": at + sum(key.encode()),
        "created_at": at,
        "lease_until": at + HOUR,
        "finished_at": at if is_ended else 0,
        "keep": 24 * HOUR,
        "audit": 24 * HOUR,
        "body": b"",
        "steps": (Step("pay", False, pack_step({"key": "ok1-abc"}), at),),
    }
    return record(state, **fields, **more)


def shown_by_the_engine(once: Once) -> dict[str, Shown]:
    """What `list` says of every key, by key. `get` says the same, but nothing of a freed key whose
    time is over."""
    found = {}
    for key in once.list(expired=True, limit=1_000).keys:
        times = (key.finished_at, key.expires_at)
        status = once.get(OPERATION, key.key, scope=SCOPE)
        if status is not None:
            assert (status.state, status.expired) == (key.state, key.expired)
            assert (status.finished_at, status.expires_at) == times
        state = "absent" if key.state == "freed" else key.state  # the views' word
        found[key.key] = Shown(key.tag, state, key.expired, *times)
    return found
