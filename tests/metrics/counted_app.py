"""The app of test_workers.py: Flask on Gunicorn, each worker counts into the shared folder.

`GET /metrics` sums up what all workers have counted, as prometheus-client's documentation has it.
"""

from __future__ import annotations

import os

from flask import Flask, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from oncekey import Once
from oncekey.http.flask import Idempotency, idempotent
from oncekey.metrics.prometheus import PrometheusMetrics

app = Flask(__name__)
once = Once(os.environ["COUNTED_STORE"], cache=0)
idempotency = Idempotency(app, once=once, caller=lambda: "acct_1")
PrometheusMetrics(once)


@app.post("/charges")
@idempotent()
def charge() -> dict[str, int]:
    return {"pid": os.getpid()}


@app.get("/metrics")
def metrics() -> Response:
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)
