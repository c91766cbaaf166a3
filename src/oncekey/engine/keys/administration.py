"""What operators ask of a store: list keys, show one, decide it, measure the store.

Each is a plan: a generator that yields calls of a store's methods and is sent their results, so
that sync and async code, engines and the command line share it. `run_plan` and `run_plan_async`
drive one. Nothing here needs the secret of the keys: a key is known by its tag or its id.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar

from oncekey.core import codec as codecs
from oncekey.core.answer import HTTP_CODEC, encode_head
from oncekey.core.codec import JSON, Codec
from oncekey.core.commands import Done, Look, Resolve, Seen
from oncekey.core.errors import ConfigurationError, KeyChanged, OncekeyError, StoreUnavailable
from oncekey.core.move_marks import MARK_ID, check_alone, note_for_readers
from oncekey.core.record import NOTE_MAX_CHARS, State
from oncekey.core.search import NEWEST, PAGE_LIMIT_MAX, Cursor, Query
from oncekey.core.store import AsyncStore, Store, Unfinished
from oncekey.engine.batches.batch import no_answer, writes
from oncekey.engine.keys.key_list import FREED, Listing, checked_limit, checked_tag, listing_of
from oncekey.engine.keys.key_status import KeyStatus, status_of
from oncekey.engine.keys.store_stats import Stats, stats_of

T = TypeVar("T")

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_OPEN: Final = Query(states=frozenset((State.PENDING, State.UNKNOWN)))
_FOUND_MAX: Final = 2


class StoreCall(NamedTuple):
    """A call of one of a store's methods."""

    method: str
    arguments: tuple[Any, ...] = ()

    @property
    def writes(self) -> bool:
        """True if the store may be changed by this call."""
        if self.method == "apply":
            return any(map(writes, self.arguments[0]))
        return self.method == "sweep"


Plan = Generator[StoreCall, Any, T]


def run_plan(store: Store, plan: Plan[T]) -> T:
    """Drive a plan. Whatever the store raises, and whatever the plan makes of a reply that it
    cannot read, becomes StoreUnavailable, unless it is an error of oncekey's own."""
    call, wrote = None, False
    try:
        call = next(plan)
        while True:
            wrote = wrote or call.writes
            call = plan.send(getattr(store, call.method)(*call.arguments))
    except StopIteration as stop:
        result: T = stop.value
        return result
    except Exception as error:
        if call is None or isinstance(error, OncekeyError):
            raise  # without a call, it is about the caller's arguments
        raise no_answer(error, ambiguous=wrote) from error


async def run_plan_async(store: AsyncStore, plan: Plan[T]) -> T:
    """The same for asyncio."""
    call, wrote = None, False
    try:
        call = next(plan)
        while True:
            wrote = wrote or call.writes
            call = plan.send(await getattr(store, call.method)(*call.arguments))
    except StopIteration as stop:
        result: T = stop.value
        return result
    except Exception as error:
        if call is None or isinstance(error, OncekeyError):
            raise
        raise no_answer(error, ambiguous=wrote) from error


def sweep_store(limit: int) -> Plan[int]:
    """Remove at most `limit` records that nothing needs any more."""
    if not isinstance(limit, int):
        raise ConfigurationError(f"limit={limit!r} must be a number of records")
    removed: int = yield StoreCall("sweep", (limit,))
    return removed


def list_unfinished(after: int, limit: int) -> Plan[Unfinished]:
    """Operations that were begun and have no outcome, for the completer."""
    found: Unfinished = yield StoreCall("unfinished", (after, limit))
    return found


# --- reading ----------------------------------------------------------------------------------


def list_keys(query: Query, limit: int, after: str | None) -> Plan[Listing]:
    """One page of the keys that match."""
    cursor = Cursor.parse(after) if after else NEWEST
    return listing_of((yield StoreCall("search", (query, checked_limit(limit), cursor))))


def find_key(tag: str, codec: Codec) -> Plan[KeyStatus | None]:
    """The status of the key with this tag, or whose tag begins so. Raises ConfigurationError if
    there are several."""
    digits = checked_tag(tag)
    if not digits:
        raise ConfigurationError("the tag is empty; logs and errors show it in brackets")
    query = Query(tag=digits, expired=True)
    page = yield StoreCall("search", (query, _FOUND_MAX, NEWEST))
    if len(page.records) > 1:
        raise ConfigurationError(f"several keys have tags like {digits}...; give more of it")
    if not page.records:
        return None
    return (yield from look_at(page.records[0].id, codec))


