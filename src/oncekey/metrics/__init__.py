"""Metrics, spans and structured logs: subscribers of an engine, and the exporter of a store.

    prometheus.PrometheusMetrics          counters and histograms, with `oncekey[prometheus]`
    opentelemetry.OpenTelemetryMetrics    the same, with `oncekey[opentelemetry]`
    spans.OpenTelemetrySpans              claim, body, finish and steps as spans
    structured_logs.StructuredLogs        events as structlog or JSON lines
    exporter                              the gauges of a store, for one process per store

Nothing here is imported by the engine.
"""
