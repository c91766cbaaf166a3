"""Serves the gauges of a store to Prometheus, from one process per store.

The store is read every so often, so that the number of scrapes does not load the database, and a
scrape gets the latest reading. With a folder of prometheus-client's multi-process mode it serves
the counters of the application's workers too, summed up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.store import Store
from oncekey.engine.keys.administration import run_plan
from oncekey.metrics.store_gauges import READ_AT, READ_SECONDS, UP, Reading, StoreWatch, gauges_of
from oncekey.stores.outbox_commands import Measure, OutboxCounts


class StoreCollector:
    """The latest reading of a store, as metrics with the label `store`. Register it in one process
    only, and call `read` now and then.

    While the store is down there is no reading: `oncekey_store_up` is 0 and the figures are absent,
    since old ones would look like news.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._watch = StoreWatch()
        self._has_outbox = hasattr(store, "outbox")
        self._lock = threading.Lock()
        self._reading: Reading | None = None
        self._seconds = 0.0
        self._read_at = 0.0

    def read(self) -> StoreUnavailable | None:
        """Read the store; returns the error if it did not answer."""
        began = time.perf_counter()
        reading, failure = None, None
        with self._lock:
            try:
                reading = run_plan(self._store, self._watch.read())
                reading = reading._replace(outbox=self._read_outbox())
            except StoreUnavailable as error:
                failure = error
            self._reading, self._seconds = reading, time.perf_counter() - began
            self._read_at = time.time()
        return failure

    def _read_outbox(self) -> OutboxCounts | None:
        """The counts of the outbox. Without its table it is not asked for again: the database would
        log every try as an error."""
        if not self._has_outbox:
            return None
        try:
            counts: OutboxCounts = self._store.outbox(Measure())  # type: ignore[attr-defined]
        except ConfigurationError:
            self._has_outbox = False
            return None
        return counts

    @property
    def reading(self) -> Reading | None:
        return self._reading

    def collect(self) -> Iterable[Metric]:
        """The metrics, for a registry of prometheus-client."""
        reading = self._reading
        up = float(reading is not None)
        yield self._family(UP, "1 if the store answered when it was read last", up)
        yield self._family(READ_SECONDS, "How long the latest reading took", self._seconds)
        yield self._family(READ_AT, "When the store was read last", self._read_at)
        if reading is None:
            return
        families: dict[str, GaugeMetricFamily] = {}
        for gauge in gauges_of(reading):
            labels = ["store", "quantile"] if gauge.quantile else ["store"]
            family = families.get(gauge.name)
            if family is None:
                family = GaugeMetricFamily(gauge.name, gauge.text, labels=labels)
                families[gauge.name] = family
            values = [self._name, gauge.quantile] if gauge.quantile else [self._name]
            family.add_metric(values, gauge.value)
        yield from families.values()

    def _family(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=["store"])
        family.add_metric([self._name], value)
        return family


def make_registry(collector: StoreCollector, workers: str | None = None) -> CollectorRegistry:
    """A registry with the store's gauges and, if `workers` is the folder of the multi-process mode,
    the metrics of the application's workers."""
    registry = CollectorRegistry()
    registry.register(collector)
    if workers is not None:
        MultiProcessCollector(registry, path=workers)  # type: ignore[no-untyped-call]
    return registry


def text_of(registry: CollectorRegistry) -> str:
    """The metrics as Prometheus reads them."""
    return generate_latest(registry).decode()


def serve(registry: CollectorRegistry, host: str, port: int) -> tuple[int, Callable[[], None]]:
    """Serve the metrics at `/metrics` in a thread. Returns the port and a function that ends it."""
    server, thread = start_http_server(port, host, registry)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return int(server.server_port), stop
