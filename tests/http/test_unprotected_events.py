"""A request that runs although the store is down is an event and a warning, not only a count."""

from __future__ import annotations

import asyncio
import io
from typing import Any

from tests.http.asgi_requests import CountingApp, guard, send_request
from tests.support.log_records import written_log

from oncekey import AsyncOnce, Event, EventKind, Once
from oncekey.http.rules import Rule
from oncekey.http.wsgi import IdempotencyWSGI
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore
from oncekey.testing import AsyncFaultyStore, FaultyStore

SECRET_KEY = "sk_live_4242424242424242"
RUN = Rule("/charges", ["POST"], store_down="run")
EXPECTED = [EventKind.UNAVAILABLE, EventKind.UNPROTECTED]


def test_an_asgi_request_that_runs_unprotected_is_told() -> None:
    events: list[Event] = []

    async def main() -> None:
        store = AsyncFaultyStore(AsyncMemoryStore())
        async with AsyncOnce(store) as once:
            once.subscribe(events.append)
            app = guard(CountingApp(), RUN, once=once)
            store.down = True
            sent = await send_request(app, SECRET_KEY.encode())
            assert sent.statuses == [201]

    with written_log("oncekey") as log:
        asyncio.run(main())
    check(events, log.lines, log.text)


def test_a_wsgi_request_that_runs_unprotected_is_told() -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("201 Created", [])
        return [b"done"]

    events: list[Event] = []
    store = FaultyStore(MemoryStore())
    with written_log("oncekey") as log, Once(store) as once:
        once.subscribe(events.append)
        wsgi = IdempotencyWSGI(app, once, caller=lambda environ: "me", rules=[RUN], close=False)
        store.down = True
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/charges",
            "HTTP_IDEMPOTENCY_KEY": SECRET_KEY,
            "wsgi.input": io.BytesIO(),
        }
        assert b"".join(wsgi(environ, lambda *_: None)) == b"done"
    check(events, log.lines, log.text)


def check(events: list[Event], lines: list[str], text: str) -> None:
    assert [event.kind for event in events] == EXPECTED
    assert (events[1].surface, events[1].operation) == ("http", "http")
    assert events[1].tag == events[0].tag
    assert [line.partition(": ")[2][:24] for line in lines] == [
        "the store does not answe",
        "the store is down, a req",
    ]
    assert SECRET_KEY not in text
