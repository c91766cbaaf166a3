"""ASGI scopes whose header names are not in lower case, as test clients and middlewares make them:
their keys protect, and their headers are compared."""

from __future__ import annotations

import asyncio

import pytest
from tests.http.asgi_requests import CountingApp, guard, send_request

from oncekey.http.rules import Rule


@pytest.mark.parametrize("header", [b"Idempotency-Key", b"IDEMPOTENCY-KEY"])
@pytest.mark.parametrize("required", [True, False])
def test_a_key_in_a_header_of_mixed_case_protects(header: bytes, required: bool) -> None:
    app = CountingApp()
    guarded = guard(app, Rule(required=required))

    async def main() -> list[bytes]:
        lines = [(header, b"k")]
        return [(await send_request(guarded, headers=lines)).body for _ in range(2)]

    assert asyncio.run(main()) == [b"1", b"1"]


def test_an_unguarded_key_in_a_header_of_mixed_case_is_reported() -> None:
    guarded = guard(CountingApp(), Rule("/elsewhere"))
    sent = asyncio.run(send_request(guarded, headers=[(b"Idempotency-Key", b"k")]))
    assert (b"x-idempotency-unprotected", b"unguarded") in sent.headers


def test_a_compared_header_of_mixed_case_is_compared() -> None:
    guarded = guard(CountingApp(), Rule(request_headers=["X-Tenant"]))

    async def main() -> list[int]:
        lines = [(b"idempotency-key", b"k")]
        sent = [
            await send_request(guarded, headers=[*lines, (b"X-Tenant", tenant)])
            for tenant in (b"a", b"b")
        ]
        return [one.statuses[0] for one in sent]

    assert asyncio.run(main()) == [201, 422]
