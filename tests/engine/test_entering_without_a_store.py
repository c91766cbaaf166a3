"""What `with` promises of a store that is away: the block begins, and the first call tells it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.log_records import Written, written_log

from oncekey import AsyncOnce, Once
from oncekey.core.commands import Seen
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore

PATIENCE_S = 60
BACKGROUND: list[dict[str, Any]] = [{"sweep_every": "100ms"}, {"complete_every": "100ms"}]


class _Away:
    """Raises these errors in turn when it is reached, and tells when it works in the background."""

    lazy = True

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)
        self.was_used = threading.Event()

    def reach(self) -> None:
        if self.errors:
            raise self.errors.pop(0)

    def use(self) -> None:
        assert not self.errors, "used before it was reached"
        self.was_used.set()


class Away(_Away, MemoryStore):
    def bind(self, check: bytes, /) -> Seen:
        self.reach()
        return super().bind(check)

    def elect(self, token: bytes, lease: int, /) -> bool:
        self.use()
        return super().elect(token, lease)

    def unfinished(self, after: int, limit: int, /) -> Any:
        self.use()
        return super().unfinished(after, limit)


class AsyncAway(_Away, AsyncMemoryStore):
    async def bind(self, check: bytes, /) -> Seen:
        self.reach()
        return await super().bind(check)

    async def elect(self, token: bytes, lease: int, /) -> bool:
        self.use()
        return await super().elect(token, lease)

    async def unfinished(self, after: int, limit: int, /) -> Any:
        self.use()
        return await super().unfinished(after, limit)


class Kind:
    """Engines for threads or for tasks, used in a `with` block."""

    def __init__(self, name: str) -> None:
        self.is_async = name == "tasks"

    def store(self, *errors: Exception) -> Any:
        return (AsyncAway if self.is_async else Away)(*errors)

    def enter(
        self,
        store: Any,
        calls: int = 0,
        *,
        wait: Callable[[], object] = bool,
        **options: Any,
    ) -> list[object]:
        """Enter an engine that was closed before, wait, and run so often; the outcomes."""
        if self.is_async:
            return asyncio.run(self._enter_async(store, calls, wait, options))
        once, outcomes = Once(store, **options), list[object]()
        once.close()
        with once:
            wait()
            for _ in range(calls):
                try:
                    outcomes.append(once.run("op", "k", lambda attempt: 1).value)
                except StoreUnavailable as error:
                    outcomes.append(str(error))
        return outcomes

    async def _enter_async(
        self, store: Any, calls: int, wait: Callable[[], object], options: Any
    ) -> list[object]:
        async def body(attempt: Any) -> int:
            return 1

        once, outcomes = AsyncOnce(store, **options), list[object]()
        await once.close()
        async with once:
            await asyncio.to_thread(wait)
            for _ in range(calls):
                try:
                    outcomes.append((await once.run("op", "k", body)).value)
                except StoreUnavailable as error:
                    outcomes.append(str(error))
        return outcomes


@pytest.fixture(params=("threads", "tasks"))
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(request.param)


@pytest.fixture
def log() -> Iterator[Written]:
    with written_log("oncekey", 10) as written:
        yield written


def test_a_store_that_is_away_is_told_by_the_first_call(kind: Kind, log: Written) -> None:
    store = kind.store(StoreUnavailable("no server yet"), StoreUnavailable("nor now"))
    assert kind.enter(store, 2) == ["nor now", 1]
    name = "AsyncOnce" if kind.is_async else "Once"
    assert f"{name}: no server yet; the block begins, and the next call tries again" in log.lines


@pytest.mark.parametrize(
    "error",
    [
        ConfigurationError("the schema is another one"),
        StoreUnavailable("it was closed", final=True),
        ValueError("a mistake"),
    ],
)
def test_what_no_later_call_can_cure_is_raised_by_the_with_statement(
    kind: Kind, error: Exception
) -> None:
    with pytest.raises(type(error), match=str(error)):
        kind.enter(kind.store(error), wait=lambda: pytest.fail("the block began"))


def test_a_store_that_is_set_up_before_its_first_use_is_told_by_the_with_statement() -> None:
    """A new file cannot be set up inside a caller's transaction that has written."""
    store = AsyncAway(StoreUnavailable("another process writes"))
    store.lazy = False
    with pytest.raises(StoreUnavailable, match="another process writes"):
        Kind("tasks").enter(store)


@pytest.mark.parametrize("options", BACKGROUND, ids=str)
def test_what_runs_in_the_background_reaches_the_store_later(
    kind: Kind, options: dict[str, Any], log: Written
) -> None:
    """A process that only sweeps or completes makes no call of its own."""
    store = kind.store(StoreUnavailable("no server yet"), StoreUnavailable("nor now"))
    assert kind.enter(store, wait=lambda: _wait(store.was_used), **options) == []
    assert any("failed, StoreUnavailable: nor now; it tries again" in line for line in log.lines)


def _wait(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S)
