"""FastAPI's background tasks and streams beside a dependency that commits after them (I16)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import BackgroundTasks, Depends, Request
from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session
from tests.http.failing_commits import Shop, async_session, is_replay, post
from tests.http.fastapi_set_up import GUARDS, GuardedApp


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


async def answered_before(app: Any, gate: asyncio.Event) -> None:
    """Send a request whose background task waits for the gate; the response must not."""
    messages: list[Any] = []
    done = asyncio.Event()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        messages.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            done.set()

    scope = {
        "type": "http",
        "asgi": {"spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/orders",
        "query_string": b"",
        "headers": [(b"idempotency-key", b"k")],
    }
    request = asyncio.create_task(app(scope, receive, send))
    await asyncio.wait_for(done.wait(), 60)
    assert not gate.is_set()
    gate.set()
    await request


@pytest.mark.parametrize("how", GUARDS)
@pytest.mark.parametrize("scope", ["none", "function"])
def test_a_background_task_delays_no_response_if_nothing_commits_after_it(
    shop: Shop, how: str, scope: str
) -> None:
    gate = asyncio.Event()
    shop.open_account()
    guarded = GuardedApp(how)
    depends: Any = Depends(async_session(shop), scope="function")

    if scope == "function":

        @guarded.post
        async def place(tasks: BackgroundTasks, session: Session = depends) -> str:
            shop.write_order(session)
            tasks.add_task(gate.wait)
            return "placed"

    else:

        @guarded.post
        async def place_nothing(tasks: BackgroundTasks) -> str:
            tasks.add_task(gate.wait)
            return "placed"

    asyncio.run(answered_before(guarded.app, gate))


@pytest.mark.parametrize("how", GUARDS)
def test_a_background_task_uses_the_session_that_commits_after_it(shop: Shop, how: str) -> None:
    shop.open_account()
    guarded = GuardedApp(how)
    depends: Any = Depends(async_session(shop))

    @guarded.post
    async def place(tasks: BackgroundTasks, session: Session = depends) -> str:
        shop.write_order(session)
        tasks.add_task(shop.write_order, session)
        return "placed"

    assert post(guarded.app).status_code == 201
    assert shop.orders() == 2, "both, in the one transaction of the session"
    assert is_replay(post(guarded.app))
    assert shop.orders() == 2


@pytest.mark.parametrize("how", GUARDS)
def test_i16_a_background_task_that_rolls_the_session_back_ends_the_attempt(
    shop: Shop, how: str
) -> None:
    shop.open_account()
    guarded = GuardedApp(how, retry_safe=True)
    depends: Any = Depends(async_session(shop))
    fails = [True]

    async def fail_once() -> None:
        if fails.pop():
            raise ValueError("no e-mail")

    @guarded.post
    async def place(tasks: BackgroundTasks, session: Session = depends) -> str:
        shop.write_order(session)
        tasks.add_task(fail_once)
        return "placed"

    assert post(guarded.app).status_code == 500
    assert shop.orders() == 0
    fails.append(False)
    assert post(guarded.app).status_code == 201
    assert shop.orders() == 1


def test_a_response_behind_two_http_middlewares_waits_for_its_background_task(shop: Shop) -> None:
    """What is between them cannot be seen, and might commit."""
    events: list[str] = []
    guarded = GuardedApp("install behind http middleware")

    @guarded.app.middleware("http")
    async def pass_on(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    async def background() -> None:
        events.append("background")

    @guarded.post
    async def place(tasks: BackgroundTasks) -> str:
        tasks.add_task(background)
        return "placed"

    assert post(guarded.app).status_code == 201
    assert events == ["background"]
    assert is_replay(post(guarded.app))


# --- streams ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", GUARDS)
def test_i16_a_stream_is_part_of_the_attempt_and_so_is_the_commit_after_it(
    shop: Shop, how: str
) -> None:
    guarded = GuardedApp(how, retry_safe=True)
    depends: Any = Depends(async_session(shop))

    @guarded.post
    async def place(session: Session = depends) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            shop.write_order(session)
            yield b"pla"
            yield b"ced"

        return StreamingResponse(parts(), 201)

    assert post(guarded.app).status_code == 500
    shop.open_account()
    first, again = post(guarded.app), post(guarded.app)
    assert (first.content, again.content) == (b"placed", b"placed")
    assert (is_replay(first), is_replay(again), shop.orders()) == (False, True, 1)


@pytest.mark.parametrize("how", GUARDS)
@pytest.mark.parametrize("scope", ["request", "function"])
def test_a_response_too_long_to_be_held_is_refused_if_a_commit_follows_it(
    shop: Shop, how: str, scope: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncekey.http.asgi.response_buffer.HOLD_MAX_BYTES", 10)
    shop.open_account()
    guarded = GuardedApp(how)
    depends: Any = Depends(async_session(shop), scope=scope)

    @guarded.post
    async def place(session: Session = depends) -> StreamingResponse:
        shop.write_order(session)

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(5):
                yield b"placed"

        return StreamingResponse(parts(), 201)

    first = post(guarded.app)
    if scope == "function":  # committed before the response
        assert (first.status_code, len(first.content), shop.orders()) == (201, 30, 1)
    else:
        assert (first.status_code, shop.orders()) == (500, 0)


@pytest.mark.parametrize("how", GUARDS)
def test_an_app_that_waits_for_the_clients_end_before_its_commit_does_not_wait_for_itself(
    shop: Shop, how: str
) -> None:
    shop.open_account()
    guarded = GuardedApp(how)
    depends: Any = Depends(async_session(shop))

    @guarded.post
    async def place(request: Request, tasks: BackgroundTasks, session: Session = depends) -> str:
        shop.write_order(session)
        await request.body()
        tasks.add_task(request.receive)
        return "placed"

    assert post(guarded.app).status_code == 201
    assert is_replay(post(guarded.app))
    assert shop.orders() == 1
