"""What `Once` and `AsyncOnce` share: options, registration, subscribers, closing and reopening.

Nothing here waits. The shells in blocking/ and aio/ have the methods that do, with the signatures
that users see.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

from oncekey.core.abandoned import TRIES_DEFAULT
from oncekey.core.duration import Duration
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.events import Event, EventKind
from oncekey.core.guarantees import Guarantee
from oncekey.core.identity import Identities, KeyLike
from oncekey.core.policy import Policy
from oncekey.core.store import StoreLimits
from oncekey.engine.attempts.attempt_outcomes import CACHE_ENTRIES_DEFAULT, Outcomes, ReplayCache
from oncekey.engine.background.periodic_task import check_limit, check_period
from oncekey.engine.background.sweeper import SweepPlan, sweep_plan
from oncekey.engine.clock import Clock, SystemClock
from oncekey.engine.event_bus import EventBus, Observer, Subscriber
from oncekey.engine.guarantee_check import GuaranteeMonitor
from oncekey.engine.guard import check_operation, check_recover
from oncekey.engine.jobs import NO_LIMITS, Job, JobFactory
from oncekey.engine.keys.key_status import KeyStatus
from oncekey.engine.lifetime import (
    EngineResources,
    closed_error,
    free_when_dropped,
    reopen_store,
)
from oncekey.engine.registry import Registered, Registry, plain_copy

_log = logging.getLogger("oncekey")


class OperationsBase:
    """What `run`, `guard` and `get` need, on the store itself or in a caller's transaction."""

    def __init__(self, jobs: JobFactory, outcomes: Outcomes) -> None:
        self._jobs = jobs
        self._outcomes = outcomes
        self._is_ready = True

    @property
    def policy(self) -> Policy:
        """The defaults for every operation."""
        return self._jobs.policy


class InTransactionBase(OperationsBase):
    """Operations in a caller's transaction. The store must have been reached before anything is
    claimed: a lazy store has no guarantee before, and a new file may be without its tables."""

    def __init__(self, jobs: JobFactory, outcomes: Outcomes, once: OnceBase) -> None:
        self._once = once
        super().__init__(jobs, outcomes)
        self._is_adopted = once._is_ready

    def _adopt(self) -> None:
        self._jobs.adopt(self._once.guarantee)
        self._is_adopted = True

    @property
    def _is_ready(self) -> bool:
        return self._is_adopted and not self._once._closed

    @_is_ready.setter
    def _is_ready(self, is_ready: bool) -> None:
        self._is_adopted = is_ready


class BackgroundOptions(NamedTuple):
    """The options of what an engine does in the background."""

    sweep: SweepPlan | None
    complete_every: int | None
    complete_limit: int


def check_background(
    sweep_every: Duration | None,
    sweep_limit: int,
    complete_every: Duration | None,
    complete_limit: int,
) -> BackgroundOptions:
    plan = sweep_plan(sweep_every, sweep_limit)
    check_limit("complete_limit", complete_limit, "operations")
    return BackgroundOptions(plan, check_period("complete_every", complete_every), complete_limit)


class EngineParts(NamedTuple):
    """What an engine makes jobs, events and results with."""

    jobs: JobFactory
    outcomes: Outcomes


def make_parts(
    current_guarantee: Callable[[], Guarantee],
    *,
    policy: Policy | None,
    secret: bytes | str | None,
    codec: Any,
    cache: int | None,
    raw_keys: bool,
    clock: Clock | None,
    limits: StoreLimits = NO_LIMITS,
) -> EngineParts:
    """Check the options and make the parts."""
    if policy is not None and not isinstance(policy, Policy):
        raise ConfigurationError(f"policy must be a Policy, not a {type(policy).__name__}")
    entries = CACHE_ENTRIES_DEFAULT if cache is None else cache
    if not isinstance(entries, int) or entries < 0:
        raise ConfigurationError(f"cache={cache!r} must be a number of entries, 0 for none")
    clock = clock or SystemClock()
    events = EventBus(clock)
    monitor = GuaranteeMonitor(current_guarantee, events)
    jobs = JobFactory(
        policy=policy or Policy(),
        identities=Identities(secret),
        guarantee=monitor.reported,
        monitor=monitor,
        clock=clock,
        codec=codec,
        raw_keys=raw_keys,
        limits=limits,
    )
    return EngineParts(jobs, Outcomes(jobs, ReplayCache(entries), events))


