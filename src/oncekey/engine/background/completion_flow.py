"""Finishes operations that were abandoned by their callers: the flow, for both engines.

A batch lists the unfinished records, looks at those that are due, and runs their operations again
or calls their `recover`. What to do about a record is decided in core/abandoned.py, when to look at
it in watchlist.py. The flow yields effects; the twins in blocking/ and aio/ perform them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from oncekey.core.abandoned import LEFT_LOOK_US, ActionKind, next_action
from oncekey.core.commands import Seen
from oncekey.core.errors import InFlight, LeaseLost, StoreUnavailable
from oncekey.core.identity import Identity
from oncekey.core.record import Record, State
from oncekey.engine.background.watchlist import LOOKS, PAGE, Watchlist
from oncekey.engine.jobs import Job, JobFactory
from oncekey.engine.keys.key_status import Arguments, arguments_of
from oncekey.engine.registry import Registered, Registry
from oncekey.engine.results import Result

COMPLETE_LIMIT_DEFAULT: Final = 100
WORKERS: Final = 4

_log = logging.getLogger("oncekey")


class Completion(NamedTuple):
    """What became of one operation: succeeded, failed, freed, unknown, error, left or elsewhere
    (another process was faster)."""

    operation: str
    scope: str
    tag: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Completed:
    """One batch: its completions in order, how many operations were looked at, and how many are
    being watched."""

    done: tuple[Completion, ...] = field(default=())
    looked: int = 0
    watching: int = 0


OnCompletion = Callable[[Completion], object]


class Action(NamedTuple):
    """A record whose operation is to be run again, or whose `recover` is to be called."""

    kind: ActionKind
    record: Record
    registered: Registered
    job: Job
    arguments: Arguments

    def body(self, attempt: Any) -> Any:
        """The body of the registered operation, with the stored request."""
        assert self.registered.body is not None
        return self.registered.body(attempt, self.arguments.request)

    @property
    def can_run(self) -> bool:
        has_arguments = self.arguments.kept and bool(self.arguments.key)
        return self.registered.body is not None and has_arguments


# --- effects --------------------------------------------------------------------------------------


class ListUnfinished(NamedTuple):
    """List records from the store; the result is an `Unfinished`."""

    after: int
    limit: int


class ReadRecords(NamedTuple):
    """Read records; the result has a `Seen` for each, None for one that cannot be read."""

    ids: Sequence[bytes]


class ReadRecord(NamedTuple):
    """Read one record; the result is a `Seen`, None if it cannot be read for whatever reason."""

    id: bytes


class CompleteAll(NamedTuple):
    """Drive `complete_one` for each action, some at a time; the result is a list of completions,
    without those that were not begun because the engine was stopped."""

    actions: Sequence[Action]


class RecoverKey(NamedTuple):
    """Call the user's `recover`; the result is a state, None, or `Failed`."""

    action: Action


class RunAgain(NamedTuple):
    """Run the operation; the result is a `Result` or `Failed`."""

    action: Action


class Failed(NamedTuple):
    """What the user's `recover` or body raised, or the engine on its behalf."""

    error: BaseException


Effect = ListUnfinished | ReadRecords | ReadRecord | CompleteAll | RecoverKey | RunAgain


# --- the flow -------------------------------------------------------------------------------------


