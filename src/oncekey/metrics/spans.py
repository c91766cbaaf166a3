"""Spans for OpenTelemetry, by its API alone: claim, body, finish, steps and replays.

    OpenTelemetrySpans(once)                # to the tracer provider that your app has set

The body's span is current while the body runs, so its own spans nest in it. A replay runs nothing;
its span links to the attempt that did:

*   to its body's span, if that ran in this process, and not too many others since;
*   to the trace of the key, from any process. The trace id of a key follows from its tag and its
    fence (`trace_id_of`), so nothing has to be stored. In that trace the attempt has left a span
    `oncekey.key`, which links to its body's span.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import Final, NamedTuple

from opentelemetry import context as contexts
from opentelemetry import trace as otel
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, StatusCode, TraceFlags

from oncekey import __version__
from oncekey.core.events import Event, EventKind
from oncekey.engine.event_bus import End, Observer
from oncekey.engine.once_base import OnceBase
from oncekey.metrics.event_counts import OUTCOMES

ATTEMPTS_REMEMBERED: Final = 10_000

# A claim's span is made when its body begins. The others come beside another event of the same
# attempt, or belong to no attempt at all.
_WITHOUT_SPAN: Final = frozenset(
    (
        EventKind.CLAIMED,
        EventKind.TAKEOVER,
        EventKind.UNRECORDED,
        EventKind.TOMBSTONE,
        EventKind.GUARANTEE,
        EventKind.UNGUARDED,
        EventKind.RESOLVED,
        EventKind.RECOVERED,
        EventKind.UNPROTECTED,
        EventKind.DEAD_LETTER,
        EventKind.PARKED,
    )
)
_ENDS: Final = frozenset((EventKind.FINISHED, EventKind.RELEASED))
_FAILURES: Final = frozenset((EventKind.UNKNOWN, EventKind.LOST, EventKind.UNAVAILABLE))


def trace_id_of(tag: str, fence: int) -> int:
    """The id of the trace of a key: of the attempt with this fence. `oncekey show` prints both."""
    return fence << 64 | int(tag, 16) << 16


class _Traced(NamedTuple):
    """The span of a body that is sampled, and the one around it."""

    body: SpanContext
    outer: SpanContext


class OpenTelemetrySpans(Observer):
    """Makes the spans of an engine's attempts."""

    def __init__(self, once: OnceBase, *, tracer: otel.Tracer | None = None) -> None:
        self._tracer = tracer or otel.get_tracer("oncekey", __version__)
        self._bodies: OrderedDict[tuple[str, int], _Traced] = OrderedDict()
        self._lock = threading.Lock()
        self.stop = once.observe(self)

    # --- the engine's calls ---------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        kind = event.kind
        if kind in _WITHOUT_SPAN:
            return
        if event.body_us or event.finish_us or kind in _ENDS:
            traced = self._bodies.get((event.tag, event.fence))
            if traced is not None:  # else it is not sampled
                # What is current may be a span of the body's, which answers before it has ended.
                outer = _within(traced.outer)
                self._past_span("oncekey.finish", event, event.finish_us, context=outer)
                if kind is EventKind.FINISHED:
                    self._leave_key_span(event, traced.body)
        elif _is_left_out():
            return
        elif kind is EventKind.REPLAYED:
            self._past_span("oncekey.replay", event, event.elapsed_us, self._links(event))
        else:
            self._past_span("oncekey.claim", event, event.elapsed_us)

    def on_body(self, event: Event) -> End | None:
        if _is_left_out():
            return None
        span = self._tracer.start_span("oncekey.body")
        if not span.is_recording():
            return None
        span.set_attributes(_attributes(event))
        body, outer = span.get_span_context(), otel.get_current_span().get_span_context()
        self._remember(event, _Traced(body, outer if outer.is_valid else body))
        # Only now it is known that the trace is sampled.
        self._past_span("oncekey.claim", event, event.elapsed_us)
        return _make_current(span)

    def on_step(self, operation: str, tag: str, step: str) -> End | None:
        if _is_left_out():
            return None
        attributes = {"oncekey.operation": operation, "oncekey.tag": tag, "oncekey.step": step}
        return _make_current(self._tracer.start_span("oncekey.step", attributes=attributes))

    # --- spans and links ------------------------------------------------------------------------

    def _past_span(
        self,
        name: str,
        event: Event,
        elapsed_us: int,
        links: tuple[Link, ...] = (),
        context: Context | None = None,
    ) -> None:
        """A span that ends now and began so long ago, inside of what is current by default."""
        now = time.time_ns()
        span = self._tracer.start_span(
            name,
            context,
            attributes=_attributes(event),
            links=links,
            start_time=now - elapsed_us * 1_000,
        )
        if event.kind in _FAILURES:
            span.set_status(StatusCode.ERROR, OUTCOMES[event.kind])
        span.end(now)

    def _leave_key_span(self, event: Event, body: SpanContext) -> None:
        """Leave a span in the key's own trace, for replays in other processes."""
        parent = _within(_key_context(event))
        span = self._tracer.start_span(
            "oncekey.key", context=parent, attributes=_attributes(event), links=(Link(body),)
        )
        span.end()

    def _links(self, event: Event) -> tuple[Link, ...]:
        traced = self._bodies.get((event.tag, event.fence))
        key = Link(_key_context(event))
        return (key,) if traced is None else (Link(traced.body), key)

    def _remember(self, event: Event, traced: _Traced) -> None:
        with self._lock:
            self._bodies[event.tag, event.fence] = traced
            if len(self._bodies) > ATTEMPTS_REMEMBERED:
                self._bodies.popitem(last=False)


def _is_left_out() -> bool:
    """True inside of a trace that is not sampled: there no span needs to be made."""
    outer = otel.get_current_span().get_span_context()
    return outer.is_valid and not outer.trace_flags.sampled


def _key_context(event: Event) -> SpanContext:
    """A place in the trace of a key; no span has it."""
    sampled = TraceFlags(TraceFlags.SAMPLED)
    trace_id = trace_id_of(event.tag, event.fence)
    return SpanContext(trace_id, event.fence, is_remote=True, trace_flags=sampled)


def _within(outer: SpanContext) -> Context:
    """A context in which new spans are children of that span."""
    return otel.set_span_in_context(NonRecordingSpan(outer), Context())


def _make_current(span: Span) -> End:
    """Make a span current; the returned function ends it and sets back what was current. Not by
    `detach`, which only the task that has attached may call: a body may end from another one."""
    before = contexts.get_current()
    contexts.attach(otel.set_span_in_context(span))

    def end() -> None:
        if otel.get_current_span() is span:
            contexts.attach(before)
        span.end()

    return end


def _attributes(event: Event) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "oncekey.operation": event.operation,
        "oncekey.scope": event.scope,
        "oncekey.tag": event.tag,
        "oncekey.outcome": OUTCOMES[event.kind],
        "oncekey.surface": event.surface,
    }
    if event.fence:
        attributes["oncekey.fence"] = event.fence
        attributes["oncekey.attempt"] = event.attempt
    if event.route:
        attributes["oncekey.route"] = event.route
    return attributes
