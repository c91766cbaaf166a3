"""The options of the clients, their errors, and what can be imported."""

from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import timedelta
from typing import Any

import httpx
import pytest
import requests

import oncekey.client
from oncekey import ConfigurationError, OncekeyError
from oncekey.client import (
    AsyncIdempotentTransport,
    Delivery,
    IdempotentAdapter,
    IdempotentTransport,
    Journal,
    NotSent,
    RetriesExhausted,
    Retry,
    delivery_of,
)
from oncekey.client.httpx.request import HttpxRetriesExhausted
from oncekey.client.requests.request import RequestsRetriesExhausted
from oncekey.client.retry_options import RetryLimits


def test_retry_limits_are_microseconds() -> None:
    assert Retry().limits == RetryLimits(10, 60_000_000, 100_000, 10_000_000)
    given = Retry(attempts=3, deadline=timedelta(seconds=5), base="1s", cap="1s")
    assert given.limits == RetryLimits(3, 5_000_000, 1_000_000, 1_000_000)
    assert Retry(deadline="60s") == Retry()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"attempts": 0}, "retry=None"),
        ({"attempts": 101}, "1 to 100"),
        ({"attempts": True}, "attempts=True"),
        ({"attempts": 2.0}, "attempts=2.0"),
        ({"deadline": 60}, "deadline is a int"),
        ({"deadline": "soon"}, "deadline='soon'"),
        ({"deadline": "9ms"}, "10ms to 1d"),
        ({"deadline": "25h"}, "10ms to 1d"),
        ({"base": "0s"}, "1ms to 1h"),
        ({"cap": "2h"}, "1ms to 1h"),
        ({"base": "2s", "cap": "1s"}, "must not be shorter"),
    ],
)
def test_retry_refuses_invalid_options(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Retry(**options)
    assert named in str(caught.value)


CLIENTS = [IdempotentTransport, AsyncIdempotentTransport, IdempotentAdapter]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"retry": 3}, r"retry=3 must be a Retry\(...\), or None"),
        ({"methods": "POST"}, "list of names"),
        ({"methods": ["POST", "GET"]}, "safe methods need none"),
        ({"methods": []}, "methods"),
        ({"methods": [1]}, "methods"),
        ({"methods": None}, "list of names"),
        ({"methods": 7}, "list of names"),
        ({"methods": ["POST", "P ST"]}, "'P ST' is not the name of a method"),
        ({"methods": [""]}, "'' is not the name of a method"),
        ({"quoted": 1}, "quoted=1 must be True or False"),
        ({"quoted": "no"}, "quoted='no' must be"),
        ({"header": "Content-Length"}, "another meaning"),
        ({"header": "oncekey-intent"}, "another meaning"),
        ({"header": "Transfer-Encoding"}, "another meaning"),
        ({"header": "Connection"}, "another meaning"),
        ({"journal": Journal}, "Journal"),
        ({"header": "Idempotency Key"}, "not the name of a header"),
        ({"header": ""}, "not the name of a header"),
        ({"namespace": "No Spaces"}, "namespace="),
        ({"journal": "keys.db"}, "Journal"),
        ({"on_progress": 1}, "plain function"),
        ({"buffer_max": 0}, "buffer_max=0"),
        ({"body_max": 2**40}, "body_max"),
        ({"body_max": "1"}, "body_max"),
    ],
)
def test_clients_refuse_invalid_options(client: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        client(**options)


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_name_an_unknown_option(client: Any) -> None:
    with pytest.raises(TypeError, match="retries"):
        client(retries=3)


def test_an_async_on_progress_is_refused() -> None:
    async def hook(progress: object) -> None: ...

    class Hook:
        async def __call__(self, progress: object) -> None: ...

    for one in (hook, Hook(), Hook().__call__):
        with pytest.raises(ConfigurationError, match="not a coroutine"):
            AsyncIdempotentTransport(on_progress=one)


@pytest.mark.parametrize("client", [IdempotentTransport, AsyncIdempotentTransport])
def test_the_first_argument_must_be_a_transport(client: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"a Retry is no httpx\."):
        client(Retry())
    wrong = httpx.AsyncHTTPTransport if client is IdempotentTransport else httpx.HTTPTransport
    with pytest.raises(ConfigurationError, match="BaseTransport"):
        client(wrong(verify=False))


def test_the_adapter_does_not_take_max_retries() -> None:
    with pytest.raises(TypeError, match="max_retries"):
        IdempotentAdapter(max_retries=3)  # type: ignore[call-arg]


def test_an_adapter_can_be_pickled_with_its_session() -> None:
    session = requests.Session()
    session.mount("http://", IdempotentAdapter(retry=Retry(attempts=3)))
    adapter = pickle.loads(pickle.dumps(session)).get_adapter("http://shop/")
    assert isinstance(adapter, IdempotentAdapter)
    assert adapter._settings.retry == Retry(attempts=3)


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [RetriesExhausted, HttpxRetriesExhausted, RequestsRetriesExhausted]
)
def test_retries_exhausted_can_be_pickled(kind: type[RetriesExhausted]) -> None:
    error = kind("message", key="k", attempts=2, safe_new_key=True, operation="POST x", tag="t")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.key, again.attempts) == ("POST x [t]: message", "k", 2)
    assert again.safe_new_key
    assert isinstance(again, OncekeyError)


