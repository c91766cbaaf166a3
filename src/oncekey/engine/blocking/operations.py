"""What can be done with keys: run, guard, look.

The part of the public face that works on the store itself and inside a caller's transaction alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from oncekey.core.identity import KeyLike
from oncekey.core.policy import Policy, PolicyOptions
from oncekey.engine.blocking.attempt import Attempt
from oncekey.engine.blocking.runner import Body, Runner
from oncekey.engine.body_check import check_body
from oncekey.engine.guard import Picker, call, guarded
from oncekey.engine.jobs import Kernel
from oncekey.engine.key_status import KeyStatus, status_of
from oncekey.engine.results import Result

if TYPE_CHECKING:
    from oncekey.engine.signatures import Guard

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
        **options: Unpack[PolicyOptions],
    ) -> Result[T]:
        """Run `body(attempt)` at most once for this key, or replay what it answered.

        `request` is what was asked: another request under the same key raises Mismatch.
        `options` are fields of Policy for this call. Raises what the body raised, or one of the
        errors of docs/reference/errors.md.
        """
        known = self._kernel.replay(operation, key, scope, request, codec)
        if known is not None:
            return known
        check_body(body, operation, is_async=False)
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
        **options: Unpack[PolicyOptions],
    ) -> Guard:
        """Decorate a function to run at most once per key; later calls get the stored value.

        `key`, `scope` and `request` are functions of the call's arguments. A function with a
        parameter named `attempt` is given its attempt; callers leave it out. Type checkers see the
        function's own signature (see signatures.py).
        """
        self._kernel.check_guard(operation, codec, options)

        def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
            how = guarded(fn, operation, key=key, scope=scope, request=request, is_async=False)

            @functools.wraps(fn)
            def once_only(*args: Any, **kwargs: Any) -> Any:
                key_, scope_, request_ = how.pick(args, kwargs)

                def body(attempt: Attempt) -> Any:
                    return call(fn, how.arguments(args, kwargs, attempt))

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
