"""Small requests are fingerprinted on the event loop, others in a thread."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from typing import Any

import pytest
from tests.http.asgi_requests import CountingApp, guard, send_request

from oncekey import AsyncOnce
from oncekey.http import exchange
from oncekey.http.message import BODY_SPILL_BYTES
from oncekey.http.request_fingerprint import INLINE_MAX_BYTES, fingerprint_bytes
from oncekey.http.rules import Rule

JSON = b"application/json"
FLOATS = json.dumps([n / 7 for n in range(12_000)]).encode()  # 240 kB, 200 ms to put in order
FORM = b"&".join(b"field%d=value" % n for n in range(900)) + b"&rest=" + b"x" * INLINE_MAX_BYTES


@pytest.mark.parametrize(
    ("kind", "body", "coding", "in_thread"),
    [
        (JSON, b'{"cents": 500}', b"", False),
        (JSON, FLOATS, b"", True),
        (JSON, b"[" + b"1.5," * 1_000 + b"1.5]", b"", True),
        (JSON, b'["' + b"a long text. " * 1_000 + b'"]', b"", False),
        (b"application/x-www-form-urlencoded", FORM, b"", True),
        (JSON, gzip.compress(FLOATS), b"gzip", True),
        (b"application/octet-stream", b"x" * (INLINE_MAX_BYTES + 1), b"", False),
        (b"application/octet-stream", b"x" * (BODY_SPILL_BYTES + 1), b"", True),
    ],
    ids=["small", "floats", "few-floats", "text", "form", "gzip", "bytes", "large"],
)
def test_large_body_is_fingerprinted_in_a_thread(
    kind: bytes, body: bytes, coding: bytes, in_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def recorded(*arguments: Any) -> bytes:
        threads.append(threading.get_ident())
        return fingerprint_bytes(*arguments)

    monkeypatch.setattr(exchange, "fingerprint_bytes", recorded)

    async def main() -> None:
        once = AsyncOnce("memory://")
        app = CountingApp()
        guarded = guard(app, Rule(max_request=4 * BODY_SPILL_BYTES), once=once)
        headers = [(b"idempotency-key", b"k"), (b"content-type", kind)]
        headers += [(b"content-encoding", coding)] if coding else []
        first = await send_request(guarded, body=body, headers=headers)
        again = await send_request(guarded, body=body, headers=headers)
        assert (first.statuses, again.statuses, app.runs) == ([201], [201], 1)
        await once.close()

    asyncio.run(main())
    assert [ident != threading.get_ident() for ident in threads] == [in_thread] * 2


def test_large_body_reaches_the_app_as_it_was_sent() -> None:
    async def main() -> None:
        body = bytes(range(256)) * (BODY_SPILL_BYTES // 128)
        read: list[bytes] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            more = True
            while more:
                message = await receive()
                read.append(message["body"])
                more = message["more_body"]
            await CountingApp()(scope, receive, send)

        once = AsyncOnce("memory://")
        guarded = guard(app, Rule(max_request=len(body)), once=once)
        assert (await send_request(guarded, body=body)).statuses == [201]
        assert b"".join(read) == body
        assert len(read) > 1, "it came from a file, part by part"
        assert (await send_request(guarded, body=body[:-1] + b"?")).statuses == [422]
        await once.close()

    asyncio.run(main())
