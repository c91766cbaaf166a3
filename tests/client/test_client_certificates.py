"""A server whose certificate is not accepted: asked once, by each client."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
from requests.exceptions import SSLError
from tests.client.fake_time import AsyncFakeTime, FakeTime

from oncekey.client import (
    AsyncIdempotentTransport,
    IdempotentAdapter,
    IdempotentTransport,
)


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def untrusted() -> Iterator[str]:
    """A server whose certificate nobody has signed; its key is for this test and nothing else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Path(__file__).with_name("untrusted.pem"))
    server = HTTPServer(("127.0.0.1", 0), _Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://localhost:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join(10)


def test_a_certificate_that_is_not_accepted_is_not_tried_again(untrusted: str) -> None:
    clock = FakeTime()
    with (
        httpx.Client(transport=IdempotentTransport(clock=clock)) as client,
        pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        client.post(untrusted)
    with requests.Session() as session:
        session.mount("https://", IdempotentAdapter(clock=clock))
        with pytest.raises(SSLError, match="CERTIFICATE_VERIFY_FAILED"):
            session.post(untrusted)
    assert clock.slept == []


def test_nor_is_it_on_an_event_loop(untrusted: str) -> None:
    clock = AsyncFakeTime()

    async def ask() -> None:
        async with httpx.AsyncClient(transport=AsyncIdempotentTransport(clock=clock)) as client:
            await client.post(untrusted)

    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(ask())
    assert clock.slept == []
