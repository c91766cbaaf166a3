"""One keyed request to a handler of apps/gated_handlers.py, from its first bytes to its retry.

The handler waits at a gate until the test opens it. The checks here do not depend on what happened
to the client of the first request.
"""

from __future__ import annotations

import functools
import gzip
import json
from typing import Any

from tests.http.app_server import ServedApp
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
BODY = b'{"cents": 500}'


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
        self.open_gates()
        return self.send()

    def retry(self) -> Response:
        """What the retry is told when the first attempt has come to an end."""
        answers: list[Response] = []

        def is_over() -> bool:
            answers.append(self.send())
            return problem_code(answers[-1]) != "in-flight"

        wait_until(is_over, "the first attempt has ended")
        return answers[-1]

    def effects(self) -> int:
        return self.app.log_count("effects", self.key)


def content(response: Response) -> bytes:
    """Its body, without the encoding that a layer outside of ours has added."""
    is_packed = response.one("Content-Encoding") == "gzip"
    return gzip.decompress(response.body) if is_packed else response.body


def problem_code(response: Response) -> str:
    if response.one("Content-Type") != "application/problem+json":
        return ""
    return str(json.loads(content(response))["type"]).removeprefix("/policy#")


@functools.cache
def undisturbed_response(app: ServedApp, handler: str) -> Response:
    """What a client gets that nothing happens to."""
    return GatedRequest(app, handler).send_undisturbed()


def check_outcome(operation: GatedRequest) -> None:
    """It ran once, and its retry gets all of what it would have answered."""
    expected = undisturbed_response(operation.app, operation.handler)
    again = operation.retry()
    if operation.handler == "raises":
        assert (again.status, problem_code(again)) == (500, "failed")
        assert b"s3cret" not in content(again)
    else:
        assert again.one("X-Idempotency-Replayed") == "true"
        assert expected.one("X-Idempotency-Replayed") is None
        assert again.status == expected.status < 500
        assert content(again) == content(expected) != b""
        for name in ("Content-Type", "Location"):
            assert again.one(name) == expected.one(name)
    assert operation.effects() == 1


def disconnect(connection: Connection, how: str) -> None:
    if how == "reset":
        connection.abort()
    elif how == "goodbye":
        connection.close()
    else:
        connection.half_close()
