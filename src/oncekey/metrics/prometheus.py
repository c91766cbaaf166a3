"""Counters and histograms of an engine for Prometheus, with the package `prometheus-client`.

    PrometheusMetrics(once)                  # into the default registry, which your app exposes

Works in a single process and in prometheus-client's multi-process mode alike, since it needs
nothing but counters and histograms. Gauges of the store are the exporter's: every process would
report the same ones.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import Metric as MetricFamily

from oncekey.engine.once_base import OnceBase
from oncekey.engine.port import AnyPort
from oncekey.metrics.event_counts import (
    BATCH_COMMANDS,
    BODY_SECONDS,
    CLAIM_SECONDS,
    FINISH_SECONDS,
    LABELS_MAX,
    OUTCOMES,
    OUTCOMES_TOTAL,
    LabelCap,
    Metric,
    store_name,
)
from oncekey.metrics.tally import Sums, Tally


class _BeforeScrape:
    """A collector without metrics. It is asked first, and has the others written to."""

    def __init__(self) -> None:
        self.tallies: WeakSet[Tally] = WeakSet()

    def collect(self) -> Iterable[MetricFamily]:
        for tally in list(self.tallies):
            tally.flush()
        return ()


class _Families(NamedTuple):
    """The metrics of one registry, which all engines that report to it share."""

    before_scrape: _BeforeScrape
    outcomes: Counter
    claim: Histogram
    body: Histogram
    finish: Histogram
    batch: Histogram


_families: WeakKeyDictionary[CollectorRegistry, _Families] = WeakKeyDictionary()
_lock = threading.Lock()


def _families_of(registry: CollectorRegistry) -> _Families:
    with _lock:
        known = _families.get(registry)
        if known is None:
            before = _BeforeScrape()
            registry.register(before)
            total = OUTCOMES_TOTAL
            counter = Counter(total.name, total.text, total.labels, registry=registry)
            metrics = (CLAIM_SECONDS, BODY_SECONDS, FINISH_SECONDS, BATCH_COMMANDS)
            histograms = [_histogram(metric, registry) for metric in metrics]
            known = _families[registry] = _Families(before, counter, *histograms)
        return known


def _histogram(metric: Metric, registry: CollectorRegistry) -> Histogram:
    name, labels, buckets = metric.name, metric.labels, metric.buckets
    return Histogram(name, metric.text, labels, registry=registry, buckets=buckets)


class PrometheusMetrics:
    """Counts the decisions of an engine, and measures its claims, bodies, finishes and batches.

    registry    where the metrics go; several engines may share one
    store       the label `store`; the kind of store by default
    most        how many operations with routes get labels of their own; all others are "other"

    The metrics are at most a second old: they are written many at a time, and before each scrape of
    this process.
    """

    def __init__(
        self,
        once: OnceBase,
        *,
        registry: CollectorRegistry = REGISTRY,
        store: str | None = None,
        most: int = LABELS_MAX,
    ) -> None:
        self._families = _families_of(registry)
        self._store = store or store_name(AnyPort(once).store)
        self._cap = LabelCap(most)
        self._tally = Tally(self._take)
        self._families.before_scrape.tallies.add(self._tally)
        self._unobserve = once.observe(self._tally)

    def stop(self) -> None:
        """Write what has come so far, and watch the engine no more."""
        self._unobserve()
        self._tally.flush()

    def _take(self, sums: Sums) -> None:
        families, store = self._families, self._store
        for counted, number in sums.decisions.items():
            names = self._cap.labels_of(counted.operation, counted.route, counted.surface)
            outcome = OUTCOMES[counted.kind]
            families.outcomes.labels(
                names.operation, names.route, outcome, names.surface, store
            ).inc(number)
        for (operation, surface), durations in sums.durations.items():
            if not any(durations):
                continue  # refused or replayed: it would only make empty histograms
            labels = (self._cap.operation_of(operation), surface, store)
            observe_all(families.claim.labels(*labels), durations.claim)
            observe_all(families.body.labels(*labels), durations.body)
            observe_all(families.finish.labels(*labels), durations.finish)
        observe_all(families.batch.labels(store), sums.batches)


def observe_all(histogram: Any, values: Sequence[float]) -> None:
    """Do what `histogram.observe` would do for each value, a bucket at a time, which costs less. If
    the library's insides have changed, its `observe` is called."""
    parts = (getattr(histogram, name, None) for name in ("_upper_bounds", "_buckets", "_sum"))
    bounds, buckets, total = parts
    if bounds is None or buckets is None or total is None:
        for value in values:
            histogram.observe(value)
        return
    if not values:
        return
    ordered, before = sorted(values), 0
    for bound, bucket in zip(bounds, buckets, strict=True):
        after = bisect_right(ordered, bound, before)
        if after > before:
            bucket.inc(after - before)
        before = after
    total.inc(sum(values))
