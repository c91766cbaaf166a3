"""Counters and histograms as Prometheus reads them, from real engines and the real library."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from oncekey import AsyncOnce, Mismatch, NotStarted, Once, Policy, StoreUnavailable
from oncekey.core.events import EventKind
from oncekey.metrics.event_counts import OTHER, OUTCOMES
from oncekey.metrics.prometheus import PrometheusMetrics, observe_all
from oncekey.stores.memory import MemoryStore
from oncekey.testing import FaultyStore

Samples = dict[tuple[str, str, str], float]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def once() -> Iterator[Once]:
    with Once("memory://", cache=0) as once:
        yield once


def outcomes(registry: CollectorRegistry) -> dict[str, float]:
    """How often each outcome was counted, read from the text that Prometheus gets."""
    counts: dict[str, float] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            if sample.name == "oncekey_outcomes_total":
                outcome = sample.labels["outcome"]
                counts[outcome] = counts.get(outcome, 0) + sample.value
    return counts


def test_every_kind_of_event_has_an_outcome() -> None:
    assert OUTCOMES.keys() == set(EventKind)
    assert len(set(OUTCOMES.values())) == len(OUTCOMES)


def test_a_run_its_replay_and_its_misuse_are_counted(
    once: Once, registry: CollectorRegistry
) -> None:
    PrometheusMetrics(once, registry=registry)
    for _ in range(3):
        once.run("charge", "order-1", lambda attempt: 1, request="a")
    with pytest.raises(Mismatch):
        once.run("charge", "order-1", lambda attempt: 1, request="b")
    with pytest.raises(NotStarted):
        once.run("charge", "order-2", _not_started)
    assert outcomes(registry) == {
        "miss": 2,
        "finished": 1,
        "hit": 2,
        "mismatch": 1,
        "released": 1,
    }


def test_the_text_has_names_labels_and_durations(once: Once, registry: CollectorRegistry) -> None:
    PrometheusMetrics(once, registry=registry)
    once.run("charge", "order-1", lambda attempt: threading.Event().wait(0.02))
    text = generate_latest(registry).decode()
    labels = 'operation="charge",route="",store="memory",surface="function"'
    first, rest = labels.split(",", 1)
    assert f'oncekey_outcomes_total{{{first},outcome="miss",{rest}}} 1.0' in text
    run = 'operation="charge",store="memory",surface="function"'
    for name in ("claim", "body", "finish"):
        assert f"oncekey_{name}_seconds_count{{{run}}} 1.0" in text
    assert f'oncekey_body_seconds_bucket{{le="0.01",{run}}} 0.0' in text
    assert f'oncekey_body_seconds_bucket{{le="10.0",{run}}} 1.0' in text


def test_an_async_engine_is_counted_alike(registry: CollectorRegistry) -> None:
    async def main() -> None:
        async def body(attempt: object) -> int:
            return 1

        async with AsyncOnce("memory://", cache=0) as once:
            PrometheusMetrics(once, registry=registry)
            for _ in range(2):
                await once.run("charge", "order-1", body)

    asyncio.run(main())
    assert outcomes(registry) == {"miss": 1, "finished": 1, "hit": 1}
    assert b"oncekey_body_seconds_count" in generate_latest(registry)


def test_values_that_cannot_be_kept_and_stores_that_are_away_are_counted(
    registry: CollectorRegistry,
) -> None:
    faulty = FaultyStore(MemoryStore())
    with Once(faulty, policy=Policy(max_bytes=10)) as once:
        PrometheusMetrics(once, registry=registry, store="main")
        once.run("charge", "order-1", lambda attempt: "x" * 100)
        faulty.down = True
        with pytest.raises(StoreUnavailable):
            once.run("charge", "order-2", lambda attempt: 1)
    counts = outcomes(registry)
    assert (counts["tombstone"], counts["unavailable"]) == (1, 1)
    assert b'store="main"' in generate_latest(registry)


def test_batches_are_counted_by_their_size(tmp_path: Path, registry: CollectorRegistry) -> None:
    with Once(f"sqlite:///{tmp_path / 'keys.db'}") as once:
        PrometheusMetrics(once, registry=registry)
        once.run("charge", "order-1", lambda attempt: 1)
    text = generate_latest(registry).decode()
    assert 'oncekey_batch_commands_bucket{le="1.0",store="sqlite"} 2.0' in text
    assert 'oncekey_batch_commands_sum{store="sqlite"} 2.0' in text


def test_operations_beyond_the_limit_share_a_label(once: Once, registry: CollectorRegistry) -> None:
    PrometheusMetrics(once, registry=registry, most=2)
    for number in range(5):
        once.run(f"charge-{number}", "order-1", lambda attempt: 1)
    text = generate_latest(registry).decode()
    operations = {
        sample.labels["operation"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "operation" in sample.labels
    }
    assert operations == {"charge-0", "charge-1", OTHER}
    assert outcomes(registry)["miss"] == 5


def test_engines_that_share_a_registry_add_up(registry: CollectorRegistry) -> None:
    def run_once() -> None:
        with Once("memory://") as once:
            PrometheusMetrics(once, registry=registry)
            once.run("charge", "order-1", lambda attempt: 1)

    run_once()
    run_once()
    gc.collect()  # what they have counted stays, though nobody has them any more
    assert outcomes(registry)["miss"] == 2


def test_stopped_metrics_count_no_more(once: Once, registry: CollectorRegistry) -> None:
    metrics = PrometheusMetrics(once, registry=registry)
    once.run("charge", "order-1", lambda attempt: 1)
    metrics.stop()
    once.run("charge", "order-1", lambda attempt: 1)
    assert outcomes(registry) == {"miss": 1, "finished": 1}
    assert once._outcomes.events.subscribers == ()
    assert once._outcomes.events.observers == ()


def test_many_values_at_once_count_as_one_by_one(registry: CollectorRegistry) -> None:
    values = [0.0, 0.1, 0.1, 0.25, 0.5, 3.0]
    alone = CollectorRegistry()
    each = Histogram("h", "each", registry=alone, buckets=(0.1, 0.5, 1.0))
    for value in values:
        each.observe(value)
    together = Histogram("h", "each", registry=registry, buckets=(0.1, 0.5, 1.0))
    observe_all(together, values)
    assert _without_created(generate_latest(registry)) == _without_created(generate_latest(alone))


def _without_created(text: bytes) -> list[bytes]:
    return [line for line in text.splitlines() if b"_created" not in line]


def _not_started(attempt: object) -> None:
    raise NotStarted
