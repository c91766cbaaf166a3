"""The status of a key as `get` shows it: its record, decoded for people to read.

A stored value is decoded by the operation's codec; one of another built-in codec is shown as the
plain JSON or the HTTP response it is. A value that cannot be decoded is described, never raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from oncekey.core.answer import answer_of
from oncekey.core.codec import JSON, Codec, StoredValue, unpack, value_of
from oncekey.core.commands import Seen
from oncekey.core.errors import OncekeyError
from oncekey.core.record import Record, State, Step
from oncekey.core.state_machine import is_expired, state_now
from oncekey.core.step_format import ARGUMENTS, StepStatus, unpack_step

_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """One key: its state, its value or error, and when it expires (`expires_at`; None for an
    undecided key, which stays until somebody decides it). `finished_at` is None for a key that is
    pending or unknown: nobody knows of an end.

    key       as the caller gave it, if raw keys are stored; "" otherwise
    tag       its name in logs
    surface, route, name   where the call came in: "http", "POST /charges", "create_charge"
    value     the answer; that of an HTTP request is a dict of status, headers and body
    note      a line for each time that somebody else than its owner decided it
    seen_at   when this was read, by the store's clock
    """

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
    key: str = ""
    id: str = ""
    surface: str = "function"
    route: str = ""
    name: str = ""
    retry_safe: bool = False
    seen_at: datetime = field(default=_EPOCH, compare=False)

    @property
    def http_status(self) -> int | None:
        """The status of a stored HTTP response."""
        is_response = self.surface == "http" and isinstance(self.value, dict)
        return self.value.get("status") if is_response else None


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
        tag=record.tag,
        attempt=record.attempt,
        fence=record.fence,
        created_at=time_of(record.created_at),
        lease_until=time_of(record.lease_until),
        finished_at=end_of(record),
        expires_at=None if record.lasts_until_decided else time_of(record.expires_at),
        expired=expired,
        value=value,
        error=error,
        note=record.note,
        steps=steps,
        arguments=arguments_of(record.steps).request,
        key=record.key,
        id=record.id.hex(),
        surface=record.origin.surface,
        route=record.origin.route,
        name=record.origin.name,
        retry_safe=record.retry_safe,
        seen_at=time_of(seen.now),
    )


def end_of(record: Record) -> datetime | None:
    """When an operation ended; None if that is not known. An unknown record has a time too, when it
    was given up, but that is no end of the operation."""
    is_ended = record.finished_at and record.state != State.UNKNOWN
    return time_of(record.finished_at) if is_ended else None


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
    at = time_of(step.at)
    facts, envelope = unpack_step(step.body)
    if not step.done:
        request = _read(envelope, JSON)[0] if envelope else None
        key, uuid = facts.get("key", ""), facts.get("uuid")
        return StepStatus(step.name, False, at, intent=key, request=request, child_uuid=uuid)
    value, error = _read(envelope, codec, plain=True)
    external_id, status = facts.get("external_id"), facts.get("status")
    return StepStatus(step.name, True, at, value, error, external_id=external_id, status=status)


def _read(body: bytes, codec: Codec, *, plain: bool = False) -> tuple[Any, str | None]:
    """The value of a stored outcome, or why there is none. With `plain`, JSON is shown as it is,
    because the class it was written for is not known."""
    stored = unpack(body)
    if not isinstance(stored, StoredValue) or plain or stored.codec != codec.name:
        answer = answer_of(body)
        return answer.value, answer.error
    try:
        return value_of(stored, codec), None
    except OncekeyError as error:
        return None, str(error)


def time_of(us: int) -> datetime:
    return datetime.fromtimestamp(us / 1_000_000, UTC)
