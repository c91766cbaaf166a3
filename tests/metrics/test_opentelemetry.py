"""Metrics and spans as an OpenTelemetry SDK gets them from real engines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode, Tracer, get_current_span
from tests.http.asgi_requests import guard, send_request

from oncekey import AsyncOnce, Once, StoreUnavailable
from oncekey.http.rules import Rule
from oncekey.metrics.opentelemetry import OpenTelemetryMetrics
from oncekey.metrics.spans import OpenTelemetrySpans, trace_id_of
from oncekey.stores.memory import MemoryStore
from oncekey.testing import FaultyStore

SECRET = "sk_live_4242"


class Traces:
    """A tracer, and the spans that have ended."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(**options)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer: Tracer = provider.get_tracer("test")

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found


@pytest.fixture
def traces() -> Traces:
    return Traces()


@pytest.fixture
def once() -> Iterator[Once]:
    with Once("memory://", cache=0) as once:
        yield once


def ids(span: Any) -> tuple[int, int]:
    context = span.get_span_context()
    return context.trace_id, context.span_id


def test_the_sdk_gets_counters_and_histograms(once: Once) -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("test")
    metrics = OpenTelemetryMetrics(once, meter=meter)
    for _ in range(2):
        once.run("charge", SECRET, lambda attempt: 1)
    metrics.stop()
    data: Any = reader.get_metrics_data()
    by_name = {m.name: m for m in data.resource_metrics[0].scope_metrics[0].metrics}
    counted = {
        point.attributes["outcome"]: point.value
        for point in by_name["oncekey.outcomes"].data.data_points
    }
    assert counted == {"miss": 1, "finished": 1, "hit": 1}
    assert by_name["oncekey.body.duration"].unit == "s"
    for name in ("claim", "body", "finish"):
        (point,) = by_name[f"oncekey.{name}.duration"].data.data_points
        assert (point.count, dict(point.attributes)["operation"]) == (1, "charge")
    assert SECRET not in data.to_json()


def test_claim_body_and_finish_are_spans_of_the_callers_trace(once: Once, traces: Traces) -> None:
    OpenTelemetrySpans(once, tracer=traces.tracer)
    seen = []

    def body(attempt: Any) -> int:
        seen.append(ids(get_current_span()))
        with traces.tracer.start_as_current_span("provider call"):
            return 1

    with traces.tracer.start_as_current_span("request") as request:
        result = once.run("charge", SECRET, body, scope="acct_1")
        assert get_current_span() is request
    names = ["oncekey.claim", "provider call", "oncekey.body", "oncekey.finish"]
    assert [s.name for s in traces.spans if s.name not in ("oncekey.key", "request")] == names
    for name in ("oncekey.claim", "oncekey.body", "oncekey.finish"):
        parent = traces.named(name).parent
        assert parent is not None
        assert (parent.trace_id, parent.span_id) == ids(request)
    assert seen == [ids(traces.named("oncekey.body"))]
    nested = traces.named("provider call").parent
    assert nested is not None
    assert nested.span_id == seen[0][1]
    attributes = traces.named("oncekey.body").attributes
    assert attributes is not None
    assert attributes["oncekey.fence"] == result.fence
    assert SECRET not in str([span.to_json() for span in traces.spans])


def test_async_bodies_are_spans_too_and_the_callers_span_is_current_again() -> None:
    traces = Traces()

    async def main() -> None:
        async def body(attempt: Any) -> str:
            with traces.tracer.start_as_current_span("provider call"):
                await asyncio.sleep(0)
            return await attempt.step("pay", lambda key: "paid")  # type: ignore[no-any-return]

        async with AsyncOnce("memory://") as once:
            OpenTelemetrySpans(once, tracer=traces.tracer)
            with traces.tracer.start_as_current_span("request") as request:
                await once.run("charge", "order-1", body)
                assert get_current_span() is request

    asyncio.run(main())
    body = ids(traces.named("oncekey.body"))
    for name in ("provider call", "oncekey.step"):
        parent = traces.named(name).parent
        assert parent is not None
        assert (parent.trace_id, parent.span_id) == body
    request = traces.named("request").get_span_context()
    assert request is not None
    assert body[0] == request.trace_id


