"""Counters and histograms of an engine for OpenTelemetry, by its API alone.

    OpenTelemetryMetrics(once)              # to the meter provider that your app has set

Which SDK and exporter the figures go to is the application's choice; without one nothing happens.
Spans are in spans.py.
"""

from __future__ import annotations

from opentelemetry import metrics as otel
from opentelemetry.metrics import Histogram, Meter

from oncekey import __version__
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


class OpenTelemetryMetrics:
    """Counts the decisions of an engine, and measures its claims, bodies, finishes and batches.

    meter       where the metrics go; that of the global meter provider by default
    store       the attribute `store`; the kind of store by default
    most        how many operations with routes get attributes of their own; others are "other"
    """

    def __init__(
        self,
        once: OnceBase,
        *,
        meter: Meter | None = None,
        store: str | None = None,
        most: int = LABELS_MAX,
    ) -> None:
        meter = meter or otel.get_meter("oncekey", __version__)
        total = OUTCOMES_TOTAL
        self._outcomes = meter.create_counter(total.otel_name, total.unit, total.text)
        self._claim = _histogram(meter, CLAIM_SECONDS)
        self._body = _histogram(meter, BODY_SECONDS)
        self._finish = _histogram(meter, FINISH_SECONDS)
        self._batch = _histogram(meter, BATCH_COMMANDS)
        self._store = store or store_name(AnyPort(once).store)
        self._cap = LabelCap(most)
        self._tally = Tally(self._take)
        self._unobserve = once.observe(self._tally)

    def flush(self) -> None:
        """Hand what has come so far to OpenTelemetry. Happens by itself within a second; call it
        before the meter provider is shut down."""
        self._tally.flush()

    def stop(self) -> None:
        """Hand over what has come so far, and watch the engine no more."""
        self._unobserve()
        self.flush()

    def _take(self, sums: Sums) -> None:
        for counted, number in sums.decisions.items():
            names = self._cap.labels_of(counted.operation, counted.route, counted.surface)
            attributes = {
                **names._asdict(), "outcome": OUTCOMES[counted.kind], "store": self._store,
            }  # fmt: skip
            self._outcomes.add(number, attributes)
        for (operation, surface), durations in sums.durations.items():
            name = self._cap.operation_of(operation)
            attributes = {"operation": name, "surface": surface, "store": self._store}
            _record_all(self._claim, durations.claim, attributes)
            _record_all(self._body, durations.body, attributes)
            _record_all(self._finish, durations.finish, attributes)
        _record_all(self._batch, sums.batches, {"store": self._store})


def _histogram(meter: Meter, metric: Metric) -> Histogram:
    return meter.create_histogram(
        metric.otel_name,
        metric.unit,
        metric.text,
        explicit_bucket_boundaries_advisory=metric.buckets,
    )


def _record_all(
    histogram: Histogram, values: list[float] | list[int], attributes: dict[str, str]
) -> None:
    for value in values:
        histogram.record(value, attributes)
