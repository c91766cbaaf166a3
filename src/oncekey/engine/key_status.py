"""The status of a key as `get` shows it: its record, decoded for people to read.

A stored value is decoded by the operation's codec; one of another built-in codec is shown as the
plain JSON it is. A value that cannot be decoded is described, never raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from oncekey.core.codec import JSON, Codec, StoredError, StoredValue, unpack
from oncekey.core.commands import Seen
from oncekey.core.errors import OncekeyError
from oncekey.core.record import State, Step
from oncekey.core.state_machine import is_expired, state_now
from oncekey.core.step_format import ARGUMENTS, StepStatus, unpack_step
from oncekey.engine.results import value_of

# The bytes of these codecs are JSON. Each step may have a codec of its own.
_JSON_CODECS = frozenset(("json", "dataclass", "pydantic"))


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """One key: its state, its value or error, and when it expires (`expires_at`; None for an
    undecided key, which stays until somebody decides it)."""

    state: str
    operation: str
    scope: str
    tag: str
    attempt: int
    fence: int
    created_at: datetime
    lease_until: datetime
    finished_at: datetime | None
    expires_at: datetime | None
    expired: bool
    value: Any
    error: str | None
    note: str
    steps: tuple[StepStatus, ...]
    arguments: Any = None


def status_of(seen: Seen, codec: Codec) -> KeyStatus | None:
    """The status of a record. None for a key that was never seen, was swept, or was freed before
    any step began. A value that cannot be decoded is None with the reason in `error`; the same
    holds for the values of steps."""
    record = seen.record
    if record is None:
        return None
    expired = is_expired(record, seen.now)
    steps = step_statuses(record.steps, codec)
    if record.state is State.ABSENT and (expired or not steps):
        return None
    state = record.state if expired else state_now(record, seen.now)
    value, error = _read(record.body, codec) if record.body else (None, None)
    return KeyStatus(
        state="freed" if state is State.ABSENT and not expired else State(state).name.lower(),
        operation=record.operation,
        scope=record.scope,
        tag=record.id.hex()[:12],
        attempt=record.attempt,
        fence=record.fence,
        created_at=_time(record.created_at),
        lease_until=_time(record.lease_until),
        finished_at=_time(record.finished_at) if record.finished_at else None,
        expires_at=None if record.lasts_until_decided else _time(record.expires_at),
        expired=expired,
        value=value,
        error=error,
        note=record.note,
        steps=steps,
        arguments=arguments_of(record.steps).request,
    )


class Arguments(NamedTuple):
    """The stored arguments of a registered operation; `kept` is False if they cannot be read."""

    key: str = ""
    request: Any = None
    kept: bool = False


def arguments_of(steps: Sequence[Step]) -> Arguments:
    for step in steps:
        if step.name == ARGUMENTS:
            facts, envelope = unpack_step(step.body)
            request, error = _read(envelope, JSON)
            return Arguments(facts.get("key", ""), request, kept=error is None)
    return Arguments()


def step_statuses(steps: Sequence[Step], codec: Codec) -> tuple[StepStatus, ...]:
    """The user's steps, decoded; the stored arguments are left out."""
    return tuple(_step(step, codec) for step in steps if step.name != ARGUMENTS)


def _step(step: Step, codec: Codec) -> StepStatus:
    at = _time(step.at)
    facts, envelope = unpack_step(step.body)
    if not step.done:
        request = _read(envelope, JSON)[0] if envelope else None
        return StepStatus(step.name, False, at, intent=facts.get("key", ""), request=request)
    value, error = _read(envelope, codec, plain=True)
    external_id, status = facts.get("external_id"), facts.get("status")
    return StepStatus(step.name, True, at, value, error, external_id=external_id, status=status)


def _read(body: bytes, codec: Codec, *, plain: bool = False) -> tuple[Any, str | None]:
    """The value of a stored outcome, or why there is none. With `plain`, JSON is shown as it is,
    because the class it was written for is not known."""
    stored = unpack(body)
    if isinstance(stored, StoredValue):
        if stored.codec in _JSON_CODECS and (plain or stored.codec != codec.name):
            stored, codec = stored._replace(codec=JSON.name), JSON
        try:
            return value_of(stored, codec), None
        except OncekeyError as error:
            return None, str(error)
    if isinstance(stored, StoredError):
        return None, f"{stored.type}: {stored.message}"
    return None, stored.reason


def _time(us: int) -> datetime:
    return datetime.fromtimestamp(us / 1_000_000, UTC)