class OnceBase(OperationsBase):
    """An engine, without its threads or tasks. `store` is what the user gave: a URL, or a store
    object that the user closes."""

    _is_async: ClassVar[bool]
    _store: Any
    _runner: Any
    _completer: Any
    _background: list[Any]

    def __init__(self, parts: EngineParts, store: object, *, opened: bool) -> None:
        super().__init__(*parts)
        self._closed = False
        own = self._store if isinstance(store, str) else None  # nobody else can close it
        self._resources = EngineResources(own, opened=opened)
        self._registry = Registry(parts.jobs)
        self._in_transaction: EngineParts | None = None

    # --- for users ----------------------------------------------------------------------------

    @property
    def guarantee(self) -> Guarantee:
        """What the store can promise; an operation's `require=` is checked against it. Of a server
        that has not answered yet it is the most that the server may turn out to promise."""
        guarantee: Guarantee = self._store.guarantee
        return guarantee

    def subscribe(self, subscriber: Subscriber, *, usual: bool = True) -> Callable[[], None]:
        """Give every decision to `subscriber` as an `Event`; the returned function ends that. With
        `usual=False` it gets what is rare, and costs nothing: claims, finishes and replays are left
        out, unless the store was down before."""
        return self._outcomes.events.subscribe(subscriber, usual=usual)

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Let an `Observer` watch from inside, for histograms and spans; the returned function ends
        that. It gets every event too."""
        return self._outcomes.events.observe(observer)

    def notify(self, event: Event) -> None:
        """Give the log and the subscribers an event of an adapter's own."""
        self._outcomes.events.notify(event)

    @property
    def operations(self) -> tuple[str, ...]:
        """The names of the registered operations."""
        return tuple(self._registry.operations)

    def policy_for(
        self, operation: str, options: Mapping[str, Any], *, in_transaction: bool = False
    ) -> Policy:
        """The policy of an operation with these options; raises ConfigurationError if the store
        cannot keep it."""
        jobs = self._transactional_parts().jobs if in_transaction else self._jobs
        return jobs.policy_with(options, operation)

    def recover_with(
        self,
        operation: str,
        recover: Callable[..., Any],
        *,
        codec: Any = None,
        tries: int = TRIES_DEFAULT,
    ) -> None:
        """Let `complete()` call `recover` for unknown keys of an operation that is run elsewhere
        or otherwise, such as "http"."""
        self._add_operation(operation, None, codec, tries, {"recover": recover})

    def reopen(self) -> None:
        """After `close`: let everything work again, from the next use on. Does nothing if it is
        open. Raises ConfigurationError if its store was given and cannot be opened again."""
        if not self._closed:
            return
        reopen_store(self._store)
        self._runner.reset()
        self._completer.reset()
        for background in self._background:
            background.restart()
        self._outcomes.cache.reopen()
        self._closed = False
        self._track()

    def _was_decided(self, status: KeyStatus) -> None:
        """An operator has decided a key: what was remembered of it is void, and subscribers hear of
        it."""
        self._outcomes.cache.forget(bytes.fromhex(status.id))
        self.notify(
            Event(
                EventKind.RESOLVED,
                status.operation,
                status.scope,
                status.tag,
                status.fence,
                status.attempt,
                surface=status.surface,
                route=status.route,
            )
        )

    # --- registration -------------------------------------------------------------------------

    def _register(
        self,
        fn: Callable[..., Any],
        operation: str,
        codec: Any,
        tries: int,
        options: Mapping[str, Any],
    ) -> Registered:
        """Register a function, after checking it."""
        check_operation(fn, operation, is_async=self._is_async)
        codec = self._jobs.codec_of(fn, operation, codec, f"operation({operation!r})")
        return self._add_operation(operation, fn, codec, tries, options)

    def _add_operation(
        self,
        operation: str,
        body: Callable[..., Any] | None,
        codec: Any,
        tries: int,
        options: Mapping[str, Any],
    ) -> Registered:
        if not self._is_async:
            check_recover(options.get("recover"), operation)
        made = self._registry.register(operation, body, codec=codec, tries=tries, options=options)
        self._completer.watchlist.list_all()  # its records were skipped when they were listed
        return made

    def _registered_job(
        self, registered: Registered, key: KeyLike, scope: str, request: Any
    ) -> tuple[Job, Callable[[Any], Any]]:
        """The job and the body of one call of a registered operation."""
        copy = plain_copy(request)
        job = self._registry.job(registered, key, scope, copy)
        body = registered.body
        assert body is not None
        return job, lambda attempt: body(attempt, copy)

    # --- the caller's transaction -------------------------------------------------------------

    def _join(self, connection: Any) -> tuple[EngineParts, Any, Any]:
        """The parts for a caller's transaction, the transaction, and its real connection. Nothing
        is cached in there, because it may yet roll back."""
        if self._closed:
            raise closed_error(self)
        parts = self._transactional_parts()
        transaction = self._store.join(connection)
        return parts, transaction, getattr(transaction, "connection", connection)

    def _transactional_parts(self) -> EngineParts:
        parts = self._in_transaction
        if parts is None or parts.jobs.guarantee is not self._jobs.guarantee:
            jobs = self._jobs.for_transaction()
            events = self._outcomes.events
            parts = EngineParts(jobs, Outcomes(jobs, ReplayCache(entries=0), events))
            self._in_transaction = parts
        return parts

    # --- life time ----------------------------------------------------------------------------

    def _set_ready(self) -> None:
        """The store was reached."""
        if self._closed:  # perhaps meanwhile
            raise closed_error(self)
        # If it is refused, the next use must reach the store again, also if another caller had
        # found it strong enough meanwhile.
        self._is_ready = False
        self._jobs.adopt(self._store.guarantee)
        self._resources.opened = True
        for background in self._background:
            background.start()  # again, in a forked child
        self._is_ready = True

    def _enter_without(self, error: StoreUnavailable) -> None:
        """The store is away when a `with` block begins: log it, and let what runs in the background
        try again. Raises the error if no later call can cure it, or the store is none that is
        reached on first use."""
        if error.final or not self._store.lazy:
            raise error
        name = type(self).__name__
        _log.warning("%s: %s; the block begins, and the next call tries again", name, error)
        for background in self._background:
            background.start()

    def _set_closed(self) -> None:
        self._closed = True
        self._is_ready = False
        self._outcomes.cache.close()

    def _track(self) -> None:
        """Free the engine's resources if it is dropped without `close`."""
        self._resources.running = self._running_parts()
        self._finalizer = free_when_dropped(self, self._resources)
        _alive.add(self)

    def _running_parts(self) -> list[Any]:
        """The parts with threads or tasks."""
        raise NotImplementedError

    def _reset_after_fork(self) -> None:
        """A child has none of its parent's threads, and locks that some of them may have held."""
        self._outcomes.events.reset()
        self._runner.reset()
        self._resources.running = self._running_parts()
        self._completer.reset()
        for background in self._background:
            background.reset()
            self._is_ready = False  # the first use starts it here


def guarantee_reader(store: Any) -> Callable[[], Guarantee]:
    """Reads the guarantee off a store, without keeping its engine alive."""
    return partial(getattr, store, "guarantee")


_alive: weakref.WeakSet[OnceBase] = weakref.WeakSet()


def _after_fork() -> None:
    for once in list(_alive):
        once._reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
