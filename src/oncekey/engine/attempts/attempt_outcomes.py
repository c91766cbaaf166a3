"""Packs what bodies and recoveries give into bytes, records outcomes, and replays them from a
cache.

A body's value goes to the attempt flow as packed bytes (`pack`). The outcome of an attempt becomes
an event and an entry of the replay cache (`Outcomes.record`), which may answer the next call
(`Outcomes.replay`). The caller's result, or the error to raise, is made in results.py.

A success never changes until it expires (I2), so a copy of it may be replayed without a round trip.
The cache is bounded in entries and bytes. An entry is valid for a minute at most, so that an erase
takes effect, and its time is counted from before the store was called, so that it never outlives
its record. Entries are tuples of plain values, because the garbage collector stops tracking those.
Visiting thousands of objects again and again cost a busy process a fifth of its time.
"""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final, NamedTuple

from oncekey.core import codec as codecs
from oncekey.core.codec import Codec, JSONCodec, pack_value
from oncekey.core.commands import from_fields
from oncekey.core.effects import AttemptOutcome, Grant, Recovered, Returned
from oncekey.core.errors import ConfigurationError, NotStarted, Terminal
from oncekey.core.events import EventKind
from oncekey.core.identity import Identity, KeyLike
from oncekey.core.origin import FUNCTION, Origin, origin_of
from oncekey.core.policy import Policy
from oncekey.core.record import Record, State
from oncekey.core.recovery import Recovery, UnknownKey
from oncekey.engine.event_bus import EventBus, Measured
from oncekey.engine.jobs import Job, JobFactory
from oncekey.engine.keys.key_status import arguments_of, step_statuses
from oncekey.engine.results import SECOND, Result, result_of

CACHE_ENTRIES_DEFAULT = 10_000
CACHE_BYTES_DEFAULT = 32 * 1024 * 1024
CACHE_AGE_MAX_US = 60_000_000
ENTRY_OVERHEAD = 400


Name = tuple[str, str, str]


# The id, the fingerprint, the packed outcome, the attempt, the fence, until when this entry is
# valid, and when its record expires.
Entry = tuple[bytes, bytes, bytes, int, int, int, int]


class ReplayCache:
    """An LRU of outcomes by (scope, operation, key); safe from any thread. Reading takes no lock:
    each step of it is one operation on a dict."""

    def __init__(
        self, entries: int = CACHE_ENTRIES_DEFAULT, size: int = CACHE_BYTES_DEFAULT
    ) -> None:
        self._most_entries = entries
        self._most_bytes = size
        self._bytes = 0
        self._is_open = True
        self._lock = threading.Lock()
        self.entries: OrderedDict[Name, Entry] = OrderedDict()

    def get(self, name: Name, now: int) -> Entry | None:
        """The outcome, if there is one that is still valid. The caller compares the fingerprint."""
        entries = self.entries
        entry = entries.get(name)
        if entry is None:
            return None
        if now >= entry[5]:
            with self._lock:
                self._drop(name)
            return None
        try:
            entries.move_to_end(name)
        except KeyError:  # another thread has just dropped it; what it held is still true
            pass
        return entry

    def put(self, name: Name, entry: Entry) -> None:
        size = len(entry[2]) + ENTRY_OVERHEAD
        if self._most_entries == 0 or size > self._most_bytes:
            return
        with self._lock:
            if not self._is_open:
                return
            entries = self.entries
            if name in entries:
                self._drop(name)
            entries[name] = entry
            self._bytes += size
            while len(entries) > self._most_entries or self._bytes > self._most_bytes:
                _, oldest = entries.popitem(last=False)
                self._bytes -= len(oldest[2]) + ENTRY_OVERHEAD

    def forget(self, id: bytes) -> None:
        """Remove the entry of the key with this id, because somebody has decided it anew."""
        with self._lock:
            for name in [name for name, entry in self.entries.items() if entry[0] == id]:
                self._drop(name)

    def close(self) -> None:
        """Remove all entries, and accept none until `reopen`."""
        with self._lock:
            self._is_open = False
            self.entries = OrderedDict()
            self._bytes = 0

    def reopen(self) -> None:
        self._is_open = True

    def reset(self) -> None:
        """Begin empty in a forked child, where a thread that is gone may have held the lock."""
        self._lock = threading.Lock()
        self.entries = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self.entries)

    def _drop(self, name: Name) -> None:
        entry = self.entries.pop(name, None)
        if entry is not None:
            self._bytes -= len(entry[2]) + ENTRY_OVERHEAD


