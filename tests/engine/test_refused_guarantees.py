"""A store that is too weak for what an engine requires is refused, and used when it is stronger.

A process that starts in the seconds of a failover must not wait for its restart.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.test_lazy_stores import HOPED, POOR, EngineKind

from oncekey.core.errors import ConfigurationError
from oncekey.core.events import Event, EventKind
from oncekey.core.guarantees import Guarantee, Level
from oncekey.core.policy import Policy
from oncekey.testing.sync_facade import LoopThread


@pytest.fixture(params=["blocking", "asyncio"])
def kind(request: pytest.FixtureRequest) -> Any:
    if request.param == "blocking":
        yield EngineKind(None)
        return
    loop = LoopThread()
    yield EngineKind(loop)
    loop.close()


def refused_once(kind: EngineKind) -> tuple[Any, Any]:
    """A store that was too weak when its engine reached it, and is as strong as required now."""
    store = kind.store(POOR)
    once = kind.once(store, policy=Policy(require="at_most_once"))
    with pytest.raises(ConfigurationError, match="does not wait for its disk"):
        once.run("op", "k", kind.body)
    store.learned = HOPED
    return store, once


def test_a_store_that_was_too_weak_is_used_when_it_is_strong_enough(kind: EngineKind) -> None:
    """As after a failover, in which a process has started. Nothing may wait for its restart."""
    _, once = refused_once(kind)
    assert once.run("op", "k", kind.body, retry_safe=True).value == 1
    _, once = refused_once(kind)
    assert kind.in_transaction(once)("op", "k", kind.body).value == 2
    _, once = refused_once(kind)
    once.guard("charge", key=lambda order: order, retry_safe=True)


def test_a_caller_that_finds_the_store_too_weak_does_not_stop_those_after_it(
    kind: EngineKind,
) -> None:
    """Two callers reach the store at the same time. One finds it strong enough, and the engine is
    ready; then the settings change, and the other one is refused. The next reads them again."""
    store = kind.store()
    once = kind.once(store, policy=Policy(require="at_most_once"))
    assert once.run("op", "k", kind.body, retry_safe=True).value == 1
    store.guarantee = store.learned = POOR
    with pytest.raises(ConfigurationError, match="does not wait for its disk"):
        (once if kind.loop is None else once.inner)._set_ready()  # what the second caller comes to
    with pytest.raises(ConfigurationError, match="does not wait for its disk"):
        once.run("op", "k2", kind.body, retry_safe=True)
    store.learned = HOPED
    assert once.run("op", "k3", kind.body, retry_safe=True).value == 2
    assert kind.in_transaction(once)("op", "k4", kind.body).value == 3


def test_event_of_a_changed_guarantee_says_why(kind: EngineKind) -> None:
    """The level alone does not tell which replica it was."""
    store = kind.store()
    once = kind.once(store)
    events: list[Event] = []
    once.subscribe(events.append)
    once.run("op", "a", kind.body)
    lower = Guarantee(Level.BEST_EFFORT, "an asynchronous replica is attached, 'db-2' (10.0.0.2)")
    store.guarantee = store.learned = lower
    once.run("op", "b", kind.body)
    store.guarantee = store.learned = HOPED
    once.run("op", "c", kind.body)
    changes = [event for event in events if event.kind is EventKind.GUARANTEE]
    assert [event.reason for event in changes] == [lower.reason, HOPED.reason]
    assert {event[1:4] for event in changes} == {("", "", "")}
