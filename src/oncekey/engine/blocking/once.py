"""`Once`: the public face of the blocking engine.

Owns the store's and the threads' life time, also across fork. All rules are below it.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from oncekey.core.contract import SWEEP_LIMIT_DEFAULT, Store
from oncekey.core.duration import Duration
from oncekey.core.identity import KeyLike
from oncekey.core.levels import Guarantee
from oncekey.core.policy import Policy
from oncekey.engine.blocking.attempt import Attempt
from oncekey.engine.blocking.runner import Body, Runner
from oncekey.engine.blocking.sweeper import Sweeper
from oncekey.engine.clock import Clock
from oncekey.engine.guarding import Picker, call, guarded
from oncekey.engine.kernel import Kernel, Subscriber
from oncekey.engine.results import Result
from oncekey.engine.setup import make_kernel
from oncekey.engine.status import KeyStatus, status_of
from oncekey.engine.sweeping import sweep_plan
from oncekey.engine.urls import blocking_store

T = TypeVar("T")


class Operations:
    """What can be done with keys, on the store itself or inside a caller's transaction."""

    def __init__(self, kernel: Kernel, runner: Runner) -> None:
        self._kernel = kernel
        self._runner = runner
        self._is_ready = True

    @property
    def policy(self) -> Policy:
        """What holds for every operation that says nothing else."""
        return self._kernel.policy

    def _get_ready(self) -> None:
        """What must have happened before the first use. Where it fails, the next use tries
        again; threads that come first at once may all do it."""

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
        **options: Any,
    ) -> Result[T]:
        """Run `body(attempt)` at most once for this key, or replay what it answered.

        `request` is what was asked: another request under the same key raises Mismatch.
        `options` are fields of Policy for this call. Raises what the body raised, or one of the
        errors of docs/reference/errors.md.
        """
        known = self._kernel.replay(operation, key, scope, request, codec)
        if known is not None:
            return known
        if not self._is_ready:
            self._get_ready()
        job = self._kernel.job(operation, key, scope, request, codec, options)
        return self._runner.run(job, body)

    def guard(
        self,
        operation: str,
        *,
        key: Picker,
        scope: str | Picker = "",
        request: Picker | None = None,
        codec: Any = None,
        **options: Any,
    ) -> Callable[[Callable[..., T]], Callable[..., T]]:
        """Decorate a function to run at most once per key; later calls get the stored value.

        `key`, `scope` and `request` are functions of the call's arguments. A function with a
        parameter named `attempt` is given its attempt.
        """
        self._kernel.check_guard(operation, codec, options)

        def decorate(fn: Callable[..., T]) -> Callable[..., T]:
            how = guarded(fn, operation, key=key, scope=scope, request=request, is_async=False)

            @functools.wraps(fn)
            def once_only(*args: Any, **kwargs: Any) -> T:
                key_, scope_, request_ = how.pick(args, kwargs)

                def body(attempt: Attempt) -> T:
                    given = {**kwargs, "attempt": attempt} if how.wants_attempt else kwargs
                    value: T = call(fn, args, given)
                    return value

                return self.run(
                    operation,
                    key_,
                    body,
                    scope=scope_,
                    request=request_,
                    codec=codec,
                    **options,
                ).value

            return once_only

        return decorate

    def get(
        self, operation: str, key: KeyLike, *, scope: str = "", codec: Any = None
    ) -> KeyStatus | None:
        """Where a key stands, without running or changing anything."""
        self._ready()
        id, reader = self._kernel.locate(operation, key, scope, codec)
        return status_of(self._runner.look(id), reader)


class Once(Operations):
    """Makes operations with side effects safe to retry, from threads.

        once = Once("sqlite:///payments.db", policy=Policy(lease="30s", keep="24h"))
        result = once.run("charge", key, lambda attempt: gateway.charge(order), request=payload)

    store         a URL (memory://, sqlite:///file, postgresql://...) or a Store object
    policy        defaults for every operation
    secret        keys the digests in the store; must stay the same for the store's life
    codec         how results become bytes; JSON unless said otherwise
    cache         how many finished outcomes to keep in this process; 0 for none
    raw_keys      also store the callers' keys as given, for operators to read
    sweep_every   remove garbage in the background, this often; of all engines on a store that
                  are told to, one at a time does it
    sweep_limit   how many records it removes at a time
    """

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
        clock: Clock | None = None,
    ) -> None:
        plan = sweep_plan(sweep_every, sweep_limit)
        self._store = blocking_store(store)
        try:
            kernel = make_kernel(
                self._store.guarantee,
                policy=policy,
                secret=secret,
                codec=codec,
                cache=cache,
                raw_keys=raw_keys,
                clock=clock,
            )
            if not self._store.lazy:
                self._store.bind(kernel.identities.check_value())
        except BaseException:
            if isinstance(store, str):
                self._store.close()  # it was opened here, nobody else can close it
            raise
        runner = Runner(
            kernel,
            self._store.apply,
            coalesce=not self._store.immediate,
            lanes=self._store.lanes,
        )
        super().__init__(kernel, runner)
        self._is_ready = not self._store.lazy
        self._sweeper: Sweeper | None = None
        if plan is not None:
            self._sweeper = Sweeper(self._store, plan, kernel.clock, self._ready)
            self._sweeper.start()
        _alive.add(self)

    def _get_ready(self) -> None:
        self._store.bind(self._kernel.identities.check_value())
        self._kernel.adopt(self._store.guarantee)
        if self._sweeper is not None:
            self._sweeper.start()  # again, in a forked child
        self._is_ready = True

    @property
    def guarantee(self) -> Guarantee:
        """What the store can promise; an operation's `require=` is held against it."""
        return self._store.guarantee

    def in_transaction(self, connection: Any) -> Operations:
        """The same operations inside your own transaction on the same database.

        Claim, your rows and the outcome commit together, or none of them does.
        """
        kernel = self._kernel.for_transaction()
        enlisted = self._store.enlist(connection)
        real = getattr(enlisted, "connection", connection)
        runner = Runner(kernel, enlisted.apply, coalesce=False, enlisted=enlisted, connection=real)
        return _InTransaction(kernel, runner, self)

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Give every decision to `subscriber` as a Notice; the returned function ends that."""
        return self._kernel.subscribe(subscriber)

    def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT) -> int:
        """Remove at most `limit` records nothing needs any more; how many were removed."""
        self._ready()
        return self._store.sweep(limit)

    def close(self) -> None:
        """Stop the heartbeats and the sweeper, close the store. Finish your own work first."""
        if self._sweeper is not None:
            self._sweeper.stop()
        self._runner.stop()
        self._store.close()

    def __enter__(self) -> Self:
        self._ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _InTransaction(Operations):
    """A lazy store must have been reached before anything is claimed in its name."""

    def __init__(self, kernel: Kernel, runner: Runner, once: Once) -> None:
        super().__init__(kernel, runner)
        self._once = once
        self._is_ready = once._is_ready

    def _get_ready(self) -> None:
        self._once._ready()
        self._kernel.adopt(self._once.guarantee)
        self._is_ready = True


_alive: weakref.WeakSet[Once] = weakref.WeakSet()


def _after_fork() -> None:
    """A child has none of its parent's threads, and locks some of them may have held."""
    for once in list(_alive):
        once._runner.reset()
        if once._sweeper is not None:
            once._sweeper.reset()
            once._is_ready = False  # the first use starts it here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
