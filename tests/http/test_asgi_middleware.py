"""Apps and requests of the odder kinds, in one process: mounts, nested guards, reused buffers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oncekey import AsyncOnce, ConfigurationError, StoreUnavailable
from oncekey.http.asgi import IdempotencyMiddleware
from oncekey.http.rules import Rule

App = Callable[[Any, Any, Any], Awaitable[None]]


class Sent:
    """What came out of an app, and how often it ran."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    @property
    def statuses(self) -> list[int]:
        return [m["status"] for m in self.messages if m["type"] == "http.response.start"]

    @property
    def body(self) -> bytes:
        return b"".join(bytes(m.get("body", b"")) for m in self.messages)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return list(self.messages[0]["headers"])


async def ask(app: App, key: bytes | None = b"k", body: Any = b"", **more: Any) -> Sent:
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/charges",
        "raw_path": None,
        "query_string": b"",
        "headers": [] if key is None else [(b"idempotency-key", key)],
        **more,
    }
    sent = Sent()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.messages.append(message)

    await app(scope, receive, send)
    return sent


class Counting:
    def __init__(self, status: int = 201) -> None:
        self.runs = 0
        self.status = status

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.runs += 1
        lines = iter([(b"location", b"/x")])  # ASGI says: an iterable
        await send({"type": "http.response.start", "status": self.status, "headers": lines})
        await send({"type": "http.response.body", "body": b"%d" % self.runs})


def guard(app: App, *rules: Rule, once: AsyncOnce | None = None) -> IdempotencyMiddleware:
    engine = once or AsyncOnce("memory://")
    return IdempotencyMiddleware(app, engine, caller=lambda scope: "me", rules=rules)


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
def test_a_rule_fits_wherever_the_app_is_mounted(where: dict[str, Any]) -> None:
    async def scene() -> None:
        app = Counting()
        guarded = guard(app, Rule("/charges", methods=["post"]))
        assert (await ask(guarded, None, **where)).statuses == [400]
        for _ in range(2):
            assert (await ask(guarded, **where)).statuses == [201]
        assert app.runs == 1
        assert (await ask(guarded, None, path="/other", root_path="/api")).statuses == [201]

    asyncio.run(scene())


@pytest.mark.parametrize("path", ["/f/{p:path}", "/f/<p>"])
def test_parameters_of_other_routers_are_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match="one segment"):
        Rule(path)


def test_the_first_caller_gets_the_headers_too() -> None:
    async def scene() -> None:
        guarded = guard(Counting())
        first, again = await ask(guarded), await ask(guarded)
        assert (b"location", b"/x") in first.headers
        assert (b"location", b"/x") in again.headers

    asyncio.run(scene())


def test_an_app_may_use_its_buffer_again() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        buffer = bytearray(3)
        for part in (b"aaa", b"bbb", b"ccc"):
            buffer[:] = part
            message = {"type": "http.response.body", "body": memoryview(buffer), "more_body": True}
            await send(message)
        await send({"type": "http.response.body", "body": None})

    async def scene() -> None:
        guarded = guard(app)
        assert (await ask(guarded)).body == b"aaabbbccc"
        assert (await ask(guarded)).body == b"aaabbbccc"

    asyncio.run(scene())


def test_one_guard_within_another_lets_the_outer_one_do_it() -> None:
    async def scene() -> None:
        app, once = Counting(), AsyncOnce("memory://")
        guarded = guard(guard(app, once=once), once=once)
        assert [(await ask(guarded)).statuses for _ in range(2)] == [[201], [201]]
        assert app.runs == 1

    asyncio.run(scene())


def test_a_background_tasks_error_is_no_second_response() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})
        raise StoreUnavailable("from a background task")

    async def scene() -> None:
        sent = Sent()

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

    asyncio.run(scene())


@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_to_be_followed_leaves_its_key_free(status: int) -> None:
    async def scene() -> None:
        app = Counting(status)
        guarded = guard(app)
        await ask(guarded, path="/charges/")
        app.status = 201
        assert (await ask(guarded)).statuses == [201]
        assert app.runs == 2

    asyncio.run(scene())


@pytest.mark.parametrize("length", [b"9" * 5_000, b"0" * 50 + b"1", b"\xb2"])
def test_no_length_is_too_odd(length: bytes) -> None:
    async def scene() -> None:
        headers = [(b"idempotency-key", b"k"), (b"content-length", length)]
        sent = await ask(guard(Counting()), headers=headers)
        assert sent.statuses == [413 if length[:1] == b"9" else 201]

    asyncio.run(scene())


def test_a_path_of_odd_characters_is_compared_all_the_same() -> None:
    async def scene() -> None:
        assert (await ask(guard(Counting()), path="/\udc80")).statuses == [201]

    asyncio.run(scene())


@pytest.mark.parametrize("name", ["x" * 256, "a\nb"])
def test_a_caller_that_cannot_be_kept_is_the_apps_mistake(name: str) -> None:
    async def scene() -> None:
        app = Counting()
        guarded = IdempotencyMiddleware(app, AsyncOnce("memory://"), caller=lambda scope: name)
        with pytest.raises(ValueError, match="caller="):
            await ask(guarded)
        assert app.runs == 0

    asyncio.run(scene())
