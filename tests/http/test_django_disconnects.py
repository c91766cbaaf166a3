"""Clients that disconnect from Django under ASGI, and a server that is stopped after they did.

Django cancels the request of such a client. The view that it has begun goes on nevertheless, with
its thread, its database connections and its open transaction; there is one effect, and the retry
gets what an undisturbed client would have got (I1, I3, I14). This holds behind the middleware and
for decorated views, which differ: the first waits for the rest of the project as for async code,
the second run in a thread of Django's directly.

With ONCEKEY_SOAK=1 on every server, and in every way that a client can go.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.http.app_server import (
    ServedApp,
    is_replay,
    problem_code,
    restart_server,
    serve_app,
    stop_server,
)
from tests.http.gated_request import PATIENT, SERVERS, GatedRequest, check_outcome, disconnect
from tests.support.servers import require

SOAK = os.environ.get("ONCEKEY_SOAK") == "1"
APP = "tests.http.apps.gated_django:app"
WAYS = ("reset", "goodbye") if SOAK else ("reset",)
BOTH = ("plain", "calls_async", "large", "stream", "refuses", "rows")
VIEWS = [f"rule/{view}" for view in (*BOTH, "awaits", "awaits_rows")]
VIEWS += [f"view/{view}" for view in (*BOTH, "raises")]
IN_ITS_KEYS_TRANSACTION = "view/rows"


SOME = ("uvicorn-h11", "hypercorn")
OTHERS = [pytest.param(name, marks=pytest.mark.soak) for name in SERVERS if name not in SOME]


@pytest.fixture(scope="module", params=[*SOME, *OTHERS])
def app(request: pytest.FixtureRequest) -> Iterator[ServedApp]:
    kind, options = SERVERS[request.param]
    require(lambda: kind("x:y", **options))  # skips by name where it is not installed
    with serve_app(kind, APP, **options, **PATIENT[request.param]) as made:
        yield made


@pytest.mark.parametrize("view", VIEWS)
def test_i14_a_disconnect_during_a_view_loses_nothing(app: ServedApp, view: str) -> None:
    for how in WAYS:
        operation = GatedRequest(app, view)
        connection = operation.start()
        disconnect(connection, how)
        app.wait_logged("gone", operation.key)
        if view != IN_ITS_KEYS_TRANSACTION:  # there SQLite lets a retry wait
            assert problem_code(operation.send()) == "in-flight", "it runs on, now alone"
        operation.open_gates()
        check_outcome(operation)
        if view.endswith("/rows"):
            app.wait_logged("effects", f"{operation.key} committed")
        app.wait_logged("ended", operation.key)


@pytest.mark.parametrize("view", ["rule/large", "view/large", "rule/stream", "view/stream"])
def test_i14_a_disconnect_during_the_response_loses_nothing(app: ServedApp, view: str) -> None:
    operation = GatedRequest(app, view)
    connection = operation.start()
    operation.open_gates()
    assert connection.wait_for_bytes(), "the first bytes are here"
    connection.abort()
    check_outcome(operation)
    app.wait_logged("ended", operation.key)


@pytest.mark.parametrize("view", ["rule/endless", "view/endless"])
def test_a_response_too_long_to_hold_is_produced_to_its_end_after_a_disconnect(
    app: ServedApp, view: str
) -> None:
    """Its outcome is stored when the buffer is full, and the rest is read after that."""
    operation = GatedRequest(app, view)
    operation.start().abort()
    app.wait_logged("gone", operation.key)
    assert problem_code(operation.send()) == "not-replayable"
    operation.open_gates()
    app.wait_logged("effects", f"{operation.key} sent all")
    app.wait_logged("ended", operation.key)
    assert problem_code(operation.send()) == "not-replayable"
    assert operation.effects() == 1


def test_i14_a_server_that_stops_lets_the_views_of_clients_that_left_end(app: ServedApp) -> None:
    """The last test, because it restarts the server."""
    views = ("rule/awaits", "rule/plain", "view/plain", "view/calls_async")
    gone = [GatedRequest(app, view) for view in views]
    for each in gone:
        each.start().abort()
        app.wait_logged("gone", each.key)
    waiting = GatedRequest(app, "rule/calls_async")
    connection = waiting.start()
    stop_server(app)
    for each in (*gone, waiting):
        each.open_gates()
    assert connection.read_response().status == 200
    connection.close()
    restart_server(app)
    for each in (*gone, waiting):
        check_outcome(each)


@pytest.mark.soak
@pytest.mark.parametrize("server", SOME)
def test_i1_a_view_that_a_server_without_grace_cuts_off_is_not_run_again(server: str) -> None:
    """Uvicorn dies at once; Hypercorn ends its event loop, and then waits for the threads. A view
    that needed the loop has an unknown outcome; one that did not may end."""
    kind, options = SERVERS[server]
    require(lambda: kind("x:y", **options))
    with serve_app(kind, APP, graceful=0, **options) as app:
        cut_off = []
        for view in ("rule/plain", "rule/awaits", "view/plain", "view/calls_async"):
            for is_gone in (False, True):
                operation = GatedRequest(app, view)
                connection = operation.start()
                if is_gone:
                    connection.abort()
                    app.wait_logged("gone", operation.key)
                cut_off.append((operation, connection))
        stop_server(app)
        for operation, _ in cut_off:
            operation.open_gates()
        restart_server(app)
        app.move_clock(3_600)
        for operation, connection in cut_off:
            answer = operation.retry()
            assert is_replay(answer) or problem_code(answer) == "outcome-unknown"
            assert operation.effects() == 1
            connection.close()