def test_spans_of_an_app_behind_the_asgi_middleware_nest_in_the_body() -> None:
    traces = Traces()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        with traces.tracer.start_as_current_span("handler"):
            await send({"type": "http.response.start", "status": 201, "headers": []})
            await send({"type": "http.response.body", "body": b"done"})

    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            OpenTelemetrySpans(once, tracer=traces.tracer)
            guarded = guard(app, Rule("/charges", ["POST"]), once=once)
            with traces.tracer.start_as_current_span("request") as request:
                for _ in range(2):
                    assert (await send_request(guarded)).statuses == [201]
                assert get_current_span() is request

    asyncio.run(main())
    parent = traces.named("handler").parent
    assert parent is not None
    assert parent.span_id == ids(traces.named("oncekey.body"))[1]
    assert traces.named("oncekey.finish").parent == traces.named("oncekey.body").parent
    assert _replay(traces).links[0].context.span_id == parent.span_id


def test_steps_are_spans_within_the_body(once: Once, traces: Traces) -> None:
    OpenTelemetrySpans(once, tracer=traces.tracer)
    once.run("checkout", "cart-1", lambda attempt: attempt.step("pay", lambda key: "paid"))
    step = traces.named("oncekey.step")
    assert step.attributes is not None
    assert step.attributes["oncekey.step"] == "pay"
    assert step.parent is not None
    assert step.parent.span_id == ids(traces.named("oncekey.body"))[1]


def test_a_replay_links_to_the_body_that_ran_in_this_process(once: Once, traces: Traces) -> None:
    OpenTelemetrySpans(once, tracer=traces.tracer)
    for _ in range(2):
        once.run("charge", "order-1", lambda attempt: 1)
    linked = [(link.context.trace_id, link.context.span_id) for link in _replay(traces).links]
    assert linked[0] == ids(traces.named("oncekey.body"))


def test_a_replay_in_another_process_leads_to_the_first_attempt_by_the_keys_trace() -> None:
    store = MemoryStore()
    first, second = Traces(), Traces()  # each stands for a process: they share the store alone
    with Once(store) as once:
        OpenTelemetrySpans(once, tracer=first.tracer)
        result = once.run("charge", "order-1", lambda attempt: 1)
    with Once(store) as once:
        OpenTelemetrySpans(once, tracer=second.tracer)
        assert once.run("charge", "order-1", lambda attempt: 1).replayed
    (link,) = _replay(second).links
    key = first.named("oncekey.key")
    context = key.get_span_context()
    assert context is not None
    assert link.context.trace_id == context.trace_id
    assert key.attributes is not None
    assert context.trace_id == trace_id_of(str(key.attributes["oncekey.tag"]), result.fence)
    assert [link.context.span_id for link in key.links] == [ids(first.named("oncekey.body"))[1]]


def test_a_trace_that_is_not_sampled_leaves_nothing_in_the_keys_trace(once: Once) -> None:
    traces = Traces(sampler=ALWAYS_OFF)
    OpenTelemetrySpans(once, tracer=traces.tracer)
    once.run("charge", "order-1", lambda attempt: 1)
    assert traces.spans == []


def test_a_store_that_is_away_is_an_error_on_the_claims_span(traces: Traces) -> None:
    faulty = FaultyStore(MemoryStore())
    with Once(faulty) as once:
        OpenTelemetrySpans(once, tracer=traces.tracer)
        faulty.down = True
        with pytest.raises(StoreUnavailable):
            once.run("charge", "order-1", lambda attempt: 1)
    assert traces.named("oncekey.claim").status.status_code is StatusCode.ERROR


def test_a_body_that_raises_ends_its_span(once: Once, traces: Traces) -> None:
    OpenTelemetrySpans(once, tracer=traces.tracer)

    def body(attempt: object) -> None:
        raise KeyError("declined")

    with pytest.raises(KeyError):
        once.run("charge", "order-1", body)
    assert traces.named("oncekey.body").end_time is not None
    assert not get_current_span().is_recording()


def _replay(traces: Traces) -> ReadableSpan:
    return traces.named("oncekey.replay")
