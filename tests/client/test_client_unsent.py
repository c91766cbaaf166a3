"""What fails before anything is sent, and what is never tried again."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import requests
from tests.client.callers import calling
from tests.client.scripted import Answer, Drop, Hang, serving

from oncekey.client import RetriesExhausted, Retry

# --- before anything is sent ----------------------------------------------------------------------


@contextmanager
def closed_port() -> Iterator[str]:
    """Where nobody listens: the port is ours, so nobody else will."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@contextmanager
def full_door() -> Iterator[str]:
    """Where connecting never ends: the queue of a listener that accepts nobody is full."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen(0)
        waiting = []
        for _ in range(4):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(door.getsockname())
            waiting.append(one)
        try:
            yield f"http://127.0.0.1:{door.getsockname()[1]}"
        finally:
            for one in waiting:
                one.close()


def test_where_nobody_listens_a_new_key_is_safe(name: str) -> None:
    with (
        closed_port() as url,
        calling(name, retry=Retry(attempts=3)) as caller,
        pytest.raises(RetriesExhausted, match="it is safe to use a new key") as caught,
    ):
        caller.post(url + "/pay")
    assert (caught.value.attempts, caught.value.safe_new_key) == (3, True)
    assert caller.time.slept == [50_000, 100_000]


def test_where_connecting_takes_for_ever_a_new_key_is_safe(name: str) -> None:
    with (
        full_door() as url,
        calling(name, retry=Retry(attempts=2)) as caller,
        pytest.raises(RetriesExhausted, match="connecting timed out") as caught,
    ):
        caller.post(url, timeout=0.05)
    assert caught.value.safe_new_key


def test_no_free_connection_is_waited_for() -> None:
    hung = Hang()
    pool = httpx.HTTPTransport(limits=httpx.Limits(max_connections=1))
    with (
        serving(hung) as server,
        calling("httpx", inner=pool, retry=Retry(attempts=2)) as caller,
    ):
        other = threading.Thread(target=caller.post, args=(server.url,))
        other.start()
        assert hung.here.wait(10)
        with pytest.raises(RetriesExhausted, match="no connection became free") as caught:
            caller.post(server.url, timeout=0.01)
        hung.go.set()
        other.join(10)
    assert caught.value.safe_new_key
    assert len(server.seen) == 1


def test_a_lost_try_after_an_unsent_one_warns(name: str) -> None:
    with (
        serving(Drop(), Answer(429)) as server,
        calling(name, retry=Retry(attempts=2)) as caller,
        pytest.raises(RetriesExhausted) as caught,
    ):
        caller.post(server.url)
    assert not caught.value.safe_new_key


# --- what is never tried again --------------------------------------------------------------------


def test_an_unknown_scheme_is_the_callers_error() -> None:
    with calling("httpx") as caller, pytest.raises(httpx.UnsupportedProtocol):
        caller.post("gopher://127.0.0.1/")
    assert caller.time.slept == []


def test_a_request_that_breaks_the_protocol_is_the_callers_error() -> None:
    with (
        serving() as server,
        calling("httpx") as caller,
        pytest.raises(httpx.LocalProtocolError),
    ):
        caller.post(server.url, headers={"X-Bad": "a\nb"})
    assert caller.time.slept == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("httpx", httpx.TransportError),
        ("httpx-async", httpx.TransportError),
        ("requests", requests.RequestException),
    ],
)
def test_giving_up_is_an_error_of_the_library_too(name: str, kind: type[Exception]) -> None:
    with (
        closed_port() as url,
        calling(name, retry=Retry(attempts=1)) as caller,
        pytest.raises(kind) as caught,
    ):
        caller.post(url)
    error: Any = caught.value
    assert isinstance(error, RetriesExhausted)
    assert str(error.request.url).rstrip("/") == url
