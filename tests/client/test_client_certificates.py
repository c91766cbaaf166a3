"""A server with an untrusted certificate: each client tries once."""

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
from tests.client.fake_retry_clock import AsyncFakeRetryClock, FakeRetryClock

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
    """A server with a self-signed certificate, whose key is used in this test only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Path(__file__).with_name("untrusted.pem"))
    server = HTTPServer(("127.0.0.1", 0), _Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://localhost:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join(60)


def test_sync_clients_do_not_retry_an_untrusted_certificate(untrusted: str) -> None:
    clock = FakeRetryClock()
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


def test_the_async_client_does_not_retry_an_untrusted_certificate(untrusted: str) -> None:
    clock = AsyncFakeRetryClock()

    async def ask() -> None:
        async with httpx.AsyncClient(transport=AsyncIdempotentTransport(clock=clock)) as client:
            await client.post(untrusted)

    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(ask())
    assert clock.slept == []
