"""Large guarded uploads to FastAPI are on disk, not in memory; those of strangers are not read.

    UPLOAD_MIB=100 python -m pytest -s tests/http/test_upload_memory.py

prints the peak memory of the server process.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from tests.http.app_server import ServedApp, serve_app
from tests.support.servers import Uvicorn, require

MIB = 1024 * 1024
SIZE = int(os.environ.get("UPLOAD_MIB", "24")) * MIB
UPLOADS = 3
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


@pytest.fixture
def app() -> Iterator[ServedApp]:
    require(lambda: Uvicorn("x:y"))
    with serve_app(Uvicorn, "tests.http.fastapi_apps.uploads:app") as served:
        yield served


def send(app: ServedApp, path: str, key: str, body: Any, kind: str) -> httpx.Response:
    headers = {"Authorization": "Bearer alice", "Idempotency-Key": key, "Content-Type": kind}
    url = f"http://127.0.0.1:{app.server.port}{path}"
    return httpx.post(url, content=body, headers=headers, timeout=120)


def parts(letter: bytes, boundary: bytes) -> Iterator[bytes]:
    """A multipart form with one file, made as it is sent."""
    head = b'Content-Disposition: form-data; name="upload"; filename="a.bin"'
    yield b"--" + boundary + b"\r\n" + head + b"\r\n\r\n"
    for _ in range(SIZE // 65536):
        yield letter * 65536
    yield b"\r\n--" + boundary + b"--\r\n"


def raw_parts(letter: bytes, boundary: bytes) -> Iterator[bytes]:
    for _ in range(SIZE // 65536):
        yield letter * 65536


def peak_memory(app: ServedApp) -> int:
    return int(httpx.get(f"http://127.0.0.1:{app.server.port}/peak", timeout=60).text)


@pytest.mark.parametrize(
    ("path", "made", "kind"),
    [
        ("/file", parts, "multipart/form-data; boundary={}"),
        ("/stream", raw_parts, "application/octet-stream"),
    ],
    ids=["form", "stream"],
)
def test_large_uploads_are_not_held_in_memory(
    app: ServedApp, path: str, made: Any, kind: str
) -> None:
    before = peak_memory(app)

    def upload(number: int, letter: bytes, boundary: str = "one") -> httpx.Response:
        body = made(letter, boundary.encode())
        return send(app, path, f"k-{number}", body, kind.format(boundary))

    with ThreadPoolExecutor(UPLOADS) as threads:
        answers = list(threads.map(upload, range(UPLOADS), [b"a", b"b", b"c"]))
    grown = peak_memory(app) - before
    print(f"{path}: {UPLOADS} x {SIZE // MIB} MiB, the server grew by {grown / MIB:.0f} MiB")  # noqa: T201
    assert [answer.json()["size"] for answer in answers] == [SIZE] * UPLOADS
    again, other = upload(0, b"a", "another"), upload(0, b"x")
    assert again.headers["x-idempotency-replayed"] == "true"
    assert again.content == answers[0].content
    assert other.status_code == 422
    assert grown < SIZE // 2


def test_body_of_an_unauthenticated_caller_is_not_read(app: ServedApp) -> None:
    """The endpoint takes no body parameter, so FastAPI has solved its dependencies first."""
    with socket.create_connection(("127.0.0.1", app.server.port), timeout=60) as connection:
        connection.sendall(
            b"POST /stream HTTP/1.1\r\nHost: x\r\nIdempotency-Key: nobody\r\n"
            b"Content-Length: 1000000\r\n\r\nonly the beginning"
        )
        assert connection.recv(65536).startswith(b"HTTP/1.1 401")
