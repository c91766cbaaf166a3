"""The background completer finishes abandoned operations, logs errors, and ends with its engine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncekey.core.codec import JSON, pack_value
from oncekey.core.commands import Claim, Claimed, SaveStep
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.identity import Identities
from oncekey.core.step_format import ARGUMENTS, pack_step
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.once import Once
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore
from oncekey.testing.contract.engine_case import wait_until_true
from oncekey.testing.fake_clock import FakeClock
from oncekey.testing.sync_facade import LoopThread, SyncOnce

SECOND = 1_000_000
PERIOD = 10 * SECOND


class Failing(MemoryStore):
    """A store that fails a given number of times."""

    failures = 0

    def unfinished(self, after: int, limit: int, /) -> Any:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("gone for a moment")
        return super().unfinished(after, limit)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> Failing:
    return Failing(clock=clock.wall)


@pytest.fixture(params=["blocking", "asyncio"])
def make(
    request: pytest.FixtureRequest, store: Failing, clock: FakeClock
) -> Iterator[Callable[..., Any]]:
    loop = LoopThread() if request.param == "asyncio" else None
    made: list[Any] = []

    def make(**options: Any) -> Any:
        options = {"clock": clock, "complete_every": "10s", **options}
        if loop is not None:
            engine: Any = SyncOnce(AsyncOnce(AsyncMemoryStore(store), **options), loop)
        else:
            engine = Once(store, **options)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close()
    if loop is not None:
        loop.close()


def leave_behind(store: MemoryStore, clock: FakeClock, key: str = "k") -> None:
    ids = Identities()
    id = ids.identify("", "op", key).id
    claim = Claim(id, key.encode(), ids.fingerprint(1), SECOND, 10**12, 0, True, "", "op", "")
    (claimed,) = store.apply([claim])
    assert isinstance(claimed, Claimed)
    body = pack_step({"key": key}, pack_value(JSON, 1))
    store.apply([SaveStep(id, key.encode(), claimed.fence, ARGUMENTS, True, body)])


def test_i10_abandoned_operations_are_finished_in_the_background(
    make: Callable[..., Any], store: Failing, clock: FakeClock
) -> None:
    leave_behind(store, clock)
    done = threading.Event()
    once = make()
    once.operation("op", retry_safe=True)(lambda attempt, request: done.set())
    once.get("op", "other")  # an AsyncOnce begins with its first use
    clock.wait_until_due(PERIOD)
    clock.advance(PERIOD)
    assert done.wait(60)
    wait_until_true(lambda: once.get("op", "k").state == "succeeded")


def test_the_completer_logs_an_error_of_the_store_and_tries_again(
    make: Callable[..., Any],
    store: Failing,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    leave_behind(store, clock)
    store.failures = 2
    done = threading.Event()
    once = make()
    once.operation("op", retry_safe=True)(lambda attempt, request: done.set())
    once.get("op", "other")
    with caplog.at_level(logging.WARNING, "oncekey"):
        for _ in range(3):
            clock.wait_until_due(PERIOD)
            clock.advance(PERIOD)
        assert done.wait(60)
    said = [r.getMessage() for r in caplog.records if "completer failed" in r.getMessage()]
    assert len(said) == 2
    assert "gone for a moment" in said[0]


def test_the_completer_logs_only_the_type_of_an_unknown_error(
    make: Callable[..., Any],
    store: Failing,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    leave_behind(store, clock)
    once = make(complete_every=None)

    def body(attempt: Any, request: Any) -> None:
        raise ValueError("card Ada!")

    once.operation("op", retry_safe=True)(body)
    clock.advance(2 * SECOND)
    with caplog.at_level(logging.WARNING, "oncekey"):
        (done,) = once.complete().done
    assert (done.outcome, done.detail) == ("error", "ValueError")
    assert "Ada!" not in caplog.text
    assert done.tag in caplog.text


def test_i14_close_waits_for_running_completions_and_begins_no_others(
    make: Callable[..., Any], store: Failing, clock: FakeClock
) -> None:
    for number in range(20):
        leave_behind(store, clock, f"k{number}")
    inside, go, runs = threading.Event(), threading.Event(), []

    def body(attempt: Any, request: Any) -> str:
        runs.append(attempt.key)
        inside.set()
        assert go.wait(60)
        return "done"

    once = make(complete_every=None)
    once.operation("op", retry_safe=True)(body)
    clock.advance(2 * SECOND)
    round = threading.Thread(target=once.complete)
    round.start()
    assert inside.wait(60)
    closing = threading.Thread(target=once.close)
    closing.start()
    if isinstance(once, Once):
        wait_until_true(once._completer._stop.is_set)
    go.set()
    closing.join(60)
    round.join(60)
    assert not closing.is_alive()
    states = [record.state for record in store._records.values() if record.body]
    assert len(states) == len(runs)
    if isinstance(once, Once):
        assert len(runs) < 20


@pytest.mark.parametrize(
    "options",
    [{"complete_every": "1ms"}, {"complete_every": 5}, {"complete_limit": 0}],
    ids=repr,
)
def test_wrong_completer_options_raise_at_construction(options: dict[str, Any]) -> None:
    for kind in (Once, AsyncOnce):
        with pytest.raises(ConfigurationError, match="complete_"):
            kind("memory://", **options)


def test_a_registered_function_must_take_attempt_and_request() -> None:
    once = Once("memory://")
    with pytest.raises(ConfigurationError, match=r"fn\(attempt, request\)"):
        once.operation("op")(lambda attempt: None)  # type: ignore[arg-type, misc]

    async def body(attempt: Any, request: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="AsyncOnce"):
        once.operation("op")(body)
    assert once.operations == ()
    once.close()
