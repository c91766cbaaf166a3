"""`Once`: the public class of the sync engine, and its operations in a caller's transaction."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from oncekey.core.abandoned import TRIES_DEFAULT
from oncekey.core.duration import Duration
from oncekey.core.errors import StoreUnavailable
from oncekey.core.identity import KeyLike
from oncekey.core.move_marks import check_alone
from oncekey.core.origin import Origin
from oncekey.core.policy import Policy, PolicyOptions
from oncekey.core.store import SWEEP_LIMIT_DEFAULT, Store, StoreLimits
from oncekey.engine.attempts.attempt import Attempt
from oncekey.engine.attempts.attempt_outcomes import Outcomes
from oncekey.engine.attempts.runner import Body, Runner
from oncekey.engine.background.completer import Completer
from oncekey.engine.background.completion_flow import COMPLETE_LIMIT_DEFAULT, Completed, Completion
from oncekey.engine.background.periodic_task import PeriodicTask, check_limit
from oncekey.engine.background.sweeper import Sweeper
from oncekey.engine.body_check import LAMBDA, check_body
from oncekey.engine.clock import Clock
from oncekey.engine.guard import Picker, guarded
from oncekey.engine.jobs import JobFactory
from oncekey.engine.keys.administration import sweep_store
from oncekey.engine.keys.key_admin import KeyAdmin
from oncekey.engine.keys.key_status import KeyStatus, status_of
from oncekey.engine.once_base import (
    InTransactionBase,
    OperationsBase,
    check_background,
    guarantee_reader,
    make_parts,
)
from oncekey.engine.registry import Operation, Registered
from oncekey.engine.results import Result
from oncekey.engine.store_urls import blocking_store

if TYPE_CHECKING:
    from oncekey.engine.signatures import Guard

T = TypeVar("T")


class Operations(OperationsBase):
    """What can be done with keys: `run`, `guard` and `get`, on the store itself or inside a
    caller's transaction."""

    _runner: Runner

    def _get_ready(self) -> None:
        """Do what must be done before the first use. If it fails, the next use tries again; several
        threads may do it at once."""

    def _ready(self) -> None:
        if not self._is_ready:
            self._get_ready()

    def run(
        self,
        operation: str,
        key: KeyLike,
        body: Body[T],
        *,
        scope: str = "",
        request: Any = None,
        codec: Any = None,
        origin: Origin | None = None,
        **options: Unpack[PolicyOptions],
    ) -> Result[T]:
        """Run `body(attempt)` at most once for this key, or replay its stored result.

        `request` is what the caller wants: another request under the same key raises Mismatch.
        `codec` stores what the body returns; by default the body's annotation says how, and one of
        which nothing could be stored is refused. `options` are fields of Policy for this call.
        Raises what the body raised, or one of the errors of docs/reference/errors.md.
        """
        if codec is None and getattr(body, "__name__", "") != LAMBDA:
            codec = self._jobs.body_codec(body, operation)
        known = self._outcomes.replay(operation, key, scope, request, codec, origin)
        if known is not None:
            return known
        check_body(body, operation, is_async=False)
        if not self._is_ready:
            self._get_ready()
        job = self._jobs.make(operation, key, scope, request, codec, options, origin)
        return self._runner.run(job, body)

    def guard(
        self,
        operation: str,
        *,
        key: Picker,
        scope: str | Picker = "",
        request: Picker | None = None,
        codec: Any = None,
        **options: Unpack[PolicyOptions],
    ) -> Guard:
        """Decorate a function to run at most once per key; later calls get the stored value.

        `key`, `scope` and `request` are functions of the call's arguments. A function with a
        parameter named `attempt` is given its attempt; callers leave it out. Type checkers see the
        function's own signature (see signatures.py).
        """
        self._jobs.check_options(operation, codec, options)

        def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
            function = guarded(
                fn,
                operation,
                key=key,
                scope=scope,
                request=request,
                codec=codec,
                codec_of=self._jobs.codec_of,
                options=options,
                is_async=False,
            )

            @functools.wraps(fn)
            def once_only(*args: Any, **kwargs: Any) -> Any:
                return function.run(self.run, args, kwargs).value

            return once_only

        return decorate

    def get(
        self, operation: str, key: KeyLike, *, scope: str = "", codec: Any = None
    ) -> KeyStatus | None:
        """The status of a key, without running or changing anything."""
        self._ready()
        id, reader = self._jobs.locate(operation, key, scope, codec)
        return status_of(self._runner.look(id), reader)


