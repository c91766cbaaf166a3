"""A guarded app on a real server, with what a test does to it: send requests, count effects, open
gates.

The apps share a folder with the test. Each effect is a line in the file `effects`. A handler that
reaches a gate creates `<gate>.here` and waits until the test has created `<gate>.go`. The file
`ahead` moves their clock.
"""

from __future__ import annotations

import gzip
import json
import signal
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.http.socket_client import Connection, Response
from tests.support.servers.http_servers import HttpServer
from tests.support.servers.processes import wait_until

ROOT = Path(__file__).parents[2]
ALICE = ("Authorization", "Bearer alice")
BOB = ("Authorization", "Bearer bob")


class ServedApp:
    """An app on a server, and the folder that it shares with the test."""

    def __init__(self, server: HttpServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self._keys = 0

    def connect(self) -> Connection:
        return Connection(self.server.port)

    def post(self, path: str, key: str | None, body: Any = None, **more: Any) -> Response:
        """Send a request over a connection of its own; `more` as for `request_on`."""
        with self.connect() as connection:
            return self.request_on(connection, path, key, body, **more)

    def request_on(
        self,
        connection: Connection,
        path: str,
        key: str | None,
        body: Any = None,
        *,
        who: tuple[str, str] | None = ALICE,
        method: str = "POST",
        headers: list[tuple[str, str]] | None = None,
    ) -> Response:
        return connection.request(method, path, self.headers(key, who, headers), _as_bytes(body))

    def headers(
        self,
        key: str | None,
        who: tuple[str, str] | None = ALICE,
        more: list[tuple[str, str]] | None = None,
    ) -> list[tuple[str, str]]:
        headers = [("Content-Type", "application/json"), *(more or [])]
        if who is not None:
            headers.append(who)
        if key is not None:
            headers.append(("Idempotency-Key", key))
        return headers

    def fresh_key(self) -> str:
        self._keys += 1
        return f"key-{self._keys}"

    # --- what the app has done ------------------------------------------------------------------

    def effects(self, prefix: str = "") -> int:
        """How many effects there are whose line begins with `prefix`."""
        file = self.folder / "effects"
        lines = file.read_text().splitlines() if file.exists() else []
        return sum(line.startswith(prefix) for line in lines)

    def wait_at_gate(self, gate: str) -> None:
        """Wait until a handler has reached the gate."""
        wait_until((self.folder / f"{gate}.here").exists, f"the handler is at {gate}")

    def open_gate(self, gate: str) -> None:
        (self.folder / f"{gate}.go").touch()

    def move_clock(self, seconds: float) -> None:
        """Move the clock of the app's engine and store ahead: they read it from this file."""
        file, made = self.folder / "ahead", self.folder / "ahead.new"
        before = int(file.read_text()) if file.exists() else 0
        made.write_text(str(before + int(seconds * 1_000_000)))
        made.rename(file)

    def lease_end(self) -> int:
        """When the newest lease in the app's store ends, by the app's clock, in microseconds."""
        with closing(sqlite3.connect(self.folder / "keys.db", timeout=60)) as store:
            (until,) = store.execute("SELECT max(lease_until) FROM oncekey_records").fetchone()
        return int(until)

    def log_count(self, log: str, name: str) -> int:
        """How often the app has written `name` to one of its logs."""
        file = self.folder / log
        return file.read_text().splitlines().count(name) if file.exists() else 0

    def wait_logged(self, log: str, name: str) -> None:
        wait_until(lambda: self.log_count(log, name) > 0, f"{name} has {log}")

    def reset(self) -> None:
        """Forget all effects and close all gates, between tests."""
        for file in self.folder.iterdir():
            if file.name == "effects" or file.suffix in (".here", ".go"):
                file.unlink()


def is_replay(response: Response) -> bool:
    return response.one("X-Idempotency-Replayed") == "true"


def content(response: Response) -> bytes:
    """The body, without a gzip coding that a middleware outside the guard has added."""
    is_packed = response.one("Content-Encoding") == "gzip"
    return gzip.decompress(response.body) if is_packed else response.body


def problem_code(response: Response) -> str:
    """The code of a refusal; "" for any other response."""
    if response.one("Content-Type") != "application/problem+json":
        return ""
    details = json.loads(content(response))
    assert details["status"] == response.status
    return str(details["type"]).removeprefix("/policy#")


def _as_bytes(body: Any) -> bytes:
    return body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()


@contextmanager
def serve_app(
    server_type: type[HttpServer], app: str = "tests.http.apps.starlette_app:app", **options: Any
) -> Iterator[ServedApp]:
    """Serve an app; `options` are those of the server."""
    with tempfile.TemporaryDirectory(prefix="oncekey-http-") as name:
        env = {"GUARDED_FOLDER": name, **options.pop("env", {})}
        with server_type(app, cwd=ROOT, env=env, **options) as server:
            yield ServedApp(server, Path(name))


def stop_server(app: ServedApp) -> None:
    """Stop the server, and wait until it refuses connections."""
    app.server.signal(signal.SIGTERM)
    wait_until(lambda: _refuses(app), "the server takes no more connections")


def _refuses(app: ServedApp) -> bool:
    try:
        app.connect().close()
    except ConnectionError:
        return True
    return False


def restart_server(app: ServedApp) -> None:
    """Wait until a stopped server has ended, and start it again."""
    assert app.server.wait(60) in (0, -signal.SIGTERM)
    app.server.start()