class CompleterBase:
    """The completer of one engine, without its threads or tasks."""

    def __init__(self, registry: Registry, jobs: JobFactory) -> None:
        self._registry = registry
        self._jobs = jobs
        self._clock = jobs.clock
        self.watchlist = Watchlist()

    def batch(self, limit: int, on_completion: OnCompletion) -> Generator[Effect, Any, Completed]:
        """Complete what is due, at most `limit` operations."""
        watchlist, more = self.watchlist, True
        watchlist.begin_listing(self._clock.now())
        while more and watchlist.has_room():
            found = yield ListUnfinished(watchlist.after, PAGE)
            more = watchlist.add(found, self._registry.operations, self._clock.now())
        done: list[Completion] = []
        actions: list[Action] = []
        looked = 0
        due = watchlist.due(self._clock.now())
        for start in range(0, len(due), LOOKS):
            ids = due[start : start + LOOKS]
            records = yield ReadRecords(ids)
            for id, seen in zip(ids, records, strict=True):
                if len(actions) >= limit:
                    break  # the others stay due
                looked += 1
                decided = self._action_for(id, seen)
                if isinstance(decided, Action):
                    actions.append(decided)
                elif decided is not None:
                    done.append(decided)
                    notify(on_completion, decided)
            if len(actions) >= limit:
                break
        if actions:
            done += yield CompleteAll(actions)
        return Completed(tuple(done), looked, len(watchlist))

    def complete_one(self, action: Action) -> Generator[Effect, Any, Completion]:
        """Complete one operation: by its `recover` if it is unknown, by running it if it is not,
        or if `recover` found that nothing has happened."""
        if action.kind is not ActionKind.RUN:
            state = yield RecoverKey(action)
            if isinstance(state, Failed):
                self.watchlist.recover_failed(action.record.id, self._clock.now())
                return self._failed(action, state.error, seen=None)
            if state is not State.ABSENT or not action.can_run:
                return self._recovered(action, state)
        result = yield RunAgain(action)
        if isinstance(result, Failed):
            # What a run that raised has left behind is read from the record: errors of a body may
            # be those of other operations within it.
            seen = yield ReadRecord(action.record.id)
            self.watchlist.run_failed(action.record.id, self._clock.now())
            return self._failed(action, result.error, seen)
        return self._ran(action, result)

    # --- decisions ----------------------------------------------------------------------------

    def _action_for(self, id: bytes, seen: Seen | None) -> Action | Completion | None:
        """What to do about a watched record, or what to report of it; None for nothing now."""
        watchlist = self.watchlist
        if seen is None:
            _log.warning("[%s] cannot be read here, and is left", id.hex()[:12])
            watchlist.forget(id)
            return None
        record, now, operations = seen.record, self._clock.now(), self._registry.operations
        registered = operations.get(record.operation) if record is not None else None
        kind, after, why = next_action(
            record,
            seen.now,
            registered.registration if registered is not None else None,
            recover_calls=watchlist.recover_calls(id),
            ran_here=watchlist.ran_here(id),
        )
        if kind is ActionKind.FORGET or record is None or registered is None:
            watchlist.forget(id)
            return None
        if kind is ActionKind.LATER:
            watchlist.postpone(id, now + after)
            return None
        found = why or self._make_action(kind, record, registered)
        if isinstance(found, Action):
            return found
        if not watchlist.leave(id, now + (after or LEFT_LOOK_US), found):
            return None
        _log.warning("%s [%s] is left: %s", record.operation, record.tag, found)
        return _completion(record, "left", found)

    def _make_action(
        self, kind: ActionKind, record: Record, registered: Registered
    ) -> Action | str:
        """The action with its job; or why there can be none."""
        jobs = self._jobs
        arguments = arguments_of(record.steps)
        if kind is ActionKind.RUN and not (arguments.kept and arguments.key):
            return "its arguments cannot be read; they are of another release, or damaged"
        key = arguments.key or record.key
        identity = Identity(record.scope, record.operation, key, record.id)
        if key and jobs.identities.identify(*identity[:3]).id != record.id:
            return "its kept key leads elsewhere; was it written under another secret?"
        policy = jobs.policy_with({**registered.options, "wait": "0s"}, record.operation)
        job = jobs.make_from(identity, record, policy, registered.codec)
        return Action(kind, record, registered, job, arguments)

    # --- completions --------------------------------------------------------------------------

    def _recovered(self, action: Action, state: State | None) -> Completion:
        record = action.record
        if state is None:
            self.watchlist.recover_failed(record.id, self._clock.now())
            return _completion(record, "unknown", "nobody can tell yet")
        self.watchlist.forget(record.id)
        words = {State.SUCCEEDED: "succeeded", State.FAILED: "failed", State.ABSENT: "freed"}
        return _completion(record, words.get(state, "elsewhere"), "by its recover=")

    def _ran(self, action: Action, result: Result[Any]) -> Completion:
        self.watchlist.forget(action.record.id)
        return _completion(action.record, "elsewhere" if result.replayed else "succeeded")

    def _failed(self, action: Action, error: BaseException, seen: Seen | None) -> Completion:
        """`seen` is the record after a run; None after a call of `recover`."""
        record = action.record
        state = seen.record.state if seen is not None and seen.record is not None else None
        if state is State.FAILED:
            return _completion(record, "failed", type(error).__name__)
        taken_over = state is State.PENDING and isinstance(error, (InFlight, LeaseLost))
        if taken_over or state is State.SUCCEEDED:
            return _completion(record, "elsewhere")
        # Of other errors only the type is reported: their text might contain data.
        message = f": {error}" if isinstance(error, StoreUnavailable) else ""
        detail = type(error).__name__ + message
        _log.warning("%s [%s] could not be finished: %s", record.operation, record.tag, detail)
        return _completion(record, "error", detail)


def notify(on_completion: OnCompletion, done: Completion) -> None:
    """Call the user's function; an error of it must not end the batch."""
    try:
        on_completion(done)
    except Exception:
        _log.exception("the function given as on_completion= failed on %s", done.outcome)


def _completion(record: Record, outcome: str, detail: str = "") -> Completion:
    return Completion(record.operation, record.scope, record.tag, outcome, detail)