class Once(KeyAdmin, Operations):
    """Makes operations with side effects safe to retry, from threads.

        once = Once("sqlite:///payments.db", policy=Policy(lease="30s", keep="24h"))
        result = once.run("charge", key, lambda attempt: gateway.charge(order), request=payload)

    store         a URL (memory://, sqlite:///file, postgresql://...) or a Store object
    policy        defaults for every operation
    secret        keys the digests in the store; must stay the same for the store's life
    codec         how results become bytes; JSON by default
    cache         how many finished outcomes to keep in this process; 0 for none
    raw_keys      also store the callers' keys as given, for operators to read
    sweep_every   remove garbage in the background, this often; of all engines with this option on
                  one store, one at a time does it
    sweep_limit   how many records it removes in one batch
    complete_every  finish abandoned runs of the registered operations in the background, this often
                  (see `operation`); complete_limit is how many at a time

    A server is reached on first use, or by `with`, which begins also while it is away: the first
    call tells that.
    """

    _is_async = False
    _runner: Runner
    _completer: Completer

    def __init__(
        self,
        store: Store | str,
        *,
        policy: Policy | None = None,
        secret: bytes | str | None = None,
        codec: Any = None,
        cache: int | None = None,
        raw_keys: bool = False,
        sweep_every: Duration | None = None,
        sweep_limit: int = SWEEP_LIMIT_DEFAULT,
        complete_every: Duration | None = None,
        complete_limit: int = COMPLETE_LIMIT_DEFAULT,
        clock: Clock | None = None,
    ) -> None:
        background = check_background(sweep_every, sweep_limit, complete_every, complete_limit)
        self._store: Store = blocking_store(store)
        try:
            parts = make_parts(
                guarantee_reader(self._store),
                policy=policy,
                secret=secret,
                codec=codec,
                cache=cache,
                raw_keys=raw_keys,
                clock=clock,
                limits=StoreLimits.of(self._store),
            )
            if not self._store.lazy:
                _bind(self._store, parts.jobs)
        except BaseException:
            if isinstance(store, str):
                self._store.close()
            raise
        super().__init__(parts, store, opened=not self._store.lazy)
        self._is_ready = not self._store.lazy
        self._runner = Runner(
            *parts,
            self._store.apply,
            coalesce=not self._store.immediate,
            max_in_flight=self._store.max_in_flight,
        )
        self._completer = Completer(self._store, self._runner, self._registry)
        self._complete_limit = background.complete_limit
        self._background: list[PeriodicTask] = []
        clock_ = parts.jobs.clock
        if background.sweep is not None:
            sweeper = Sweeper(self._store, background.sweep, clock_, self._ready)
            self._background.append(sweeper)
        if (every := background.complete_every) is not None:
            task = PeriodicTask("completer", every, self._complete, clock_, self._ready)
            self._background.append(task)
        for periodic in self._background:
            periodic.start()
        self._track()

    def _running_parts(self) -> list[Any]:
        return [*self._runner.parts_with_threads, *self._background]

    def _get_ready(self) -> None:
        if not self._closed:
            _bind(self._store, self._jobs)
        self._set_ready()

    def in_transaction(self, connection: Any) -> Operations:
        """The same operations inside your own transaction on the same database.

        Claim, your rows and the outcome commit together, or none of them does.
        """
        parts, transaction, connection = self._join(connection)
        runner = Runner(
            *parts,
            transaction.apply,
            coalesce=False,
            transaction=transaction,
            connection=connection,
        )
        return _InTransaction(*parts, runner, self)

    def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT) -> int:
        """Remove at most `limit` records that nothing needs any more; how many were removed."""
        return self._plan(sweep_store(limit))

    def operation(
        self,
        operation: str,
        *,
        codec: Any = None,
        tries: int = TRIES_DEFAULT,
        **options: Unpack[PolicyOptions],
    ) -> Callable[[Callable[[Attempt, Any], T]], Operation[Result[T]]]:
        """Register a function `fn(attempt, request)` as an operation that can be finished without
        its caller; `.run(key, request)` of what this makes runs it.

        Its request, plain values, is stored with its key before it begins. `complete()`, or
        `complete_every=`, finishes runs that were abandoned: it calls `recover=` for unknown keys,
        and runs retry-safe operations again, `tries` times at most.
        """

        def decorate(fn: Callable[[Attempt, Any], T]) -> Operation[Result[T]]:
            made = self._register(fn, operation, codec, tries, options)
            return Operation(fn, made, self._run_registered)

        return decorate

    def _run_registered(
        self, registered: Registered, key: KeyLike, request: Any, scope: str
    ) -> Result[Any]:
        name, codec = registered.operation, registered.codec
        known = self._outcomes.replay(name, key, scope, request, codec)
        if known is not None:
            return known
        self._ready()
        job, body = self._registered_job(registered, key, scope, request)
        return self._runner.run(job, body)

    def complete(
        self,
        limit: int = COMPLETE_LIMIT_DEFAULT,
        *,
        on_completion: Callable[[Completion], object] = lambda done: None,
    ) -> Completed:
        """Finish abandoned runs of the registered operations that are due, at most `limit`;
        `on_completion` is called with each one. Safe from many processes at once."""
        check_limit("limit", limit, "operations")
        self._ready()
        return self._completer.complete(limit, on_completion)

    def _complete(self) -> None:
        self._completer.complete(self._complete_limit)

    def close(self) -> None:
        """Stop the heartbeats and the background tasks, and close the store. End your own runs
        before; runs of a completer are waited for. Every call after it raises, until `reopen`."""
        self._completer.stop()
        for background in self._background:
            background.stop()
        self._set_closed()
        self._runner.stop()
        self._store.close()
        self._finalizer.detach()

    def __enter__(self) -> Self:
        """Open the engine, and reach the store if it answers. A server that is away is told by the
        first call, not here; ConfigurationError is raised here if the server can tell it."""
        self.reopen()
        try:
            self._ready()
        except StoreUnavailable as error:
            self._enter_without(error)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _bind(store: Store, jobs: JobFactory) -> None:
    """Bind the store to the secret, and check that it may be used alone: a store that keys are
    being moved to or from has a mark."""
    check_alone(store.bind(jobs.identities.check_value()))


class _InTransaction(InTransactionBase, Operations):
    def __init__(self, jobs: JobFactory, outcomes: Outcomes, runner: Runner, once: Once) -> None:
        super().__init__(jobs, outcomes, once)
        self._runner = runner
        self._engine = once

    def _get_ready(self) -> None:
        self._engine._ready()
        self._adopt()
