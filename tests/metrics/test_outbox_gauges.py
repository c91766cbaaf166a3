"""The exporter tells how much waits in an outbox, and nothing where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.queues.outbox_case import SECOND, OutboxCase, Sent, refused

from oncekey import Once
from oncekey.metrics.exporter import StoreCollector, make_registry, text_of
from oncekey.stores.memory import MemoryStore


@pytest.fixture(params=("sqlite", "postgres"))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OutboxCase]:
    made = OutboxCase(request.param, tmp_path)
    yield made
    made.close()


def figures(collector: StoreCollector) -> dict[str, float]:
    """The figures of the outbox, by their names without the prefix."""
    assert collector.read() is None
    lines = text_of(make_registry(collector)).splitlines()
    found = [line.split() for line in lines if line.startswith("oncekey_outbox_")]
    return {name.split("{")[0].removeprefix("oncekey_outbox_"): float(n) for name, n in found}


def test_what_waits_and_what_is_parked_are_gauges(case: OutboxCase) -> None:
    collector = StoreCollector(case.once._store, "main")
    assert figures(collector) == {"waiting": 0, "oldest_seconds": 0, "parked": 0}
    sent = Sent()
    sent.errors["bad"] = refused()
    case.add("bad")
    case.publisher(sent, max_tries=1).publish_due()
    case.add("good")
    case.add("better")
    case.clock.advance(7 * SECOND)
    assert figures(collector) == {"waiting": 2, "oldest_seconds": 7, "parked": 1}


def test_a_store_without_an_outbox_has_no_such_gauges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert figures(StoreCollector(MemoryStore(), "main")) == {}
    with Once(f"sqlite:///{tmp_path / 'keys.db'}") as once:
        store: Any = once._store
        once._ready()
        asked, outbox = [], store.outbox

        def counting(command: Any) -> Any:
            asked.append(1)
            return outbox(command)

        monkeypatch.setattr(store, "outbox", counting)
        collector = StoreCollector(store, "main")
        assert figures(collector) == figures(collector) == {}
        assert asked == [1]  # each try would be an error in the database's log
