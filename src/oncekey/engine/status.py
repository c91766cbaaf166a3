"""What `get` shows of a key: its record in words people read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from oncekey.core.codec import Codec, StoredError, StoredValue, unpack
from oncekey.core.commands import Seen
from oncekey.core.errors import OncekeyError
from oncekey.core.machine import is_expired, state_now
from oncekey.core.record import Record, State
from oncekey.engine.results import value_of


@dataclass(frozen=True, slots=True)
class StepStatus:
    name: str
    done: bool
    at: datetime


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """One key: where it stands, what it answered, and until when that holds."""

    state: str
    operation: str
    scope: str
    tag: str
    attempt: int
    fence: int
    created_at: datetime
    lease_until: datetime
    finished_at: datetime | None
    expires_at: datetime
    expired: bool
    value: Any
    error: str | None
    note: str
    steps: tuple[StepStatus, ...]


def status_of(seen: Seen, codec: Codec) -> KeyStatus | None:
    """None for a key never seen, freed or swept. A value that cannot be decoded shows as None
    with the reason in `error`."""
    record = seen.record
    if record is None or record.state is State.ABSENT:
        return None
    expired = is_expired(record, seen.now)
    state = record.state if expired else state_now(record, seen.now)
    value, error = _answer(record, codec)
    return KeyStatus(
        state=State(state).name.lower(),
        operation=record.operation,
        scope=record.scope,
        tag=record.id.hex()[:12],
        attempt=record.attempt,
        fence=record.fence,
        created_at=_time(record.created_at),
        lease_until=_time(record.lease_until),
        finished_at=_time(record.finished_at) if record.finished_at else None,
        expires_at=_time(record.expires_at),
        expired=expired,
        value=value,
        error=error,
        note=record.note,
        steps=tuple(StepStatus(s.name, s.done, _time(s.at)) for s in record.steps),
    )


def _answer(record: Record, codec: Codec) -> tuple[Any, str | None]:
    if not record.body:
        return None, None
    stored = unpack(record.body)
    if isinstance(stored, StoredValue):
        try:
            return value_of(stored, codec), None
        except OncekeyError as error:
            return None, str(error)
    if isinstance(stored, StoredError):
        return None, f"{stored.type}: {stored.message}"
    return None, stored.reason


def _time(us: int) -> datetime:
    return datetime.fromtimestamp(us / 1_000_000, UTC)
