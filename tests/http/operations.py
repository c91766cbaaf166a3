"""One operation on a server, from its first bytes to what a retry is told.

Owns the talk to the handlers of tests.http.apps.held on every ASGI server, and the checks that do
not depend on what happened to a client.
"""

from __future__ import annotations

import functools
import gzip
import json
from typing import Any

from tests.http.served import Served
from tests.http.wire import Connection, Response
from tests.support.servers import Granian, HttpServer, Hypercorn, Uvicorn
from tests.support.servers.processes import wait_until

APP = "tests.http.apps.held:app"
SERVERS: dict[str, tuple[type[HttpServer], dict[str, Any]]] = {
    "uvicorn-h11": (Uvicorn, {"http": "h11"}),
    "uvicorn-httptools": (Uvicorn, {"http": "httptools"}),
    "hypercorn": (Hypercorn, {}),
    "granian": (Granian, {}),
}
BODY = b'{"cents": 500}'


class Operation:
    """One request to a handler, under a key and with gates of its own."""

    def __init__(self, app: Served, handler: str) -> None:
        self.app = app
        self.handler = handler
        self.key = app.fresh_key()
        self.path = f"/{handler}?name={self.key}"
        self.headers = app.headers(self.key, more=[("Accept-Encoding", "gzip")])

    def begin(self) -> Connection:
        """Send it, and wait until the handler is at its gate."""
        wire = self.app.connect()
        wire.request("POST", self.path, self.headers, BODY)
        self.app.wait_here(self.key)
        return wire

    def let_go(self) -> None:
        self.app.let_go(self.key)
        self.app.let_go(f"{self.key}-after")

    def ask(self, body: bytes = BODY) -> Response:
        with self.app.connect() as wire:
            return self.ask_on(wire, body)

    def ask_on(self, wire: Connection, body: bytes = BODY) -> Response:
        return wire.ask("POST", self.path, self.headers, body)

    def asked(self) -> Response:
        self.let_go()
        return self.ask()

    def retry(self) -> Response:
        """What the retry is told when the first attempt has come to an end."""
        answers: list[Response] = []

        def is_over() -> bool:
            answers.append(self.ask())
            return problem(answers[-1]) != "in-flight"

        wait_until(is_over, "the first attempt has ended")
        return answers[-1]

    def effects(self) -> int:
        return self.app.noted("effects", self.key)


def content(response: Response) -> bytes:
    """Its body, without the encoding that a layer outside of ours has added."""
    is_packed = response.one("Content-Encoding") == "gzip"
    return gzip.decompress(response.body) if is_packed else response.body


def problem(response: Response) -> str:
    if response.one("Content-Type") != "application/problem+json":
        return ""
    return str(json.loads(content(response))["type"]).removeprefix("/policy#")


@functools.cache
def undisturbed(app: Served, handler: str) -> Response:
    """What a client gets that nothing happens to."""
    return Operation(app, handler).asked()


def check_outcome(operation: Operation) -> None:
    """It ran once, and its retry gets all of what it would have answered."""
    expected = undisturbed(operation.app, operation.handler)
    again = operation.retry()
    if operation.handler == "raises":
        assert (again.status, problem(again)) == (500, "failed")
        assert b"s3cret" not in content(again)
    else:
        assert again.one("X-Idempotency-Replayed") == "true"
        assert expected.one("X-Idempotency-Replayed") is None
        assert again.status == expected.status < 500
        assert content(again) == content(expected) != b""
        for name in ("Content-Type", "Location"):
            assert again.one(name) == expected.one(name)
    assert operation.effects() == 1


def go_away(wire: Connection, how: str) -> None:
    if how == "reset":
        wire.abort()
    elif how == "goodbye":
        wire.close()
    else:
        wire.half_close()
