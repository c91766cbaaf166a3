"""The ASGI middleware in one process: mounted apps, nested guards, reused buffers, unusual
requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import anyio
import pytest
from starlette.background import BackgroundTask
from starlette.responses import Response
from tests.http.asgi_requests import CountingApp, SentMessages, guard, send_request

from oncekey import AsyncOnce, ConfigurationError, StoreUnavailable
from oncekey.core.commands import Claim, Command
from oncekey.core.policy import Policy
from oncekey.http.asgi import IdempotencyMiddleware
from oncekey.http.rules import Rule
from oncekey.stores.memory import AsyncMemoryStore
from oncekey.testing.contract.store_case import SECOND
from oncekey.testing.fake_clock import FakeClock
from oncekey.testing.faulty_store import AsyncFaultyStore, Fault


@pytest.mark.parametrize(
    "where",
    [
        {"path": "/api/charges", "root_path": "/api"},
        {"path": "/charges", "root_path": ""},
        {"path": "/charges", "root_path": "/api"},
        {"path": "/apicharges", "root_path": "/api"},  # Quart and Litestar serve it as /charges
        {"path": "/x/api/charges", "root_path": "/api"},  # Litestar does
        {"method": "post"},
    ],
)
def test_a_rule_matches_wherever_the_app_is_mounted(where: dict[str, Any]) -> None:
    async def main() -> None:
        app = CountingApp()
        guarded = guard(app, Rule("/charges", methods=["post"]))
        assert (await send_request(guarded, None, **where)).statuses == [400]
        for _ in range(2):
            assert (await send_request(guarded, **where)).statuses == [201]
        assert app.runs == 1
        assert (await send_request(guarded, None, path="/other", root_path="/api")).statuses == [
            201
        ]

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/f/{p:path}", "/f/<p>"])
def test_a_rule_with_another_routers_path_syntax_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match="one segment"):
        Rule(path)


def test_first_response_and_replay_have_the_apps_headers() -> None:
    async def main() -> None:
        guarded = guard(CountingApp())
        first, again = await send_request(guarded), await send_request(guarded)
        assert (b"location", b"/x") in first.headers
        assert (b"location", b"/x") in again.headers

    asyncio.run(main())


def test_an_app_that_reuses_its_buffer_is_buffered_correctly() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        buffer = bytearray(3)
        for part in (b"aaa", b"bbb", b"ccc"):
            buffer[:] = part
            message = {"type": "http.response.body", "body": memoryview(buffer), "more_body": True}
            await send(message)
        await send({"type": "http.response.body", "body": None})

    async def main() -> None:
        guarded = guard(app)
        assert (await send_request(guarded)).body == b"aaabbbccc"
        assert (await send_request(guarded)).body == b"aaabbbccc"

    asyncio.run(main())


def test_of_two_nested_middlewares_the_outer_one_guards() -> None:
    async def main() -> None:
        app, once = CountingApp(), AsyncOnce("memory://")
        guarded = guard(guard(app, once=once), once=once)
        assert [(await send_request(guarded)).statuses for _ in range(2)] == [[201], [201]]
        assert app.runs == 1

    asyncio.run(main())


def test_a_background_tasks_error_sends_no_second_response() -> None:
    async def fail() -> None:
        raise StoreUnavailable("from a background task")

    app = Response(b"ok", 201, background=BackgroundTask(fail))

    async def main() -> None:
        sent = SentMessages()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.messages.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/",
            "headers": [(b"idempotency-key", b"k")],
        }
        with pytest.raises(StoreUnavailable, match="background"):
            await guard(app)(scope, receive, send)
        assert sent.statuses == [201]

    asyncio.run(main())


@pytest.mark.parametrize("status", [307, 308])
def test_a_307_or_308_frees_the_key(status: int) -> None:
    async def main() -> None:
        app = CountingApp(status)
        guarded = guard(app)
        await send_request(guarded, path="/charges/")
        app.status = 201
        assert (await send_request(guarded)).statuses == [201]
        assert app.runs == 2

    asyncio.run(main())


@pytest.mark.parametrize("length", [b"9" * 5_000, b"0" * 50 + b"1", b"\xb2"])
def test_an_unusual_content_length_is_accepted_or_refused_with_413(length: bytes) -> None:
    async def main() -> None:
        headers = [(b"idempotency-key", b"k"), (b"content-length", length)]
        sent = await send_request(guard(CountingApp()), headers=headers)
        assert sent.statuses == [413 if length[:1] == b"9" else 201]

    asyncio.run(main())


def test_a_path_with_undecodable_bytes_is_fingerprinted() -> None:
    async def main() -> None:
        assert (await send_request(guard(CountingApp()), path="/\udc80")).statuses == [201]

    asyncio.run(main())


@pytest.mark.parametrize("name", ["x" * 256, "a\nb"])
def test_a_caller_too_long_or_unprintable_raises_value_error(name: str) -> None:
    async def main() -> None:
        app = CountingApp()
        guarded = IdempotencyMiddleware(app, AsyncOnce("memory://"), caller=lambda scope: name)
        with pytest.raises(ValueError, match="caller="):
            await send_request(guarded)
        assert app.runs == 0

    asyncio.run(main())


# --- headers, as servers may give them ------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        [(b"idempotency-key", b"k")],
        [(b"Idempotency-Key", b"k")],  # against the specification of ASGI
        [(b"IDEMPOTENCY-KEY", bytearray(b"k"))],
        [(b"idempotency-key", memoryview(b"k"))],
        iter([(b"idempotency-key", b"k")]),
    ],
)
def test_a_key_is_found_however_the_server_gives_it(headers: Any) -> None:
    async def main() -> None:
        app = CountingApp()
        guarded = guard(app)
        lines = list(headers)
        for _ in range(2):
            assert (await send_request(guarded, headers=lines)).statuses == [201]
        assert app.runs == 1

    asyncio.run(main())


def test_headers_that_no_rule_reads_do_not_matter_and_doubled_ones_do() -> None:
    async def main() -> None:
        guarded = guard(CountingApp(), Rule(request_headers=["X-Tenant"]))
        key, json = (b"idempotency-key", b"k"), (b"content-type", b"application/json")
        sent = [
            [key, json, (b"x-tenant", b"a")],
            [(b"x-trace", b"1"), (b"x-tenant", b"a"), json, key],
            [key, json, (b"x-tenant", b"a"), (b"x-tenant", b"b")],
            [key, json, json, (b"x-tenant", b"a")],
            [key, key, json, (b"x-tenant", b"a")],
        ]
        statuses = [(await send_request(guarded, headers=lines)).statuses[0] for lines in sent]
        assert statuses == [201, 201, 422, 422, 400]

    asyncio.run(main())


# --- apps that go on after their response, or wait before it --------------------------------------

current: ContextVar[str] = ContextVar("current", default="outside")


def layered(app: Any) -> Any:
    """Middleware that holds a cancel scope and a context variable open around an app."""

    async def call(scope: Any, receive: Any, send: Any) -> None:
        token = current.set("inside")
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep, 0)
                await app(scope, receive, send)
        finally:
            current.reset(token)

    return call


@pytest.mark.parametrize("waits_before", [False, True])
@pytest.mark.parametrize("waits_after", [False, True])
def test_an_app_may_wait_inside_of_cancel_scopes_and_contexts(
    waits_before: bool, waits_after: bool
) -> None:
    tasks: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        tasks.append(asyncio.current_task())
        if waits_before:
            await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})
        if waits_after:
            await asyncio.sleep(0)
        tasks.append(asyncio.current_task())
        assert current.get() == "inside"

    async def main() -> None:
        sent = await send_request(guard(layered(app)))
        assert (sent.statuses, sent.body) == ([201], b"ok")
        assert tasks[0] is tasks[1]
        assert current.get() == "outside"

    asyncio.run(main())


def test_a_background_task_delays_neither_the_response_nor_a_replay() -> None:
    async def main() -> None:
        go = asyncio.Event()
        done: list[bool] = []

        async def background() -> None:
            await go.wait()
            done.append(True)

        guarded = guard(Response(b"ok", 201, background=BackgroundTask(background)))
        arrived = asyncio.Event()
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/charges",
            "headers": [(b"idempotency-key", b"k")],
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                arrived.set()

        request = asyncio.create_task(guarded(scope, receive, send))
        await arrived.wait()
        assert not request.done()
        assert (await send_request(guarded)).body == b"ok", "a replay, meanwhile"
        request.cancel()  # the server gives up; the background task goes on
        await asyncio.wait({request})
        go.set()
        await guarded.drain()
        assert done == [True]

    asyncio.run(main())


def test_an_app_that_watches_for_a_disconnect_learns_of_it_after_its_response() -> None:
    events: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.request"

        async def watch() -> None:
            events.append((await receive())["type"])

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0)
        assert events == []
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})
        await watching

    async def main() -> None:
        assert (await send_request(guard(app))).statuses == [201]
        assert events == ["http.disconnect"]

    asyncio.run(main())


@pytest.mark.parametrize("waits", [False, True])
def test_an_app_without_a_complete_response_is_never_replayed(waits: bool) -> None:
    runs: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        runs.append(1)
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        if waits:
            await asyncio.sleep(0)

    async def main() -> None:
        guarded = guard(app)
        with pytest.raises(RuntimeError, match="before its response was complete"):
            await send_request(guarded)
        assert (await send_request(guarded)).statuses == [500]
        assert runs == [1]

    asyncio.run(main())


@pytest.mark.parametrize("name", ["", " ", "   ", "\t", "\u00a0", " \n"])
def test_i15_a_caller_with_a_blank_name_is_nobody(name: str) -> None:
    app = CountingApp()
    guarded = IdempotencyMiddleware(app, AsyncOnce("memory://"), caller=lambda scope: name)
    sent = asyncio.run(send_request(guarded))
    assert sent.statuses == [401]
    assert app.runs == 0


def test_a_request_that_outlives_its_lease_while_the_store_is_away_gets_503() -> None:
    """Its retry-safe handler is stopped, and nobody has taken over."""

    async def main() -> None:
        clock = FakeClock()

        def away(number: int, commands: Sequence[Command]) -> Fault | None:
            return None if isinstance(commands[0], Claim) else Fault.REFUSE

        store = AsyncFaultyStore(AsyncMemoryStore(clock=clock.wall), away)
        once = AsyncOnce(store, clock=clock, policy=Policy(lease="30s", retry_safe=True))
        inside = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            inside.set()
            await asyncio.Event().wait()

        request = asyncio.create_task(send_request(guard(app, once=once)))
        await inside.wait()
        while not request.done():
            await asyncio.sleep(0)
            clock.advance(SECOND)
        sent = await request
        assert sent.statuses == [503]
        assert json.loads(sent.body)["code"] == "unavailable"
        store.script = {}
        await once.close()

    asyncio.run(main())
