"""A server is stopped while requests run: their outcomes are stored, and nothing runs twice.

With its usual grace every server waits for its requests, or at least for the app's lifespan, and
the middleware holds that back until every outcome is stored (I14). With the least grace:

* Uvicorn (--timeout-graceful-shutdown 0) and Hypercorn (--graceful-timeout 0) cancel their requests
  and then run the lifespan: the runs outlive the requests, so nothing is lost. For an app without a
  lifespan they end at once. Uvicorn then dies of the signal; Hypercorn cancels what is left.
* Granian (--workers-kill-timeout, one second at least) cancels nothing. It waits for its requests,
  then for the lifespan, and kills its worker when the time is over.
* From Python 3.12.1 on, Hypercorn cancels nothing either: it waits for its requests without limit,
  whatever its grace (its issue 308), because asyncio's servers now wait for their connections.

If the process ended while a handler ran, nobody can know what that did: its key is "unknown" when
its lease is over, and stays so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.http.app_server import (
    ServedApp,
    problem_code,
    restart_server,
    serve_app,
    stop_server,
)
from tests.http.gated_request import APP, PATIENT, SERVERS, GatedRequest, check_outcome
from tests.support.servers import require

LEAST = {name: 1 if name == "granian" else 0 for name in SERVERS}
LIFESPAN, BARE = "plain", "bare"

# The server, the application, and the grace: None is the usual one.
CASES: list[tuple[str, str, int | None]] = [
    (server, app, None) for server in SERVERS for app in (LIFESPAN, BARE)
]
CANCELLING = [server for server in SERVERS if server != "granian"]
ENDING = [
    ("uvicorn-h11", BARE),
    pytest.param("uvicorn-httptools", BARE, marks=pytest.mark.soak),
    pytest.param("granian", BARE, marks=pytest.mark.soak),
    ("granian", LIFESPAN),
]
if sys.version_info >= (3, 12, 1):
    CASES += [("hypercorn", LIFESPAN, 0), ("hypercorn", BARE, 0)]
    CANCELLING.remove("hypercorn")
else:
    ENDING.append(("hypercorn", BARE))


@contextmanager
def running(name: str, around: str, **more: Any) -> Iterator[ServedApp]:
    kind, options = SERVERS[name]
    require(lambda: kind("x:y", **options))  # skips by name where it is not installed
    with serve_app(kind, APP, env={"GATED_KIND": around}, **options, **more) as made:
        yield made


@pytest.mark.parametrize(("name", "around", "grace"), CASES)
def test_i14_with_the_usual_grace_every_request_is_answered(
    name: str, around: str, grace: int | None
) -> None:
    """Or with a grace that the server does not heed."""
    with running(name, around, **(PATIENT[name] if grace is None else {"graceful": grace})) as app:
        waiting, gone, late = (GatedRequest(app, kind) for kind in ("plain", "large", "background"))
        connection = waiting.start()
        gone.start().abort()
        app.open_gate(late.key)
        with late.start() as answered:
            assert answered.read_response().status == 202
            app.wait_at_gate(f"{late.key}-after")
            stop_server(app)
            for one in (waiting, gone, late):
                one.open_gates()
            answer = connection.read_response()
            assert (answer.status, answer.one("X-Idempotency-Replayed")) == (201, None)
            connection.close()
        restart_server(app)
        assert app.log_count("effects", f"{late.key}-after") == 1, "tasks end too"
        for one in (waiting, gone, late):
            check_outcome(one)


@pytest.mark.parametrize("name", CANCELLING)
def test_i14_requests_that_the_server_cancels_are_stored(name: str) -> None:
    """Their runs continue during the lifespan's shutdown; only the connections are lost."""
    with running(name, LIFESPAN, graceful=LEAST[name]) as app:
        waiting, gone = GatedRequest(app, "large"), GatedRequest(app, "large")
        stream, late = GatedRequest(app, "stream"), GatedRequest(app, "background")
        connections = [one.start() for one in (waiting, gone, stream)]
        connections[1].abort()
        app.open_gate(late.key)
        connections.append(late.start())
        app.wait_at_gate(f"{late.key}-after")
        stop_server(app)
        for one in (waiting, gone, stream, late):
            app.wait_logged("ended", one.key)  # cancelled, as nothing has let them go
        for one in (waiting, gone, stream, late):
            one.open_gates()
        restart_server(app)
        assert app.log_count("effects", f"{late.key}-after") == 1
        for one in (waiting, gone, stream, late):
            check_outcome(one)
        for connection in connections:
            connection.close()


@pytest.mark.parametrize(("name", "around"), ENDING)
def test_i1_a_handler_that_was_killed_with_its_server_is_not_run_again(
    name: str, around: str
) -> None:
    with running(name, around, graceful=LEAST[name]) as app:
        waiting, gone = GatedRequest(app, "plain"), GatedRequest(app, "stream")
        with waiting.start():
            gone.start().abort()
            stop_server(app)
            restart_server(app)  # though no gate is open
        app.move_clock(3_600)
        for one in (waiting, gone):
            for _ in range(2):
                answer = one.retry()
                assert (answer.status, problem_code(answer)) == (409, "outcome-unknown")
            one.open_gates()
            assert problem_code(one.send()) == "outcome-unknown"
            assert one.effects() == 1
