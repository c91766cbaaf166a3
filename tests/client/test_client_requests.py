"""The client for requests: which error means what, timeouts, and what a session does otherwise."""

from __future__ import annotations

import pickle
import ssl
from http.client import RemoteDisconnected
from typing import Any

import pytest
import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.exceptions import ConnectionError as NoConnection
from requests.exceptions import ConnectTimeout, InvalidURL, ProxyError, ReadTimeout, SSLError
from tests.client.clients import open_client
from tests.client.fake_retry_clock import FakeRetryClock
from tests.client.scripted_server import Respond, scripted_server
from urllib3 import exceptions as below
from urllib3.connectionpool import HTTPConnectionPool

from oncekey import ConfigurationError
from oncekey.client import (
    IdempotentAdapter,
    RetriesExhausted,
    delivery_of,
)
from oncekey.client.requests.request import failure_of
from oncekey.client.retry_effects import TransportFailure as Failure

POOL = urllib3.HTTPConnectionPool("shop")
CONNECTION: Any = object()
REFUSED = below.NewConnectionError(CONNECTION, "refused")


def gave_up(reason: Exception) -> below.MaxRetryError:
    return below.MaxRetryError(POOL, "/", reason)


def _while_handling(error: Exception, context: Exception) -> Exception:
    error.__context__ = context
    return error


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (NoConnection(gave_up(REFUSED)), Failure.CONNECT),
        (
            NoConnection(gave_up(below.NameResolutionError("shop", CONNECTION, OSError()))),  # type: ignore[arg-type]
            Failure.CONNECT,
        ),
        (ProxyError(gave_up(below.ProxyError("unreachable", REFUSED))), Failure.CONNECT),
        (ProxyError(gave_up(below.ProxyError("refused", OSError("407")))), Failure.OTHER),
        (ConnectTimeout(gave_up(below.ConnectTimeoutError())), Failure.CONNECT_TIMEOUT),
        (below.EmptyPoolError(POOL, "full"), Failure.POOL_TIMEOUT),
        (NoConnection(below.ClosedPoolError(POOL, "closed")), Failure.OTHER),
        (
            NoConnection(below.ProtocolError("aborted", RemoteDisconnected(""))),
            Failure.NETWORK,
        ),
        (
            NoConnection(below.ProtocolError("aborted", ConnectionResetError())),
            Failure.NETWORK,
        ),
        (ReadTimeout(below.ReadTimeoutError(POOL, "/", "slow")), Failure.TIMEOUT),
        (below.ReadTimeoutError(POOL, "/", "slow"), Failure.TIMEOUT),
        (below.ProtocolError("broken"), Failure.CLOSED),
        (SSLError(gave_up(below.SSLError(ssl.SSLError("eof")))), Failure.NETWORK),
        (below.SSLError(ssl.SSLError("mac")), Failure.NETWORK),
        (
            SSLError(gave_up(below.SSLError(ssl.SSLCertVerificationError("self-signed")))),
            Failure.CERTIFICATE,
        ),
        (InvalidURL("x"), Failure.OTHER),
        (ValueError("x"), Failure.OTHER),
        # While one connection error is handled, another request is sent, whose response is lost.
        (
            _while_handling(ReadTimeout("slow"), NoConnection(gave_up(REFUSED))),
            Failure.TIMEOUT,
        ),
    ],
)
def test_which_error_means_which_transport_failure(error: Exception, failure: Failure) -> None:
    assert failure_of(error) is failure


@pytest.mark.parametrize(
    ("given", "connect", "read", "total"),
    [
        (None, None, None, 60),
        (5, 5, 5, 60),
        ((1, 90), 1, 90, 60),
        (urllib3.Timeout(connect=2, read=3), 2, 3, 60),
        (urllib3.Timeout(total=7), 7, None, 7),
        (urllib3.Timeout(total=70), 60, None, 60),
    ],
)
def test_timeouts_are_clipped_to_what_is_left_of_the_deadline(
    monkeypatch: pytest.MonkeyPatch, given: Any, connect: Any, read: Any, total: float
) -> None:
    clock = FakeRetryClock([0.0])
    seen: list[urllib3.Timeout] = []

    def send(self: HTTPAdapter, request: Any, timeout: Any = None, **more: Any) -> Any:
        seen.append(timeout)
        clock.advance(59_500_000)
        raise ReadTimeout("slow")

    monkeypatch.setattr(HTTPAdapter, "send", send)
    session = requests.Session()
    session.mount("http://", IdempotentAdapter(clock=clock))
    with pytest.raises(RetriesExhausted) as caught:
        session.post("http://shop/", timeout=given)
    assert caught.value.attempts == 2
    first, second = seen
    assert first.total == total
    assert first.connect_timeout == (total if connect is None else min(connect, total))
    assert second.total == 0.5
    if read is not None:
        assert f"read={read!r}" in repr(first)


def test_a_timeout_of_a_wrong_shape_is_not_retried() -> None:
    with (
        scripted_server() as server,
        open_client("requests") as client,
        pytest.raises(ValueError, match="too many values"),
    ):
        client.post(server.url, timeout=(1, 2, 3))
    assert client.clock.slept == []


def test_an_unknown_host_means_that_nothing_was_sent() -> None:
    with open_client("requests") as client, pytest.raises(RetriesExhausted) as caught:
        client.post("http://nowhere.invalid/")
    assert caught.value.safe_new_key


def test_a_closed_session_can_be_used_again() -> None:
    with scripted_server(Respond(), Respond()) as server, open_client("requests") as client:
        assert client.post(server.url).status == 200
        client.close()
        assert client.post(server.url).status == 200


def test_a_response_keeps_its_delivery_in_a_pickle() -> None:
    with scripted_server(Respond()) as server, open_client("requests") as client:
        response = client.post(server.url).response
    again = pickle.loads(pickle.dumps(response))
    assert delivery_of(again) == delivery_of(response) is not None
    assert again.content == b"done"


def test_urllib3_that_does_not_use_http_client_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """urllib3-future takes urllib3's place, and each request would fail after it was sent."""

    class Connection:
        """A connection of another kind."""

    monkeypatch.setattr(HTTPConnectionPool, "ConnectionCls", Connection)
    with pytest.raises(ConfigurationError, match="urllib3-future"):
        IdempotentAdapter()