# What a call gives that has not run a single line yet. None of these types can be subclassed.
_FINISHED, _REPLAYED = EventKind.FINISHED, EventKind.REPLAYED
UNSTARTED: Final = frozenset((CoroutineType, GeneratorType, AsyncGeneratorType))
_GIVES_UNSTARTED: Final = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)


class BodyNotRun(Terminal, ConfigurationError):
    """The body gave a coroutine or a generator, which has not run. What the body did before may
    have had an effect, so its key is stored as failed and nothing runs again by itself."""


class StepNotRun(NotStarted, ConfigurationError):
    """The function of a step is async or a generator function, so nothing of it has run."""


def check_started(
    job: Job, value: object, what: str = "the body", fn: Callable[..., Any] | None = None
) -> None:
    """Raise BodyNotRun if the value is a coroutine or a generator; StepNotRun if it can be seen of
    `fn`, which gave it, that this is all it does."""
    if type(value) not in UNSTARTED:
        return
    if fn is not None and any(is_kind(fn) for is_kind in _GIVES_UNSTARTED):
        close_unstarted(value)
        raise StepNotRun(
            f"{what} of {job.identity.operation!r} is async or a generator function, and has not "
            "run; give a plain function, or run it with AsyncOnce"
        )
    raise not_run(job, value, what)


def close_unstarted(value: object) -> None:
    """Close a coroutine or a generator, so that nobody is told that it was never awaited."""
    if isinstance(value, (CoroutineType, GeneratorType)):
        value.close()


def not_run(job: Job, value: object, what: str = "the body") -> BodyNotRun:
    """The error for an unstarted value, which is closed."""
    close_unstarted(value)
    return BodyNotRun(
        f"{what} of {job.identity.operation!r} gave a {type(value).__name__}, which has "
        "not run; run async functions with AsyncOnce, await all of it, return plain values. The "
        "key is stored as failed: free it by `release` when you know that nothing had happened"
    )


def pack(codec: Codec, policy: Policy, value: Any, deadline: int) -> Returned:
    """The body's value as bytes, or a tombstone if it cannot be kept."""
    try:
        if type(codec) is JSONCodec:
            body, loaded = codec.pack_and_load(value)
            is_exact = True
        else:
            body, is_exact = pack_value(codec, value), getattr(codec, "exact", False) is True
            loaded = value
    except Exception as error:  # the codec may be the user's: whatever it raises, the body ran
        if _packs(codec, value):
            raise  # not the codec but a signal handler raised it
        reason = f"{type(error).__name__}: {error}"
        body = codecs.pack_tombstone(reason, too_large=False)
        return Returned(body, deadline, value, kept=False)
    if len(body) > policy.max_bytes:
        reason = f"its answer has {len(body)} bytes, max_bytes is {policy.max_bytes}"
        body = codecs.pack_tombstone(reason, too_large=True)
        return Returned(body, deadline, value, kept=False)
    return Returned(body, deadline, loaded, True, is_exact)


def _packs(codec: Codec, value: Any) -> bool:
    try:
        pack_value(codec, value)
    except Exception:
        return False
    return True


class _Cached(NamedTuple):
    """An entry of the cache under its name."""

    name: Name
    entry: Entry

    @property
    def identity(self) -> Identity:
        return Identity(*self.name, self.entry[0])


