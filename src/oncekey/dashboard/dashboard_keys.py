"""Where the dashboard's keys come from: a store of its own, or the engine of the app around it.

Reading never goes beyond one page of a search, one key, or the store's own measures. Decisions go
through an engine where there is one, so that its cache forgets the key and its subscribers hear.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from oncekey.core.codec import JSON
from oncekey.core.errors import ConfigurationError
from oncekey.core.record import State
from oncekey.core.store import AsyncStore
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.event_bus import Subscriber
from oncekey.engine.keys import administration
from oncekey.engine.keys.administration import Plan, run_plan_async
from oncekey.engine.keys.key_status import KeyStatus
from oncekey.engine.once import Once
from oncekey.engine.port import AnyPort, AsyncPort, Port
from oncekey.engine.store_urls import async_store, store_module

T = TypeVar("T")

NO_VALUE: Final[Any] = ...


@dataclass(frozen=True, slots=True)
class Decision:
    """What an operator decides about a key, as `resolve` and `release` take it. `action` is
    "succeeded", "failed", "free" or "release"."""

    action: str
    value: Any = NO_VALUE
    message: str | None = None

    @property
    def method(self) -> str:
        """The method of an engine that takes it."""
        return "release" if self.action == "release" else "resolve"

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of that method, but for who and why."""
        if self.action == "release":
            return {}
        return {
            "succeeded": self.value,
            "failed": self.message,
            "free": self.action == "free",
        }


class DashboardKeys(Protocol):
    """What the pages need of a store."""

    @property
    def name(self) -> str:
        """The kind of store, for the page's head."""

    async def run(self, plan: Plan[T], /) -> T: ...
    async def decide(self, status: KeyStatus, decision: Decision, by: str, why: str, /) -> None: ...
    def subscribe(self, subscriber: Subscriber, /) -> bool:
        """Give the events of an engine to `subscriber`; False if there is no engine."""

    async def close(self) -> None: ...


def keys_of(store: AsyncOnce | Once | str) -> DashboardKeys:
    if isinstance(store, AsyncOnce):
        return _AsyncEngineKeys(store)
    if isinstance(store, Once):
        return _EngineKeys(store)
    if not isinstance(store, str):
        raise ConfigurationError(
            f"a {type(store).__name__} has no keys to show; give a Once, an AsyncOnce, or the URL "
            "of a store"
        )
    store_module(store)  # a wrong URL is an error now
    return _StoreKeys(store)


class _StoreKeys:
    """A store that is opened by its URL at the first use, without an engine and its secret."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.name = _store_name(url.partition(":")[0])
        self._store: AsyncStore | None = None

    async def run(self, plan: Plan[T], /) -> T:
        if self._store is None:
            self._store = async_store(self._url)
        return await run_plan_async(self._store, plan)

    async def decide(self, status: KeyStatus, decision: Decision, by: str, why: str, /) -> None:
        if decision.action == "release":
            chosen, expected = administration.FREE, administration.releasable(status)
        else:
            free = decision.action == "free"
            chosen = administration.resolution_of(
                status, decision.value, decision.message, free, JSON
            )
            administration.check_unknown(status)
            expected = State.UNKNOWN
        await self.run(administration.decide_key(status, chosen, expected, by=by, why=why))

    def subscribe(self, subscriber: Subscriber, /) -> bool:
        return False

    async def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            await store.close()


class _AsyncEngineKeys:
    """The store of an AsyncOnce, which its app closes."""

    def __init__(self, once: AsyncOnce) -> None:
        self._once = once
        self.name = _store_name(type(AnyPort(once).store).__name__)

    async def run(self, plan: Plan[T], /) -> T:
        return await AsyncPort(self._once).plan(plan)

    async def decide(self, status: KeyStatus, decision: Decision, by: str, why: str, /) -> None:
        decide = getattr(self._once, decision.method)
        await decide(status, by=by, why=why, **decision.options)

    def subscribe(self, subscriber: Subscriber, /) -> bool:
        self._once.subscribe(subscriber)
        return True

    async def close(self) -> None:
        return


class _EngineKeys:
    """The store of a Once, whose methods run in threads here."""

    def __init__(self, once: Once) -> None:
        self._once = once
        self.name = _store_name(type(AnyPort(once).store).__name__)

    async def run(self, plan: Plan[T], /) -> T:
        return await asyncio.to_thread(Port(self._once).plan, plan)

    async def decide(self, status: KeyStatus, decision: Decision, by: str, why: str, /) -> None:
        decide = getattr(self._once, decision.method)
        await asyncio.to_thread(decide, status, by=by, why=why, **decision.options)

    def subscribe(self, subscriber: Subscriber, /) -> bool:
        self._once.subscribe(subscriber)
        return True

    async def close(self) -> None:
        return


def _store_name(text: str) -> str:
    """A store's name for people, from its scheme or its class."""
    lowered = text.lower()
    names = {"postgres": "PostgreSQL", "sqlite": "SQLite", "memory": "memory", "etcd": "etcd"}
    return next((name for word, name in names.items() if word in lowered), text)