def look_at(id: bytes, codec: Codec) -> Plan[KeyStatus | None]:
    """The status of the key with this id."""
    (seen,) = yield StoreCall("apply", ([Look(id)],))
    if isinstance(seen, StoreUnavailable):
        raise seen
    assert isinstance(seen, Seen)
    return status_of(seen, codec)


def past_of(status: KeyStatus, codec: Codec) -> Plan[list[KeyStatus]]:
    """Past generations of a key that are still in their audit window, oldest first."""
    records = yield StoreCall("history", (bytes.fromhex(status.id),))
    now = int(status.seen_at.timestamp() * 1_000_000)
    statuses = [status_of(Seen(record, now), codec) for record in records]
    return [status for status in statuses if status is not None]


def history_of(id: bytes, codec: Codec) -> Plan[list[KeyStatus]]:
    """The same of a key that may be gone: freed, or swept."""
    (seen,) = yield StoreCall("apply", ([Look(id)],))
    if isinstance(seen, StoreUnavailable):
        raise seen
    records = yield StoreCall("history", (id,))
    statuses = [status_of(Seen(record, seen.now), codec) for record in records]
    return [status for status in statuses if status is not None]


class Survey(NamedTuple):
    """The figures of a store, and the pending and unknown keys that they were taken from."""

    stats: Stats
    open_keys: Listing


def survey_store() -> Plan[Survey]:
    """The figures of the store, and its open keys as far as one page goes."""
    measures = yield StoreCall("measure")
    newest = yield StoreCall("search", (Query(expired=True), 1, NEWEST))
    open_keys = yield StoreCall("search", (_OPEN, PAGE_LIMIT_MAX, NEWEST))
    return Survey(stats_of(measures, newest, open_keys), listing_of(open_keys))


def measure_store() -> Plan[Stats]:
    """The figures of the store."""
    survey = yield from survey_store()
    return survey.stats


def note_of_move() -> Plan[str]:
    """What an operator must know of a store that keys are being moved to or from; empty if there is
    nothing."""
    return note_for_readers((yield from _look_at_mark()))


def _look_at_mark() -> Plan[Seen]:
    (seen,) = yield StoreCall("apply", ([Look(MARK_ID)],))
    if isinstance(seen, StoreUnavailable):
        raise seen
    assert isinstance(seen, Seen)
    return seen


# --- decisions --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The response that an operator gives to an HTTP request whose outcome is unknown."""

    status: int
    body: bytes | str = b""
    content_type: str = "application/json"

    def __post_init__(self) -> None:
        if not isinstance(self.status, int) or not 200 <= self.status <= 599:
            raise ConfigurationError(f"{self.status!r} is no status of a response, 200 to 599")
        if not self.content_type.isascii() or not self.content_type.isprintable():
            raise ConfigurationError("the content type must be printable ASCII")

    def packed(self) -> bytes:
        """The outcome as it is stored."""
        body = self.body.encode() if isinstance(self.body, str) else self.body
        headers = ((b"content-type", self.content_type.encode()),) if body else ()
        return codecs.pack_bytes(HTTP_CODEC, encode_head(self.status, headers, False) + body)


class Resolution(NamedTuple):
    """What an operator decides: the state, the outcome's bytes, and the word for the note."""

    state: State
    body: bytes
    word: str


def resolution_of(
    status: KeyStatus, value: Any, message: str | None, free: bool, codec: Codec
) -> Resolution:
    """The one decision that was given: a value (... for none), a message, or to free the key."""
    given = [value is not ..., message is not None, free]
    if sum(given) != 1:
        raise ConfigurationError("give one of succeeded=value, failed=message and free=True")
    if free:
        return FREE
    return failed(message) if message is not None else succeeded(status, value, codec)