class Outcomes:
    """The outcomes of one engine's jobs: their events, and those that are finished in a cache."""

    def __init__(self, jobs: JobFactory, cache: ReplayCache, events: EventBus) -> None:
        self.cache = cache
        self.events = events
        self._jobs = jobs

    def replay(
        self,
        operation: str,
        key: KeyLike,
        scope: str,
        request: Any,
        codec: Any,
        origin: Origin | None = None,
    ) -> Result[Any] | None:
        """The result without a round trip, if the cache has it."""
        if type(key) is not str or type(scope) is not str or type(operation) is not str:
            return None
        name = (scope, operation, key)
        if name not in self.cache.entries:
            return None
        jobs = self._jobs
        now = jobs.clock.now()
        entry = self.cache.get(name, now)
        if entry is None:
            return None
        fingerprint, body, attempt, fence, _, expires_at = entry[1:]
        if fingerprint != jobs.identities.fingerprint(request):
            return None  # another request: the store decides what that means
        whose = _Cached(name, entry)
        if self.events.subscribers:
            self.events.emit(
                EventKind.REPLAYED,
                whose.identity,
                now,
                fence,
                attempt,
                from_cache=True,
                origin=origin or FUNCTION,
            )
        chosen = jobs.codec if codec is None else jobs.codec_for(codec)
        return result_of(whose, chosen, body, True, attempt, fence, expires_at - now)

    def record(self, job: Job, outcome: AttemptOutcome, measured: Measured | None = None) -> None:
        """Emit the outcome's events and cache it if it is a success, whether or not a caller still
        waits. A failure may be released by an operator, of which other processes hear nothing. The
        events of a run that ended as usual are for subscribers alone."""
        kind = outcome.kind
        is_usual = outcome.error is None and (kind is _FINISHED or kind is _REPLAYED)
        if self.events.subscribers or outcome.unrecorded or not is_usual:
            self._emit(job, outcome, measured)
        if is_usual and outcome.state is State.SUCCEEDED:
            self._keep(job, outcome.body, outcome.attempt, outcome.fence, outcome.expires_in)

    def _emit(self, job: Job, outcome: AttemptOutcome, measured: Measured | None) -> None:
        # What an interrupted body leaves is stored, and is that nobody knows.
        kind = EventKind.UNKNOWN if outcome.state is State.UNKNOWN else outcome.kind
        emit = partial(
            self.events.emit,
            identity=job.identity,
            started_at=job.started_at,
            fence=outcome.fence,
            attempt=outcome.attempt,
            origin=origin_of(job.claim.label),
        )
        emit(kind, measured=measured)
        if outcome.unrecorded:
            emit(EventKind.UNRECORDED)
        if kind is _FINISHED and not outcome.kept:
            emit(EventKind.TOMBSTONE)

    def finish(
        self, job: Job, grant: Grant, returned: Returned, measured: Measured | None
    ) -> Result[Any]:
        """What `record` and `conclude` make of a run that ended as usual: the store has taken its
        finish, and what it returned is exact."""
        if measured is not None and self.events.subscribers:
            self.events.emit_finished(measured, job.started_at)
        attempt, fence, keeps = grant.attempt, grant.fence, job.policy.times.keep
        self._keep(job, returned.body, attempt, fence, keeps)
        return from_fields(Result, (returned.raw, False, attempt, fence, keeps / SECOND))

    def _keep(self, job: Job, body: bytes, attempt: int, fence: int, keeps: int) -> None:
        # Counted from before the run, so that no entry outlives its record.
        started_at = job.started_at
        valid = keeps if keeps < CACHE_AGE_MAX_US else CACHE_AGE_MAX_US
        id, _, fingerprint = job.claim[:3]
        self.cache.put(
            (job.scope, job.operation, job.key),
            (id, fingerprint, body, attempt, fence, started_at + valid, started_at + keeps),
        )

    # --- recovery -----------------------------------------------------------------------------

    def unknown_key(self, job: Job, record: Record) -> UnknownKey:
        """What the user's `recover` is called with."""
        identity, identities = job.identity, self._jobs.identities
        return UnknownKey(
            identity.scope,
            identity.operation,
            identity.key,
            record.fence,
            record.attempt,
            step_statuses(record.steps, job.codec),
            partial(identities.child_key, identity),
            partial(identities.child_uuid, identity),
            arguments_of(record.steps).request,
        )

    def recovered(self, job: Job, recovery: object) -> Recovered | None:
        """What the user's `recover` returned, packed for the flow; None if it does not know."""
        if recovery is None:
            return None
        if not isinstance(recovery, Recovery):
            raise ConfigurationError(
                f"recover for {job.identity.operation!r} returned a {type(recovery).__name__}; "
                "return Recovery.succeeded(value), .failed(message), .free(), or None"
            )
        if self.events.subscribers:
            origin = origin_of(job.claim.label)
            self.events.emit(EventKind.RECOVERED, job.identity, job.started_at, origin=origin)
        if recovery.state is State.SUCCEEDED:
            body = pack(job.codec, job.policy, recovery.value, 0).body
        elif recovery.state is State.FAILED:
            body = codecs.pack_error(RuntimeError(recovery.value))
        else:
            body = b""
        return Recovered(recovery.state, body, recovery.note)
