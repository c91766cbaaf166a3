"""The three clients behind one interface, so that one test holds for all of them.

They talk to the loopback only, so they do not load the certificate authorities that httpx would
load for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import requests
from tests.client.fake_retry_clock import AsyncFakeRetryClock, FakeRetryClock

from oncekey.client import (
    AsyncIdempotentTransport,
    Delivery,
    IdempotentAdapter,
    IdempotentTransport,
    delivery_of,
)


@dataclass(frozen=True)
class ClientResponse:
    """A response of any library, and its delivery."""

    status: int
    content: bytes
    headers: Mapping[str, str]
    delivery: Delivery | None
    response: Any


class _Client:
    """`send` takes `body`, `headers`, `timeout` and `given`, a key or an intent for the request."""

    def send(self, method: str, url: str, **more: Any) -> ClientResponse:
        raise NotImplementedError

    def post(self, url: str, **more: Any) -> ClientResponse:
        return self.send("POST", url, **more)


class HttpxClient(_Client):
    name = "httpx"

    def __init__(self, clock: FakeRetryClock, **options: Any) -> None:
        self.clock = clock
        inner = options.pop("inner", None) or httpx.HTTPTransport(verify=False)
        transport = IdempotentTransport(inner, clock=clock, **options)
        self.httpx_client = httpx.Client(transport=transport)

    def send(self, method: str, url: str, **more: Any) -> ClientResponse:
        return _response(self.httpx_client.request(method, url, **_httpx_arguments(more)))

    def close(self) -> None:
        self.httpx_client.close()


class AsyncHttpxClient(_Client):
    name = "httpx-async"

    def __init__(self, clock: AsyncFakeRetryClock, **options: Any) -> None:
        self.clock = clock
        self.runner = asyncio.Runner()
        inner = options.pop("inner", None) or httpx.AsyncHTTPTransport(verify=False)
        transport = AsyncIdempotentTransport(inner, clock=clock, **options)
        self.httpx_client = httpx.AsyncClient(transport=transport)

    def send(self, method: str, url: str, **more: Any) -> ClientResponse:
        async def send() -> ClientResponse:
            arguments = _httpx_arguments(more)
            return _response(await self.httpx_client.request(method, url, **arguments))

        return self.runner.run(send())

    def close(self) -> None:
        self.runner.run(self.httpx_client.aclose())
        self.runner.close()


class RequestsClient(_Client):
    name = "requests"

    def __init__(self, clock: FakeRetryClock, **options: Any) -> None:
        self.clock = clock
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.mount("http://", IdempotentAdapter(clock=clock, **options))

    def send(self, method: str, url: str, **more: Any) -> ClientResponse:
        given = more.pop("given", None) or {}
        headers = dict(more.pop("headers", None) or {})
        if "intent" in given:
            headers["Oncekey-Intent"] = given["intent"]
        if "key" in given:
            headers["Idempotency-Key"] = given["key"]
        body = more.pop("body", b"{}")
        return _response(self.session.request(method, url, data=body, headers=headers, **more))

    def close(self) -> None:
        self.session.close()


def _httpx_arguments(more: dict[str, Any]) -> dict[str, Any]:
    arguments = {"timeout": 60, **more}
    arguments["content"] = arguments.pop("body", b"{}")
    given = arguments.pop("given", None)
    if given is not None:
        arguments["extensions"] = {"oncekey": given}
    return arguments


def _response(response: httpx.Response | requests.Response) -> ClientResponse:
    return ClientResponse(
        response.status_code,
        response.content,
        response.headers,
        delivery_of(response),
        response,
    )


AnyClient = HttpxClient | AsyncHttpxClient | RequestsClient
CLIENT_NAMES = ("httpx", "httpx-async", "requests")


@contextmanager
def open_client(name: str, **options: Any) -> Iterator[AnyClient]:
    """The client of that name, on a clock of its own; `chances` are the random numbers it draws."""
    chances = options.pop("chances", ())
    client: AnyClient
    if name == "httpx":
        client = HttpxClient(FakeRetryClock(chances), **options)
    elif name == "httpx-async":
        client = AsyncHttpxClient(AsyncFakeRetryClock(chances), **options)
    else:
        client = RequestsClient(FakeRetryClock(chances), **options)
    try:
        yield client
    finally:
        client.close()
