"""The names of metrics, and which metric an event counts in. Pure: no client library.

An event counts once, by its outcome. The names of outcomes are those that operators use: a first
run is a `miss`, a replay is a `hit`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from oncekey.core.events import EventKind

OUTCOMES: Final = {
    EventKind.CLAIMED: "miss",
    EventKind.TAKEOVER: "takeover",
    EventKind.FINISHED: "finished",
    EventKind.RELEASED: "released",
    EventKind.REPLAYED: "hit",
    EventKind.MISMATCH: "mismatch",
    EventKind.IN_FLIGHT: "in_flight",
    EventKind.WAIT_TIMEOUT: "pending_timeout",
    EventKind.UNKNOWN: "unknown",
    EventKind.RECOVERED: "recovered",
    EventKind.RESOLVED: "resolved",
    EventKind.LOST: "lost",
    EventKind.UNAVAILABLE: "unavailable",
    EventKind.UNGUARDED: "unguarded",
    EventKind.UNPROTECTED: "unprotected",
    EventKind.GUARANTEE: "guarantee",
    EventKind.UNRECORDED: "unrecorded",
    EventKind.TOMBSTONE: "tombstone",
    EventKind.DEAD_LETTER: "dead_letter",
    EventKind.PARKED: "parked",
}

# What others call the same, and the outcome it is here.
ALIASES: Final = {
    "idempotency.miss": "miss",
    "idempotency.hit": "hit",
    "idempotency.pending_timeout": "pending_timeout",
}

LABELS_MAX: Final = 200  # operations with routes, per engine; all others share one label
OTHER: Final = "other"

# Upper bounds in seconds. A claim and a finish are one commit each; a body may call anybody.
STORE_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
BODY_BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCH_BUCKETS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class Metric(NamedTuple):
    """One metric of an engine: its name in Prometheus and in OpenTelemetry, and what it says."""

    name: str
    otel_name: str
    text: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...] = ()
    unit: str = "s"


RUN_LABELS: Final = ("operation", "surface", "store")
OUTCOMES_TOTAL: Final = Metric(
    "oncekey_outcomes_total",
    "oncekey.outcomes",
    "Decisions about keys, by outcome",
    ("operation", "route", "outcome", "surface", "store"),
    unit="{decision}",
)
CLAIM_SECONDS: Final = Metric(
    "oncekey_claim_seconds",
    "oncekey.claim.duration",
    "From the call until the key was claimed",
    RUN_LABELS,
    STORE_BUCKETS,
)
BODY_SECONDS: Final = Metric(
    "oncekey_body_seconds",
    "oncekey.body.duration",
    "How long bodies ran",
    RUN_LABELS,
    BODY_BUCKETS,
)
FINISH_SECONDS: Final = Metric(
    "oncekey_finish_seconds",
    "oncekey.finish.duration",
    "From the end of the body until its outcome was stored",
    RUN_LABELS,
    STORE_BUCKETS,
)
BATCH_COMMANDS: Final = Metric(
    "oncekey_batch_commands",
    "oncekey.batch.size",
    "Commands per batch that was sent to the store",
    ("store",),
    BATCH_BUCKETS,
    "{command}",
)


class EventLabels(NamedTuple):
    """What an event is counted under, beside its outcome and the store."""

    operation: str
    route: str
    surface: str


class LabelCap:
    """Gives events their labels, and those that come when there are `most` operations and routes
    already the label "other": what a client chooses must not fill the metrics."""

    def __init__(self, most: int = LABELS_MAX) -> None:
        self._most = most
        self._known: set[EventLabels] = set()
        self._operations: set[str] = set()

    def labels_of(self, operation: str, route: str, surface: str) -> EventLabels:
        labels = EventLabels(operation, route, surface)
        if labels not in self._known:
            if len(self._known) >= self._most:
                return EventLabels(self.operation_of(operation), OTHER, surface)
            self._known.add(labels)
            self._operations.add(operation)
        return labels

    def operation_of(self, operation: str) -> str:
        """The label of an operation without its routes."""
        return operation if operation in self._operations else OTHER


_STORE_NAMES: Final = {"postgres": "postgresql", "move": "moving"}


def store_name(store: object) -> str:
    """What a store is called in labels if the user gives it no name: the usual scheme of its URL,
    whichever of its schemes it was opened by. The app and the exporter have the same label so."""
    parts = type(store).__module__.split(".")
    if parts[:2] == ["oncekey", "stores"] and len(parts) > 2:
        return _STORE_NAMES.get(parts[2], parts[2])
    return type(store).__name__.lower()
