"""What can be done with keys, awaited: run, guard, look.

The part of the public face that works on the store itself and inside a caller's transaction alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from oncekey.core.identity import KeyLike
from oncekey.core.policy import Policy, PolicyOptions
from oncekey.engine.aio.body import AsyncBody
from oncekey.engine.aio.runner import AsyncRunner
from oncekey.engine.body_check import check_body
from oncekey.engine.guard import Picker, call, guarded
from oncekey.engine.jobs import Kernel
from oncekey.engine.key_status import KeyStatus, status_of
from oncekey.engine.results import Result

if TYPE_CHECKING:
    from oncekey.engine.signatures import AsyncGuard

T = TypeVar("T")


class AsyncOperations:
    """What can be done with keys, on the store itself or inside a caller's transaction."""

    def __init__(self, kernel: Kernel, runner: AsyncRunner) -> None:
        self._kernel = kernel
        self._runner = runner
        self._is_ready = True

    @property
    def policy(self) -> Policy:
        """What holds for every operation that says nothing else."""
        return self._kernel.policy

    async def _get_ready(self) -> None:
        """What must have happened before the first use. Where it fails, the next use tries
        again; tasks that come first at once may all do it."""

    async def _ready(self) -> None:
        if not self._is_ready:
            await self._get_ready()

    async def run(
        self,
        operation: str,
        key: KeyLike,
        body: AsyncBody[T],
        *,
        scope: str = "",
        request: Any = None,
        codec: Any = None,
        **options: Unpack[PolicyOptions],
    ) -> Result[T]:
        """Run `body(attempt)` at most once for this key, or replay what it answered.

        Cancelling the caller does not cancel a body that has begun: it goes on, and its outcome
        is stored for the next retry.
        """
        known = self._kernel.replay(operation, key, scope, request, codec)
        if known is not None:
            return known
        check_body(body, operation, is_async=True)
        if not self._is_ready:
            await self._get_ready()
        job = self._kernel.job(operation, key, scope, request, codec, options)
        return await self._runner.run(job, body)

    def guard(
        self,
        operation: str,
        *,
        key: Picker,
        scope: str | Picker = "",
        request: Picker | None = None,
        codec: Any = None,
        **options: Unpack[PolicyOptions],
    ) -> AsyncGuard:
        """Decorate an async function to run at most once per key; see `Once.guard`."""
        self._kernel.check_guard(operation, codec, options)

        def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
            how = guarded(fn, operation, key=key, scope=scope, request=request, is_async=True)

            @functools.wraps(fn)
            async def once_only(*args: Any, **kwargs: Any) -> Any:
                key_, scope_, request_ = how.pick(args, kwargs)
                result: Result[Any] = await self.run(
                    operation,
                    key_,
                    lambda attempt: call(fn, how.arguments(args, kwargs, attempt)),
                    scope=scope_,
                    request=request_,
                    codec=codec,
                    **options,
                )
                return result.value

            return once_only

        return decorate

    async def get(
        self, operation: str, key: KeyLike, *, scope: str = "", codec: Any = None
    ) -> KeyStatus | None:
        """Where a key stands, without running or changing anything."""
        await self._ready()
        id, reader = self._kernel.locate(operation, key, scope, codec)
        return status_of(await self._runner.look(id), reader)
