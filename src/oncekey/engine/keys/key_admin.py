"""What operators do with keys: list them, decide them, measure the store.

These are the methods of `Once` and of `AsyncOnce`; the work is in administration.py.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from oncekey.core.record import State
from oncekey.core.search import PAGE_LIMIT_DEFAULT
from oncekey.core.store import AsyncStore, Store
from oncekey.engine.keys import administration
from oncekey.engine.keys.administration import FREE, Plan, run_plan, run_plan_async
from oncekey.engine.keys.key_list import Listing, query_of
from oncekey.engine.keys.key_status import KeyStatus
from oncekey.engine.keys.store_stats import Stats
from oncekey.engine.once_base import OnceBase

T = TypeVar("T")


class KeyAdmin(OnceBase):
    """The operators' methods of `Once`."""

    _store: Store
    _ready: Callable[[], None]

    def list(
        self,
        *,
        state: str | Iterable[str] | None = None,
        scope: str | None = None,
        operation: str | None = None,
        route: str | None = None,
        key: str | None = None,
        tag: str = "",
        expired: bool = False,
        limit: int = PAGE_LIMIT_DEFAULT,
        after: str | None = None,
    ) -> Listing:
        """A page of the keys that match, newest claim first. `state` is one or several of pending,
        succeeded, failed, unknown and freed; `route` may be the beginning of a route; `key` is
        found only where raw keys are stored. `after` is the `next` of the page before."""
        query = query_of(
            state=state,
            scope=scope,
            operation=operation,
            route=route,
            key=key,
            tag=tag,
            expired=expired,
        )
        return self._plan(administration.list_keys(query, limit, after))

    def find(self, tag: str, *, codec: Any = None) -> KeyStatus | None:
        """The status of the key that logs and errors call by this tag; its beginning will do."""
        return self._plan(administration.find_key(tag, self._jobs.codec_for(codec)))

    def past(self, status: KeyStatus, *, codec: Any = None) -> tuple[KeyStatus, ...]:
        """Past generations of a key that are still in their audit window, oldest first."""
        found = self._plan(administration.past_of(status, self._jobs.codec_for(codec)))
        return tuple(found)

    def resolve(
        self,
        status: KeyStatus,
        *,
        succeeded: Any = ...,
        failed: str | None = None,
        free: bool = False,
        by: str,
        why: str,
        codec: Any = None,
    ) -> KeyStatus | None:
        """Decide a key whose outcome is unknown: it succeeded with this value (an HttpAnswer for an
        HTTP request), it failed with this message, or it never ran and may run again. `status` is
        what `get` or `find` gave; raises KeyChanged if the key is not as it shows any more. `by`
        and `why` go into the record."""
        chosen = self._jobs.codec_for(codec)
        resolution = administration.resolution_of(status, succeeded, failed, free, chosen)
        administration.check_unknown(status)
        return self._decide(status, resolution, State.UNKNOWN, by, why)

    def release(self, status: KeyStatus, *, by: str, why: str) -> KeyStatus | None:
        """Let a key run again that is unknown, and never ran, or that has failed. What it failed
        with stays in its history. Raises KeyChanged like `resolve`."""
        expected = administration.releasable(status)
        return self._decide(status, FREE, expected, by, why)

    def stats(self) -> Stats:
        """The figures of the store: how much it holds, what is pending, and what is to be swept."""
        return self._plan(administration.measure_store())

    def _decide(
        self,
        status: KeyStatus,
        resolution: administration.Resolution,
        expected: State,
        by: str,
        why: str,
    ) -> KeyStatus | None:
        plan = administration.decide_key(status, resolution, expected, by=by, why=why)
        decided = self._plan(plan)
        self._was_decided(status)
        return decided

    def _plan(self, plan: Plan[T]) -> T:
        self._ready()
        return run_plan(self._store, plan)


class AsyncKeyAdmin(OnceBase):
    """The operators' methods of `AsyncOnce`."""

    _store: AsyncStore
    _ready: Callable[[], Coroutine[Any, Any, None]]

    async def list(
        self,
        *,
        state: str | Iterable[str] | None = None,
        scope: str | None = None,
        operation: str | None = None,
        route: str | None = None,
        key: str | None = None,
        tag: str = "",
        expired: bool = False,
        limit: int = PAGE_LIMIT_DEFAULT,
        after: str | None = None,
    ) -> Listing:
        """A page of the keys that match, newest claim first. `state` is one or several of pending,
        succeeded, failed, unknown and freed; `route` may be the beginning of a route; `key` is
        found only where raw keys are stored. `after` is the `next` of the page before."""
        query = query_of(
            state=state,
            scope=scope,
            operation=operation,
            route=route,
            key=key,
            tag=tag,
            expired=expired,
        )
        return await self._plan(administration.list_keys(query, limit, after))

    async def find(self, tag: str, *, codec: Any = None) -> KeyStatus | None:
        """The status of the key that logs and errors call by this tag; its beginning will do."""
        return await self._plan(administration.find_key(tag, self._jobs.codec_for(codec)))

    async def past(self, status: KeyStatus, *, codec: Any = None) -> tuple[KeyStatus, ...]:
        """Past generations of a key that are still in their audit window, oldest first."""
        found = await self._plan(administration.past_of(status, self._jobs.codec_for(codec)))
        return tuple(found)

    async def resolve(
        self,
        status: KeyStatus,
        *,
        succeeded: Any = ...,
        failed: str | None = None,
        free: bool = False,
        by: str,
        why: str,
        codec: Any = None,
    ) -> KeyStatus | None:
        """Decide a key whose outcome is unknown: it succeeded with this value (an HttpAnswer for an
        HTTP request), it failed with this message, or it never ran and may run again. `status` is
        what `get` or `find` gave; raises KeyChanged if the key is not as it shows any more. `by`
        and `why` go into the record."""
        chosen = self._jobs.codec_for(codec)
        resolution = administration.resolution_of(status, succeeded, failed, free, chosen)
        administration.check_unknown(status)
        return await self._decide(status, resolution, State.UNKNOWN, by, why)

    async def release(self, status: KeyStatus, *, by: str, why: str) -> KeyStatus | None:
        """Let a key run again that is unknown, and never ran, or that has failed. What it failed
        with stays in its history. Raises KeyChanged like `resolve`."""
        expected = administration.releasable(status)
        return await self._decide(status, FREE, expected, by, why)

    async def stats(self) -> Stats:
        """The figures of the store: how much it holds, what is pending, and what is to be swept."""
        return await self._plan(administration.measure_store())

    async def _decide(
        self,
        status: KeyStatus,
        resolution: administration.Resolution,
        expected: State,
        by: str,
        why: str,
    ) -> KeyStatus | None:
        plan = administration.decide_key(status, resolution, expected, by=by, why=why)
        decided = await self._plan(plan)
        self._was_decided(status)
        return decided

    async def _plan(self, plan: Plan[T]) -> T:
        await self._ready()
        return await run_plan_async(self._store, plan)
