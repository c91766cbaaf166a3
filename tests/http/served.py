"""The guarded app on a real server, and what a test does to it: ask, count effects, open gates."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.http.wire import Connection, Response
from tests.support.servers.http import HttpServer
from tests.support.servers.processes import wait_until

ROOT = Path(__file__).parents[2]
ALICE = ("Authorization", "Bearer alice")
BOB = ("Authorization", "Bearer bob")


class Served:
    """One server with a folder of its own."""

    def __init__(self, server: HttpServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self._keys = 0

    def connect(self) -> Connection:
        return Connection(self.server.port)

    def post(self, path: str, key: str | None, body: Any = None, **more: Any) -> Response:
        with self.connect() as wire:
            return self.on(wire, path, key, body, **more)

    def on(
        self,
        wire: Connection,
        path: str,
        key: str | None,
        body: Any = None,
        *,
        who: tuple[str, str] | None = ALICE,
        method: str = "POST",
        headers: list[tuple[str, str]] | None = None,
    ) -> Response:
        return wire.ask(method, path, self.headers(key, who, headers), _bytes(body))

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

    def wait_here(self, gate: str) -> None:
        wait_until((self.folder / f"{gate}.here").exists, f"the handler is at {gate}")

    def let_go(self, gate: str) -> None:
        (self.folder / f"{gate}.go").touch()

    def noted(self, what: str, name: str) -> int:
        """How often the app has written down `name`, in one of its lists."""
        file = self.folder / what
        return file.read_text().splitlines().count(name) if file.exists() else 0

    def wait_noted(self, what: str, name: str) -> None:
        wait_until(lambda: self.noted(what, name) > 0, f"{name} has {what}")

    def forget(self) -> None:
        """Between tests: no effects, no open gates."""
        for file in self.folder.iterdir():
            if file.name == "effects" or file.suffix in (".here", ".go"):
                file.unlink()


def _bytes(body: Any) -> bytes:
    return body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()


@contextmanager
def served(
    kind: type[HttpServer], app: str = "tests.http.apps.guarded:app", **options: Any
) -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="oncekey-http-") as name:
        folder = Path(name)
        env = {"GUARDED_FOLDER": name, **options.pop("env", {})}
        with kind(app, cwd=ROOT, env=env, **options) as server:
            yield Served(server, folder)
