"""Dead letters and parked messages reach the log, the metrics and the structured logs."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry
from tests.support.log_records import written_log

from oncekey import AsyncOnce, Event, EventKind, Once, Terminal
from oncekey.metrics.prometheus import PrometheusMetrics
from oncekey.metrics.spans import OpenTelemetrySpans
from oncekey.metrics.structured_logs import LOGGER, StructuredLogs
from oncekey.queues import AsyncConsumer, AsyncMemoryBroker, Consumer, MemoryBroker, Message
from oncekey.stores.memory import MemoryStore

SECRET = "card 4000 0566 5566 5556"
RARE = frozenset((EventKind.DEAD_LETTER, EventKind.PARKED))


def ship(message: Message) -> None:
    raise Terminal("no such order")


async def ship_async(message: Message) -> None:
    ship(message)


def handled(once: Once, *bodies: str) -> None:
    queue = MemoryBroker("orders")
    consumer = Consumer(once, ship, queue, name="ship", key="json:$.id")
    for body in bodies:
        queue.send(body)
        for message in queue.receive(1, 0.0, 30.0):
            consumer.handle(message)


def test_a_dead_letter_is_an_event_with_its_consumer_queue_and_tag() -> None:
    seen: list[Event] = []
    with Once("memory://") as once:
        once.subscribe(seen.append)
        handled(once, '{"id": "o1"}', "no JSON")
        status = once.get("ship", "o1", scope="ship/orders")
        assert status is not None
    first, second = [event for event in seen if event.kind in RARE]
    assert (first.kind, first.operation, first.scope) == (
        EventKind.DEAD_LETTER,
        "ship",
        "ship/orders",
    )
    assert (first.surface, first.route) == ("queue", "orders")
    assert (first.tag, first.fence, first.attempt) == (status.tag, status.fence, 1)
    assert (second.kind, second.tag, second.fence) == (EventKind.DEAD_LETTER, "", 0)


def test_a_consumer_of_tasks_reports_them_too() -> None:
    seen: Counter[EventKind] = Counter()

    async def handle() -> None:
        queue = MemoryBroker("orders")
        queue.send('{"id": "o1"}')
        async with AsyncOnce("memory://") as once:
            once.subscribe(lambda event: seen.update([event.kind]))
            broker = AsyncMemoryBroker(queue)
            consumer = AsyncConsumer(once, ship_async, broker, name="ship", key="json:$.id")
            for message in await broker.receive(1, 0.0, 30.0):
                await consumer.handle(message)

    asyncio.run(handle())
    assert seen[EventKind.DEAD_LETTER] == 1


def test_a_parked_message_is_an_event() -> None:
    seen: list[EventKind] = []
    store = MemoryStore()
    with Once(store) as once, pytest.raises(SystemExit):
        once.run(
            "ship", "o1", lambda attempt: exit(1), scope="ship/orders", request=b'{"id": "o1"}'
        )
    with Once(store) as once:

        def note(event: Event) -> None:
            if event.operation == "ship":
                seen.append(event.kind)

        once.subscribe(note)
        handled(once, '{"id": "o1"}')
    assert seen == [EventKind.UNKNOWN, EventKind.PARKED]


def test_prometheus_counts_them_by_consumer_and_queue() -> None:
    registry = CollectorRegistry()
    with Once("memory://") as once:
        metrics = PrometheusMetrics(once, registry=registry)
        handled(once, '{"id": "o1"}', '{"id": "o2"}')
        metrics.stop()
    labels = {"operation": "ship", "route": "orders", "surface": "queue", "store": "memory"}
    for outcome in ("miss", "dead_letter"):
        total = registry.get_sample_value("oncekey_outcomes_total", {**labels, "outcome": outcome})
        assert total == 2.0


def test_spans_of_a_message_name_its_queue_and_a_dead_letter_is_no_span_of_its_own() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with Once("memory://") as once:
        spans = OpenTelemetrySpans(once, tracer=provider.get_tracer("test"))
        handled(once, '{"id": "o1"}')
        spans.stop()
    found = [
        span
        for span in exporter.get_finished_spans()
        if span.attributes is not None and span.attributes["oncekey.operation"] == "ship"
    ]
    names = sorted(span.name for span in found)
    assert names == ["oncekey.body", "oncekey.claim", "oncekey.finish", "oncekey.key"]
    for span in found:
        assert span.attributes is not None
        assert span.attributes["oncekey.surface"] == "queue"
        assert span.attributes["oncekey.route"] == "orders"


def test_the_log_has_one_line_with_the_reason_and_never_the_key_or_the_body() -> None:
    with written_log("oncekey", logging.WARNING) as plain, Once("memory://") as once:
        handled(once, f'{{"id": "sk_live_1", "note": "{SECRET}"}}')
    assert plain.lines == [
        "consumer ship: message m1 of orders: dead letter: Terminal: no such order"
    ]


def test_structured_logs_have_a_warning_also_if_usual_events_are_left_out() -> None:
    with written_log(LOGGER, logging.DEBUG) as lines, Once("memory://") as once:
        StructuredLogs(once, usual=None)
        handled(once, f'{{"id": "sk_live_1", "note": "{SECRET}"}}')
    (line,) = lines.records
    fields = line.fields  # type: ignore[attr-defined]
    assert (line.levelno, fields["event"]) == (logging.WARNING, "oncekey.dead_letter")
    assert (fields["surface"], fields["route"]) == ("queue", "orders")
    assert SECRET not in lines.text
    assert "sk_live_1" not in lines.text
