"""What metrics, logs and spans cost: first runs with each of them on, beside the same with all off.

64 threads on SQLite (durable) and on PostgreSQL, and one caller in memory, where nothing else is to
be seen. The figure is the processor time of this process per first run, since the cost is Python's
alone, and the wall clock of a busy machine shows a disk and other programs as well. The contestants
take turns in short slices, and a ratio is the median of the ratios of neighbours.

"Everything on" is Prometheus, structured logs and spans inside of a request's trace that is not
sampled, as most are where there is much traffic. What a sampled trace costs is shown too: that is
mostly the SDK's work.
"""

from __future__ import annotations

import itertools
import logging
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    set_span_in_context,
)
from prometheus_client import CollectorRegistry

from bench.figures import Ratio, Report, median, progress
from bench.postgres.server import started
from oncekey import Once
from oncekey.metrics.opentelemetry import OpenTelemetryMetrics
from oncekey.metrics.prometheus import PrometheusMetrics
from oncekey.metrics.spans import OpenTelemetrySpans
from oncekey.metrics.structured_logs import StructuredLogs

THREADS = 64
PER_THREAD = 25
LONE_OPERATIONS = 2_000
ROUNDS = 15
WANTED = 1.05
OUTCOME = {"id": "ch_1"}

Load = Callable[[Once, Context], float]
_numbers = itertools.count()


def _request(sampled: bool) -> Context:
    """What is current while a request is served: its span, in a trace that is sampled or not."""
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    return set_span_in_context(NonRecordingSpan(SpanContext(1, 1, False, flags)), Context())


def _prometheus(once: Once) -> None:
    PrometheusMetrics(once, registry=CollectorRegistry())


def _open_telemetry(once: Once) -> None:
    meter = MeterProvider([InMemoryMetricReader()]).get_meter("bench")
    OpenTelemetryMetrics(once, meter=meter)


def _everything(once: Once) -> None:
    _prometheus(once)
    StructuredLogs(once, usual=None)
    OpenTelemetrySpans(once, tracer=TracerProvider().get_tracer("bench"))


SAMPLED = "everything on, every trace sampled"
CONTESTANTS: dict[str, Callable[[Once], None]] = {
    "off": lambda once: None,
    "off, again": lambda once: None,  # what two equal ones differ by
    "a subscriber that does nothing": lambda once: (once.subscribe(lambda event: None), None)[1],
    "Prometheus": _prometheus,
    "everything on": _everything,
    "OpenTelemetry metrics": _open_telemetry,
    SAMPLED: _everything,
}


def _threads(once: Once, request: Context) -> float:
    """Processor microseconds per first run, with 64 threads at once."""
    gate = threading.Barrier(THREADS)

    def work(_: int) -> None:
        contexts.attach(request)
        gate.wait()
        for _ in range(PER_THREAD):
            once.run("charge", f"order-{next(_numbers)}", lambda attempt: OUTCOME)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda _: None, range(THREADS)))
        start = time.process_time()
        list(pool.map(work, range(THREADS)))
        return (time.process_time() - start) / (THREADS * PER_THREAD) * 1_000_000


def _lone(once: Once, request: Context) -> float:
    contexts.attach(request)
    start = time.process_time()
    for _ in range(LONE_OPERATIONS):
        once.run("charge", f"order-{next(_numbers)}", lambda attempt: OUTCOME)
    return (time.process_time() - start) / LONE_OPERATIONS * 1_000_000


def _compare(title: str, url: str, load: Load, wanted: float | None) -> Report:
    engines = {}
    for name, switch_on in CONTESTANTS.items():
        engines[name] = once = Once(url)
        switch_on(once)
        load(once, _request(name == SAMPLED))
    seen: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(ROUNDS):
        for name, once in engines.items():
            seen[name].append(load(once, _request(name == SAMPLED)))
        progress(f"{title}: round {turn + 1}/{ROUNDS}")
    for once in engines.values():
        once.close()
    off = seen["off"]
    ratios = []
    for name in list(engines)[1:]:
        pairs = [mine / base for mine, base in zip(seen[name], off, strict=True)]
        goal = wanted if name in ("Prometheus", "everything on") else None
        ratios.append(Ratio(f"{name} over off", statistics.median(pairs), goal, at_most=True))
    timings = [median(name, values) for name, values in seen.items()]
    return Report(f"{title}: processor time of a first run", timings, ratios)


def run() -> list[Report]:
    logging.getLogger("oncekey").addHandler(logging.NullHandler())
    reports = [_compare("Memory, one caller", "memory://", _lone, None)]
    with tempfile.TemporaryDirectory(prefix="oncekey-bench-") as folder:
        sqlite = f"sqlite:///{folder}/keys.db"
        reports.append(_compare(f"SQLite FULL, {THREADS} threads", sqlite, _threads, WANTED))
    with started() as running:
        url = running.url()
        reports.append(_compare(f"PostgreSQL, {THREADS} threads", url, _threads, WANTED))
    return reports
