"""What metrics, logs and spans cost: first runs with each of them on, beside the same with all off.

64 threads on SQLite (durable) and on PostgreSQL, and one caller in memory, where nothing else is to
be seen. There are two figures: the time of a first run by the clock, which is that of the lifecycle
and has the goal; and the processor time of this process, which is steadier on a busy machine. The
contestants take turns in short slices, and a ratio is the median of those of neighbours.

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
from typing import NamedTuple

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

from bench.figures import MICROSECONDS, Ratio, Report, median, progress
from bench.postgres.server import started
from oncekey import Once
from oncekey.metrics.opentelemetry import OpenTelemetryMetrics
from oncekey.metrics.prometheus import PrometheusMetrics
from oncekey.metrics.spans import OpenTelemetrySpans
from oncekey.metrics.structured_logs import StructuredLogs

THREADS = 64
PER_THREAD = 10
LONE_OPERATIONS = 1_000
ROUNDS = 40
WANTED = 1.05
OUTCOME = {"id": "ch_1"}

Load = Callable[[Once, Context], "Slice"]
_numbers = itertools.count()


class Slice(NamedTuple):
    """Microseconds per first run: by the clock, and of this process's processor time."""

    wall: float
    processor: float


def _timed(operations: int, work: Callable[[], object]) -> Slice:
    wall, processor = time.perf_counter(), time.process_time()
    work()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return Slice(wall / operations * 1_000_000, processor / operations * 1_000_000)


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


def _threads(once: Once, request: Context) -> Slice:
    """First runs by 64 threads at once."""
    gate = threading.Barrier(THREADS)

    def work(_: int) -> None:
        contexts.attach(request)
        gate.wait()
        for _ in range(PER_THREAD):
            once.run("charge", f"order-{next(_numbers)}", lambda attempt: OUTCOME)

    with ThreadPoolExecutor(THREADS) as pool:
        return _timed(THREADS * PER_THREAD, lambda: list(pool.map(work, range(THREADS))))


def _lone(once: Once, request: Context) -> Slice:
    contexts.attach(request)

    def work() -> None:
        for _ in range(LONE_OPERATIONS):
            once.run("charge", f"order-{next(_numbers)}", lambda attempt: OUTCOME)

    return _timed(LONE_OPERATIONS, work)


def _compare(title: str, url: str, load: Load, wanted: float | None) -> Report:
    engines = {}
    for name, switch_on in CONTESTANTS.items():
        engines[name] = once = Once(url)
        switch_on(once)
        load(once, _request(name == SAMPLED))
    seen: dict[str, list[Slice]] = {name: [] for name in engines}
    for turn in range(ROUNDS):
        # Each is first as often as last: what one leaves behind must not always meet the same one.
        names = list(engines) if turn % 2 else list(reversed(engines))
        for name in names:
            seen[name].append(load(engines[name], _request(name == SAMPLED)))
    progress(title)
    for once in engines.values():
        once.close()
    timings = [median(name, [slice.wall for slice in slices]) for name, slices in seen.items()]
    return Report(f"{title}: a first run", timings, _ratios(seen, wanted))


def _ratios(seen: dict[str, list[Slice]], wanted: float | None) -> list[Ratio]:
    off = seen["off"]
    ratios = []
    for name in list(seen)[1:]:
        pairs = list(zip(seen[name], off, strict=True))
        wall = statistics.median(mine.wall / base.wall for mine, base in pairs)
        goal = wanted if name in ("Prometheus", "everything on") else None
        ratios.append(Ratio(f"{name} over off", wall, goal, at_most=True))
        added = statistics.median(mine.processor - base.processor for mine, base in pairs)
        ratios.append(Ratio(f"{name}: processor time added", added, unit=MICROSECONDS))
    return ratios


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