def test_retries_exhausted_has_the_same_message_in_every_library() -> None:
    httpx_error = HttpxRetriesExhausted("message", operation="POST x", tag="t")
    requests_error = RequestsRetriesExhausted("message", operation="POST x", tag="t")
    assert isinstance(httpx_error, httpx.TransportError)
    assert isinstance(requests_error, requests.RequestException)
    assert str(httpx_error) == str(requests_error) == "POST x [t]: message"
    assert not issubclass(NotSent, RetriesExhausted)


def test_a_delivery_does_not_show_its_key() -> None:
    delivery = Delivery(
        key="k3y", attempts=1, replayed=False, conclusive=True, waited=0.0, elapsed=0.0
    )
    assert "k3y" not in repr(delivery)


def test_a_response_without_a_key_has_no_delivery() -> None:
    assert delivery_of(httpx.Response(200)) is None
    assert delivery_of(requests.Response()) is None
    assert delivery_of(httpx.Response(200, extensions={"oncekey": {"key": "x"}})) is None
    assert delivery_of(None) is None


# --- names ----------------------------------------------------------------------------------------


def test_every_public_name_can_be_imported() -> None:
    assert oncekey.client.__all__ == sorted(set(oncekey.client.__all__))
    for name in oncekey.client.__all__:
        assert len(getattr(oncekey.client, name).__doc__) > 20, name
    with pytest.raises(AttributeError, match="IdempotentTransports"):
        _ = oncekey.client.IdempotentTransports


_WITHOUT = """
import sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Nowhere())
import oncekey.client
from oncekey import ConfigurationError

loaded = {{"httpx", "requests", "urllib3", "anyio", "sqlite3", "http_sf"}} & sys.modules.keys()
assert not loaded, loaded
for name, extra in {names!r}:
    try:
        getattr(oncekey.client, name)
    except ConfigurationError as error:
        assert f"oncekey[{{extra}}]" in str(error), error
    else:
        raise AssertionError(name)
from oncekey.client import Journal, Retry
"""


@pytest.mark.parametrize("missing", [{"httpx", "requests"}, {"http_sf"}])
def test_a_missing_library_is_named_with_its_extra_and_only_when_needed(missing: set[str]) -> None:
    names = [
        ("IdempotentTransport", "httpx"),
        ("AsyncIdempotentTransport", "httpx"),
        ("IdempotentAdapter", "requests"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT.format(missing=missing, names=names)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
