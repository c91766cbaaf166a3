"""The headers that are added to responses: the remaining retention, and when to retry."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.http.asgi_requests import CountingApp, guard, send_request

from oncekey import AsyncOnce
from oncekey.http.rules import HEAD_MAX_BYTES, HEADERS_MAX, Rule
from oncekey.stores.memory import AsyncMemoryStore
from oncekey.testing.fake_clock import FakeClock


@pytest.mark.parametrize("later_seconds", [30, 3600], ids=["from the cache", "from the store"])
def test_retention_header_of_a_replay_is_the_remaining_time(later_seconds: int) -> None:
    async def main() -> None:
        clock = FakeClock()
        once = AsyncOnce(AsyncMemoryStore(clock=clock.wall), clock=clock)
        app = guard(CountingApp(), Rule(keep="2h"), once=once)
        first = await send_request(app)
        clock.advance(later_seconds * 1_000_000)
        again = await send_request(app)
        assert dict(first.headers)[b"x-idempotency-retention"] == b"7200"
        assert dict(again.headers)[b"x-idempotency-replayed"] == b"true"
        left = int(dict(again.headers)[b"x-idempotency-retention"])
        assert left == 7200 - later_seconds
        await once.close()

    asyncio.run(main())


def test_retry_after_is_short_until_the_latency_is_known() -> None:
    async def main() -> None:
        entered, gate = asyncio.Event(), asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            entered.set()
            await gate.wait()
            await CountingApp()(scope, receive, send)

        once = AsyncOnce("memory://")
        guarded = guard(app, Rule(lease="2m"), once=once)
        running = asyncio.create_task(send_request(guarded))
        await entered.wait()
        busy = await send_request(guarded)
        assert busy.statuses == [409]
        assert dict(busy.headers)[b"retry-after"] == b"2"
        gate.set()
        await running

        # From now on the latency is known: such requests end at once.
        entered.clear()
        gate.clear()
        running = asyncio.create_task(send_request(guarded, b"other"))
        await entered.wait()
        assert dict((await send_request(guarded, b"other")).headers)[b"retry-after"] == b"1"
        gate.set()
        await running
        await once.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "lines",
    [
        [(b"link", b"</%d>" % n) for n in range(70_000)],
        [(b"link", b"</%d>" % n) for n in range(HEADERS_MAX + 1)],
        [(b"link", b"x" * HEAD_MAX_BYTES), (b"link", b"y")],
    ],
    ids=["more than a length field holds", "one too many", "too long"],
)
def test_response_with_too_many_headers_reaches_the_first_caller(lines: Any) -> None:
    async def main() -> None:
        runs = 0

        async def app(scope: Any, receive: Any, send: Any) -> None:
            nonlocal runs
            runs += 1
            await send({"type": "http.response.start", "status": 201, "headers": lines})
            await send({"type": "http.response.body", "body": b"made"})

        once = AsyncOnce("memory://")
        guarded = guard(app, once=once)
        first, again = await send_request(guarded), await send_request(guarded)
        assert (first.statuses, first.body) == ([201], b"made")
        assert first.headers[: len(lines)] == lines
        assert again.statuses == [409]
        assert b"not-replayable" in again.body
        assert b'"original_status": 201' in again.body
        assert runs == 1
        await once.close()

    asyncio.run(main())
