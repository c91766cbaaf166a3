"""The three clients under one face, so that one test holds for all of them.

They talk to the loopback only, so the authorities that httpx would load for each are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import requests
from tests.client.fake_time import AsyncFakeTime, FakeTime

from oncekey.client import (
    AsyncIdempotentTransport,
    Delivery,
    IdempotentAdapter,
    IdempotentTransport,
    delivery_of,
)


@dataclass(frozen=True)
class Got:
    """A response, and how it came."""

    status: int
    content: bytes
    headers: Mapping[str, str]
    delivery: Delivery | None
    response: Any


class _Base:
    """`send` takes `body`, `headers`, `timeout`, and `given`: a key or an intent to go along."""

    def send(self, method: str, url: str, **more: Any) -> Got:
        raise NotImplementedError

    def post(self, url: str, **more: Any) -> Got:
        return self.send("POST", url, **more)


class HttpxCaller(_Base):
    name = "httpx"

    def __init__(self, time: FakeTime, **options: Any) -> None:
        self.time = time
        inner = options.pop("inner", None) or httpx.HTTPTransport(verify=False)
        transport = IdempotentTransport(inner, clock=time, **options)
        self.client = httpx.Client(transport=transport)

    def send(self, method: str, url: str, **more: Any) -> Got:
        return _got(self.client.request(method, url, **_httpx_arguments(more)))

    def close(self) -> None:
        self.client.close()


class AsyncHttpxCaller(_Base):
    name = "httpx-async"

    def __init__(self, time: AsyncFakeTime, **options: Any) -> None:
        self.time = time
        self.runner = asyncio.Runner()
        inner = options.pop("inner", None) or httpx.AsyncHTTPTransport(verify=False)
        transport = AsyncIdempotentTransport(inner, clock=time, **options)
        self.client = httpx.AsyncClient(transport=transport)

    def send(self, method: str, url: str, **more: Any) -> Got:
        async def ask() -> Got:
            return _got(await self.client.request(method, url, **_httpx_arguments(more)))

        return self.runner.run(ask())

    def close(self) -> None:
        self.runner.run(self.client.aclose())
        self.runner.close()


class RequestsCaller(_Base):
    name = "requests"

    def __init__(self, time: FakeTime, **options: Any) -> None:
        self.time = time
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.mount("http://", IdempotentAdapter(clock=time, **options))

    def send(self, method: str, url: str, **more: Any) -> Got:
        given = more.pop("given", None) or {}
        headers = dict(more.pop("headers", None) or {})
        if "intent" in given:
            headers["Oncekey-Intent"] = given["intent"]
        if "key" in given:
            headers["Idempotency-Key"] = given["key"]
        body = more.pop("body", b"{}")
        response = self.session.request(method, url, data=body, headers=headers, **more)
        return Got(
            response.status_code,
            response.content,
            response.headers,
            delivery_of(response),
            response,
        )

    def close(self) -> None:
        self.session.close()


def _httpx_arguments(more: dict[str, Any]) -> dict[str, Any]:
    arguments = {"timeout": 30, **more}
    arguments["content"] = arguments.pop("body", b"{}")
    given = arguments.pop("given", None)
    if given is not None:
        arguments["extensions"] = {"oncekey": given}
    return arguments


def _got(response: httpx.Response) -> Got:
    return Got(
        response.status_code,
        response.content,
        response.headers,
        delivery_of(response),
        response,
    )


Caller = HttpxCaller | AsyncHttpxCaller | RequestsCaller
NAMES = ("httpx", "httpx-async", "requests")


@contextmanager
def calling(name: str, **options: Any) -> Iterator[Caller]:
    """A client of that name on a time of its own; `chances` are the random numbers it draws."""
    chances = options.pop("chances", ())
    caller: Caller
    if name == "httpx":
        caller = HttpxCaller(FakeTime(chances), **options)
    elif name == "httpx-async":
        caller = AsyncHttpxCaller(AsyncFakeTime(chances), **options)
    else:
        caller = RequestsCaller(FakeTime(chances), **options)
    try:
        yield caller
    finally:
        caller.close()
