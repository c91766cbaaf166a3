"""Operations that are driven to an end without their caller: what both colours share.

Owns the registered operations, what is kept of a call so that it can be finished by somebody else,
and what a round came to. When to act is decided in core/abandoned.py, when to look in watchlist.py;
the colours run it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from oncekey.core import codec as codecs
from oncekey.core.abandoned import LEFT_LOOK_US, ActionKind, Registration, next_action
from oncekey.core.codec import JSON
from oncekey.core.commands import Seen
from oncekey.core.errors import (
    ConfigurationError,
    InFlight,
    InvalidKey,
    LeaseLost,
    StoreUnavailable,
)
from oncekey.core.identity import Identity, KeyLike
from oncekey.core.record import Record, State
from oncekey.core.step_format import pack_step
from oncekey.engine.jobs import Job, Kernel
from oncekey.engine.key_status import Arguments, arguments_of
from oncekey.engine.results import Result
from oncekey.engine.watchlist import LOOKS, Watchlist

COMPLETE_LIMIT_DEFAULT: Final = 100
TRIES_MAX: Final = 1_000
WORKERS: Final = 4

_log = logging.getLogger("oncekey")


class Registered(NamedTuple):
    """An operation that can be finished here: by running it, by asking about it, or both."""

    operation: str
    body: Callable[..., Any] | None
    codec: Any
    options: Mapping[str, Any]
    known: Registration


class Completion(NamedTuple):
    """What became of one operation: succeeded, failed, freed, unknown, error, left or elsewhere
    (somebody was faster)."""

    operation: str
    scope: str
    tag: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Completed:
    """One round: what was done, in order, how many operations were looked at for it, and how many
    are being watched."""

    done: tuple[Completion, ...] = field(default=())
    looked: int = 0
    watching: int = 0


Tell = Callable[[Completion], object]


class Action(NamedTuple):
    """What is to be done about a record, by running or asking."""

    kind: ActionKind
    record: Record
    registered: Registered
    job: Job
    kept: Arguments


@dataclass(slots=True)
class Plan:
    """A round under way: what it has come to so far."""

    limit: int
    tell: Tell
    done: list[Completion] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    looked: int = 0

    @property
    def is_full(self) -> bool:
        return len(self.actions) >= self.limit

    def result(self, watching: int) -> Completed:
        return Completed(tuple(self.done), self.looked, watching)


class Completing:
    """The state of one engine's completer, without its threads or tasks."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.registered: dict[str, Registered] = {}
        self.agenda = Watchlist()

    def register(
        self,
        operation: str,
        body: Callable[..., Any] | None,
        *,
        codec: Any,
        tries: int,
        options: Mapping[str, Any],
    ) -> Registered:
        """Mistakes show here, not when something has to be finished."""
        self._kernel.check_guard(operation, codec, options)
        if operation in self.registered:
            raise ConfigurationError(f"the operation {operation!r} is registered already")
        if not isinstance(tries, int) or not 1 <= tries <= TRIES_MAX:
            raise ConfigurationError(f"tries={tries!r} must be 1 to {TRIES_MAX}")
        policy = self._kernel.policy.with_options(**options)
        grace = policy.times.recover_grace
        known = Registration(body is not None, policy.recover is not None, tries, grace)
        made = Registered(operation, body, codec, options, known)
        self.registered[operation] = made
        self.agenda.list_all()  # what was listed before was passed over
        return made

    # --- a caller's run -----------------------------------------------------------------------

    def job(self, registered: Registered, key: KeyLike, scope: str, request: Any) -> Job:
        """A call of a registered operation: its arguments are kept before it begins."""
        kernel = self._kernel
        job = kernel.job(
            registered.operation, key, scope, request, registered.codec, registered.options
        )
        # The raw key goes along whatever `raw_keys` says: child keys are made of it.
        arguments = pack_step({"key": job.identity.key}, kept(request, job.policy.max_bytes))
        return job._replace(arguments=arguments)

    # --- a round --------------------------------------------------------------------------------

    def pages(self) -> Iterator[list[bytes]]:
        """What is due now, so many at a time."""
        due = self.agenda.due(self._kernel.clock.now())
        for start in range(0, len(due), LOOKS):
            yield due[start : start + LOOKS]

    def sort(self, ids: Sequence[bytes], looked: Sequence[Seen | None], plan: Plan) -> None:
        """What was looked at: what is to be said of it, and what to be done, up to the limit."""
        for id, seen in zip(ids, looked, strict=True):
            if plan.is_full:
                return  # they stay due
            plan.looked += 1
            if seen is None:
                _log.warning("[%s] cannot be read here, and is left", id.hex()[:12])
                self.agenda.forget(id)
                continue
            found = self._consider(id, seen)
            if isinstance(found, Action):
                plan.actions.append(found)
            elif found is not None:
                plan.done.append(found)
                say(plan.tell, found)

    def _consider(self, id: bytes, seen: Seen) -> Action | Completion | None:
        """What to do about a watched record; None for nothing now."""
        record, now = seen.record, self._kernel.clock.now()
        registered = self.registered.get(record.operation) if record is not None else None
        known = registered.known if registered is not None else None
        agenda = self.agenda
        kind, after, why = next_action(
            record, seen.now, known, recover_calls=agenda.asked(id), ran_here=agenda.driven(id)
        )
        if kind is ActionKind.FORGET or record is None or registered is None:
            self.agenda.forget(id)
            return None
        if kind is ActionKind.LATER:
            self.agenda.later(id, now + after)
            return None
        found = why or self._action(kind, record, registered)
        if isinstance(found, Action):
            return found
        why = found
        if not self.agenda.leave(id, now + (after or LEFT_LOOK_US), why):
            return None
        _log.warning("%s [%s] is left: %s", record.operation, record.id.hex()[:12], why)
        return told(record, "left", why)

    def _action(self, kind: ActionKind, record: Record, registered: Registered) -> Action | str:
        """What to do, ready to be done; or why it cannot be."""
        kernel = self._kernel
        kept = arguments_of(record.steps)
        if kind is ActionKind.RUN and not (kept.kept and kept.key):
            return "its arguments cannot be read; they are of another release, or damaged"
        key = kept.key or record.key
        identity = Identity(record.scope, record.operation, key, record.id)
        if key and kernel.identities.identify(*identity[:3]).id != record.id:
            return "its kept key leads elsewhere; was it written under another secret?"
        options = {**registered.options, "wait": "0s"}
        policy = kernel.policy_with(options, record.operation)
        codec = kernel.codec if registered.codec is None else codecs.codec_for(registered.codec)
        job = Job(identity, record.fingerprint, policy, codec, kernel.clock.now())
        return Action(kind, record, registered, job, kept)

    # --- what came of it ------------------------------------------------------------------------

    def asked(self, action: Action, state: State | None) -> Completion:
        record = action.record
        if state is None:
            self.agenda.asked_in_vain(record.id, self._kernel.clock.now())
            return told(record, "unknown", "nobody can tell yet")
        self.agenda.forget(record.id)
        words = {State.SUCCEEDED: "succeeded", State.FAILED: "failed", State.ABSENT: "freed"}
        return told(record, words.get(state, "elsewhere"), "by its recover=")

    def goes_on(self, action: Action, state: State | None) -> bool:
        """Whether one that was asked about, and never happened, can be run now."""
        kept = action.kept
        runs = action.registered.body is not None and kept.kept and bool(kept.key)
        return state is State.ABSENT and runs

    def ran(self, action: Action, result: Result[Any]) -> Completion:
        self.agenda.forget(action.record.id)
        return told(action.record, "elsewhere" if result.replayed else "succeeded")

    def failed(
        self, action: Action, error: BaseException, *, ran: bool, seen: Seen | None
    ) -> Completion:
        """What a run or a question that raised has left behind is read off the record, `seen`
        afterwards: errors of a body may be those of other operations within it."""
        record, now = action.record, self._kernel.clock.now()
        if ran:
            self.agenda.run_in_vain(record.id, now)
        else:
            self.agenda.asked_in_vain(record.id, now)
        after = seen.record.state if seen is not None and seen.record is not None else None
        if after is State.FAILED:
            return told(record, "failed", type(error).__name__)
        taken = after is State.PENDING and isinstance(error, (InFlight, LeaseLost))
        if taken or after is State.SUCCEEDED:
            return told(record, "elsewhere")
        # Of other errors only the kind is told: their text might hold what they were about.
        said = f": {error}" if isinstance(error, StoreUnavailable) else ""
        detail = type(error).__name__ + said
        _log.warning(
            "%s [%s] could not be finished: %s", record.operation, record.id.hex()[:12], detail
        )
        return told(record, "error", detail)


def say(tell: Tell, done: Completion) -> None:
    """Whoever listens must not end the round."""
    try:
        tell(done)
    except Exception:
        _log.exception("whoever is told of completions failed on %s", done.outcome)


def told(record: Record, outcome: str, detail: str = "") -> Completion:
    return Completion(record.operation, record.scope, record.id.hex()[:12], outcome, detail)


def kept(request: Any, max_bytes: int) -> bytes:
    """The request of a registered operation, as `as_kept` gives it, in its envelope."""
    envelope = codecs.pack_value(JSON, request)
    if len(envelope) > max_bytes:
        raise InvalidKey(
            f"this request has {len(envelope)} bytes, more than max_bytes={max_bytes} for a "
            "registered operation, which keeps it"
        )
    return envelope


def as_kept(request: Any) -> Any:
    """The request as whoever finishes the operation would get it: a copy that nobody changes."""
    try:
        return JSON.load(JSON.dump(request))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidKey(
            f"this request cannot be kept for finishing the operation later ({error}); give a "
            "registered operation plain values"
        ) from error
