"""The demo as users run it: a real process, used over sockets."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from oncekey.demo.provider.ledger import ProviderLedger

PATIENCE_SECONDS = 240


@dataclass(frozen=True)
class Running:
    """One running demo."""

    url: str
    folder: Path
    tokens: tuple[str, ...]

    @property
    def ledger(self) -> ProviderLedger:
        return ProviderLedger(self.folder / "provider.db")


@contextmanager
def running(folder: Path, *options: str) -> Iterator[Running]:
    executable = Path(sys.executable).with_name("oncekey")
    command: list[str | Path] = [
        executable,
        "demo",
        "--json",
        "--port",
        "0",
        "--path",
        folder,
        *options,
    ]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
    )
    assert process.stdout is not None
    try:
        told = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        tokens = tuple(one["token"] for one in told["accounts"])
        yield Running(told["url"], folder, tokens)
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0
        assert process.stdout.read() == ""
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A demo shared by all tests that leave it running."""
    with running(tmp_path_factory.mktemp("demo")) as started:
        yield started


class Api:
    """A caller of the API."""

    def __init__(self, demo: Running, token: str) -> None:
        self._http = httpx.Client(
            base_url=demo.url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=PATIENCE_SECONDS,
            trust_env=False,
        )

    def charge(self, key: str | None, **wanted: Any) -> httpx.Response:
        return self.post("/charges", key, {"order": key, "cents": 4_900, **wanted})

    def post(self, path: str, key: str | None, body: Any, **headers: str) -> httpx.Response:
        keyed = {} if key is None else {"Idempotency-Key": key}
        return self._http.post(path, json=body, headers={**keyed, **headers})

    def get(self, path: str, **headers: str) -> Any:
        return self._http.get(path, headers=headers)

    def close(self) -> None:
        self._http.close()


@pytest.fixture
def ada(demo: Running) -> Iterator[Api]:
    api = Api(demo, demo.tokens[0])
    yield api
    api.close()


@pytest.fixture
def grace(demo: Running) -> Iterator[Api]:
    api = Api(demo, demo.tokens[1])
    yield api
    api.close()


@pytest.fixture
def stranger(demo: Running) -> Iterator[Api]:
    api = Api(demo, "tok_0")
    yield api
    api.close()