def succeeded(status: KeyStatus, value: Any, codec: Codec) -> Resolution:
    """It happened, and this is its answer."""
    if isinstance(value, HttpAnswer):
        return Resolution(State.SUCCEEDED, value.packed(), f"answered {value.status}")
    if status.surface == "http":
        raise ConfigurationError(
            f"{status.route} answers HTTP requests: give its response as HttpAnswer(status, body)"
        )
    try:
        body = codecs.pack_value(codec, value)
    except Exception as error:  # the codec may be the user's
        raise ConfigurationError(f"this value cannot be stored: {error}") from error
    return Resolution(State.SUCCEEDED, body, "succeeded")


def failed(message: str) -> Resolution:
    """It did not happen and is not to be tried again: retries get this error."""
    return Resolution(State.FAILED, codecs.pack_error(OperatorDecision(message)), "failed")


FREE: Final = Resolution(State.ABSENT, b"", "freed")


class OperatorDecision(RuntimeError):
    """The type of the error that is stored when an operator decides that an operation failed."""


def check_decidable() -> Plan[None]:
    """Raise ConfigurationError if a decision in this store would be lost: its keys were moved away,
    or only both stores together know them."""
    try:
        check_alone((yield from _look_at_mark()))
    except ConfigurationError as error:
        raise ConfigurationError(f"nothing can be decided here: {error}") from error


def decide_key(
    status: KeyStatus, resolution: Resolution, expected: State, *, by: str, why: str
) -> Plan[KeyStatus | None]:
    """Decide a key that is as it was shown, and return what it is then; None if it is gone. Raises
    KeyChanged, and changes nothing, if it is not as it was shown any more."""
    note = note_of(resolution.word, status, by=by, why=why)
    id = bytes.fromhex(status.id)
    lease_until = (status.lease_until - _EPOCH) // _MICROSECOND
    command = Resolve(
        id, status.fence, resolution.state, resolution.body, note, expected, lease_until
    )
    yield from check_decidable()
    (reply,) = yield StoreCall("apply", ([command],))
    if isinstance(reply, StoreUnavailable):
        raise reply
    now = yield from look_at(id, JSON)
    if not isinstance(reply, Done):
        raise KeyChanged(
            f"{_what_changed(status, now)}; nothing was changed. Look at it again",
            operation=status.operation,
            tag=status.tag,
        )
    return now


def _what_changed(shown: KeyStatus, now: KeyStatus | None) -> str:
    if now is not None and (now.state, now.fence) == (shown.state, shown.fence):
        return "its owner has come back for a while since it was shown, and may have gone on"
    state = now.state if now is not None else "gone"
    return f"it was {shown.state} when it was shown and is {state} now"


def note_of(word: str, status: KeyStatus, *, by: str, why: str) -> str:
    """The line in the record that says who decided what, when and why."""
    for name, text in (("by", by), ("why", why)):
        if not isinstance(text, str) or not text.strip() or not text.isprintable():
            raise ConfigurationError(f"{name}= must be text on one line: it goes into the record")
    at = status.seen_at.strftime("%Y-%m-%dT%H:%M:%SZ")
    note = f"{at} {by.strip()} {word}: {why.strip()}"
    if len(note) > NOTE_MAX_CHARS:
        raise ConfigurationError(f"by= and why= are too long: {NOTE_MAX_CHARS} characters at most")
    return note


def check_unknown(status: KeyStatus) -> None:
    """Raise KeyChanged unless the key waits for a decision."""
    if status.state != "unknown" or status.expired:
        raise KeyChanged(_no_decision(status), operation=status.operation, tag=status.tag)


def releasable(status: KeyStatus) -> State:
    """The state from which `release` frees a key; raises KeyChanged if it cannot."""
    states = {"unknown": State.UNKNOWN, "failed": State.FAILED}
    if status.state not in states or status.expired:
        raise KeyChanged(_no_decision(status), operation=status.operation, tag=status.tag)
    return states[status.state]


def _no_decision(status: KeyStatus) -> str:
    if status.expired:
        return "it has expired: the next call runs anyway"
    return {
        "pending": "an attempt holds it. Wait until that ends or its lease does",
        "succeeded": "it has succeeded, and that never changes before it expires",
        "failed": "it has failed, and there is nothing to resolve; `release` lets it run again",
        FREED: "it is free already: the next call runs it",
    }.get(status.state, f"it is {status.state}")
