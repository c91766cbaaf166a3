"""One keyed request to a handler of apps/gated_handlers.py, from its first bytes to its retry.

The handler waits at a gate until the test opens it. The checks here do not depend on what happened
to the client of the first request.
"""

from __future__ import annotations

import functools
from typing import Any

from tests.http.app_server import ServedApp, content, is_replay, problem_code
from tests.http.socket_client import Connection, Response
from tests.support.servers import Granian, HttpServer, Hypercorn, Uvicorn
from tests.support.servers.processes import wait_until

APP = "tests.http.apps.gated_handlers:app"
SERVERS: dict[str, tuple[type[HttpServer], dict[str, Any]]] = {
    "uvicorn-h11": (Uvicorn, {"http": "h11"}),
    "uvicorn-httptools": (Uvicorn, {"http": "httptools"}),
    "hypercorn": (Hypercorn, {}),
    "granian": (Granian, {}),
}
# Each server waits so long for its requests that the test decides when they end. Hypercorn's usual
# three seconds may be over before a busy machine opens a gate; the others' usual grace is longer.
PATIENT: dict[str, dict[str, Any]] = {name: {} for name in SERVERS} | {
    "hypercorn": {"graceful": 60}
}
BODY = b'{"cents": 500}'
RAISING = ("raises", "view/raises")  # handlers whose error reaches the guard


class GatedRequest:
    """One request to a handler, under a key and with gates of its own."""

    def __init__(self, app: ServedApp, handler: str) -> None:
        self.app = app
        self.handler = handler
        self.key = app.fresh_key()
        self.path = f"/{handler}?name={self.key}"
        self.headers = app.headers(self.key, more=[("Accept-Encoding", "gzip")])

    def start(self) -> Connection:
        """Send it, and wait until the handler is at its gate."""
        connection = self.app.connect()
        connection.send_request("POST", self.path, self.headers, BODY)
        self.app.wait_at_gate(self.key)
        return connection

    def open_gates(self) -> None:
        self.app.open_gate(self.key)
        self.app.open_gate(f"{self.key}-after")

    def send(self, body: bytes = BODY) -> Response:
        with self.app.connect() as connection:
            return self.send_on(connection, body)

    def send_on(self, connection: Connection, body: bytes = BODY) -> Response:
        return connection.request("POST", self.path, self.headers, body)

    def send_undisturbed(self) -> Response:
        """Send it with all gates open."""
        self.open_gates()
        return self.send()

    def retry(self) -> Response:
        """Send it again until the first attempt has ended; the response after that."""
        responses: list[Response] = []

        def has_ended() -> bool:
            responses.append(self.send())
            return problem_code(responses[-1]) != "in-flight"

        wait_until(has_ended, "the first attempt has ended")
        return responses[-1]

    def effects(self) -> int:
        return self.app.log_count("effects", self.key)


@functools.cache
def undisturbed_response(app: ServedApp, handler: str) -> Response:
    """What a client gets whose connection nothing happens to."""
    return GatedRequest(app, handler).send_undisturbed()


def check_outcome(request: GatedRequest) -> None:
    """Check that it ran once, and that a retry gets the response of an undisturbed request."""
    expected = undisturbed_response(request.app, request.handler)
    again = request.retry()
    if request.handler in RAISING:
        assert (again.status, problem_code(again)) == (500, "failed")
        assert b"s3cret" not in content(again)
    else:
        assert (is_replay(again), is_replay(expected)) == (True, False)
        assert again.status == expected.status < 500
        assert content(again) == content(expected) != b""
        for name in ("Content-Type", "Location"):
            assert again.one(name) == expected.one(name)
    assert request.effects() == 1


def disconnect(connection: Connection, how: str) -> None:
    """End the connection: "reset", "goodbye" (a plain close), or half of it."""
    if how == "reset":
        connection.abort()
    elif how == "goodbye":
        connection.close()
    else:
        connection.half_close()
