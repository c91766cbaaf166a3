"""Failures before anything is sent, and errors that are never retried."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import requests
from tests.client.clients import open_client
from tests.client.scripted_server import DropConnection, Hang, Respond, scripted_server

from oncekey.client import RetriesExhausted, Retry

# --- before anything is sent ----------------------------------------------------------------------


@contextmanager
def closed_port() -> Iterator[str]:
    """A URL at which nobody listens. The port is bound, so that nobody else takes it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@contextmanager
def full_listener() -> Iterator[str]:
    """A URL at which connecting never ends: the listener's queue is full and it accepts nobody."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = []
        for _ in range(4):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
            waiting.append(one)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            for one in waiting:
                one.close()


def test_a_new_key_is_safe_if_nobody_listens(client_name: str) -> None:
    with (
        closed_port() as url,
        open_client(client_name, retry=Retry(attempts=3)) as client,
        pytest.raises(RetriesExhausted, match="it is safe to use a new key") as caught,
    ):
        client.post(url + "/pay")
    assert (caught.value.attempts, caught.value.safe_new_key) == (3, True)
    assert client.clock.slept == [50_000, 100_000]


def test_a_new_key_is_safe_if_connecting_times_out(client_name: str) -> None:
    with (
        full_listener() as url,
        open_client(client_name, retry=Retry(attempts=2)) as client,
        pytest.raises(RetriesExhausted, match="connecting timed out") as caught,
    ):
        client.post(url, timeout=0.05)
    assert caught.value.safe_new_key


def test_a_new_key_is_safe_if_no_connection_becomes_free() -> None:
    hung = Hang()
    pool = httpx.HTTPTransport(limits=httpx.Limits(max_connections=1))
    with (
        scripted_server(hung) as server,
        open_client("httpx", inner=pool, retry=Retry(attempts=2)) as client,
    ):
        other = threading.Thread(target=client.post, args=(server.url,))
        other.start()
        assert hung.arrived.wait(60)
        with pytest.raises(RetriesExhausted, match="no connection became free") as caught:
            client.post(server.url, timeout=0.01)
        hung.proceed.set()
        other.join(60)
    assert caught.value.safe_new_key
    assert len(server.received) == 1


def test_a_new_key_is_not_safe_after_a_lost_try(client_name: str) -> None:
    with (
        scripted_server(DropConnection(), Respond(429)) as server,
        open_client(client_name, retry=Retry(attempts=2)) as client,
        pytest.raises(RetriesExhausted) as caught,
    ):
        client.post(server.url)
    assert not caught.value.safe_new_key


# --- errors that are never retried ----------------------------------------------------------------


def test_an_unknown_scheme_is_not_retried() -> None:
    with open_client("httpx") as client, pytest.raises(httpx.UnsupportedProtocol):
        client.post("gopher://127.0.0.1/")
    assert client.clock.slept == []


def test_an_invalid_header_is_not_retried() -> None:
    with (
        scripted_server() as server,
        open_client("httpx") as client,
        pytest.raises(httpx.LocalProtocolError),
    ):
        client.post(server.url, headers={"X-Bad": "a\nb"})
    assert client.clock.slept == []


@pytest.mark.parametrize(
    ("client_name", "kind"),
    [
        ("httpx", httpx.TransportError),
        ("httpx-async", httpx.TransportError),
        ("requests", requests.RequestException),
    ],
)
def test_retries_exhausted_is_an_error_of_the_library_too(
    client_name: str, kind: type[Exception]
) -> None:
    with (
        closed_port() as url,
        open_client(client_name, retry=Retry(attempts=1)) as client,
        pytest.raises(kind) as caught,
    ):
        client.post(url)
    error: Any = caught.value
    assert isinstance(error, RetriesExhausted)
    assert str(error.request.url).rstrip("/") == url
