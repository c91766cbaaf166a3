"""The guarded app on a real server, and what a test does to it: ask, count effects, open gates."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.http.socket_client import Connection, Response
from tests.support.servers.http import HttpServer
from tests.support.servers.processes import wait_until

ROOT = Path(__file__).parents[2]
ALICE = ("Authorization", "Bearer alice")
BOB = ("Authorization", "Bearer bob")


class ServedApp:
    """One server with a folder of its own."""

    def __init__(self, server: HttpServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self._keys = 0

    def connect(self) -> Connection:
        return Connection(self.server.port)

    def post(self, path: str, key: str | None, body: Any = None, **more: Any) -> Response:
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
        return connection.request(method, path, self.headers(key, who, headers), _bytes(body))

    def headers(
        self,
        key: str | None,
        who: tuple[str, str] | None = ALICE,
        more: list[tuple[str, str]] | None = None,
    ) -> list[tuple[str, str]]:
        made = [("Content-Type", "application/json"), *(more or [])]
        if who is not None:
            made.append(who)
        if key is not None:
            made.append(("Idempotency-Key", key))
        return made

    def fresh_key(self) -> str:
        self._keys += 1
        return f"key-{self._keys}"

    # --- the app's side -------------------------------------------------------------------------

    def effects(self, what: str = "") -> int:
        file = self.folder / "effects"
        lines = file.read_text().splitlines() if file.exists() else []
        return sum(line.startswith(what) for line in lines)

    def wait_at_gate(self, gate: str) -> None:
        wait_until((self.folder / f"{gate}.here").exists, f"the handler is at {gate}")

    def open_gate(self, gate: str) -> None:
        (self.folder / f"{gate}.go").touch()

    def log_count(self, what: str, name: str) -> int:
        """How often the app has written down `name`, in one of its lists."""
        file = self.folder / what
        return file.read_text().splitlines().count(name) if file.exists() else 0

    def wait_logged(self, what: str, name: str) -> None:
        wait_until(lambda: self.log_count(what, name) > 0, f"{name} has {what}")

    def reset(self) -> None:
        """Between tests: no effects, no open gates."""
        for file in self.folder.iterdir():
            if file.name == "effects" or file.suffix in (".here", ".go"):
                file.unlink()


def _bytes(body: Any) -> bytes:
    return body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()


@contextmanager
def serve_app(
    kind: type[HttpServer], app: str = "tests.http.apps.starlette_app:app", **options: Any
) -> Iterator[ServedApp]:
    with tempfile.TemporaryDirectory(prefix="oncekey-http-") as name:
        folder = Path(name)
        env = {"GUARDED_FOLDER": name, **options.pop("env", {})}
        with kind(app, cwd=ROOT, env=env, **options) as server:
            yield ServedApp(server, folder)
