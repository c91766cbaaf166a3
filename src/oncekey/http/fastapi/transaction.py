"""Runs a guarded endpoint inside the transaction of the app's own session.

The handler's rows, the record and the response commit together, before anything is sent. A 4xx is
kept while its rows are rolled back; an exception or a 5xx rolls everything back and frees the key.
The app's dependency still opens and closes the session. The commit is ours: left to the dependency,
it would come after the response.

Owns the commit and the rollback, and the response to an error that the endpoint raises.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Final

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar
from fastapi import Request
from starlette._exception_handler import wrap_app_handling_exceptions
from starlette.responses import Response as StarletteResponse

from oncekey.core.errors import ConfigurationError
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.attempts.async_attempt import AsyncAttempt
from oncekey.engine.attempts.attempt import Attempt
from oncekey.engine.once import Once
from oncekey.engine.results import Result
from oncekey.http.asgi.response_buffer import AsyncResponseBuffer
from oncekey.http.exchange import RunArguments
from oncekey.http.fastapi.endpoint import RouteGuard, as_starlette
from oncekey.http.message import HOLD_MAX_BYTES, Message, Response

# Each thread also holds a database transaction, so connection pools are exhausted long before.
THREADS_MAX: Final = 100

Body = Callable[[AsyncAttempt | Attempt], Coroutine[Any, Any, Response]]


async def run_in_transaction(
    setup: RouteGuard, session: Any, arguments: RunArguments, body: Body
) -> Result[Response]:
    """Run `body` under its key in the session's transaction, and commit."""
    if inspect.iscoroutinefunction(getattr(session, "commit", None)):
        return await _run_async(setup.once, session, arguments, body)
    loop = asyncio.get_running_loop()
    return await anyio.to_thread.run_sync(
        _run_sync, setup.blocking, session, arguments, body, loop, limiter=_limiter()
    )


async def _run_async(
    once: AsyncOnce, session: Any, arguments: RunArguments, body: Body
) -> Result[Response]:
    async def run(attempt: AsyncAttempt) -> Response:
        stored = await body(attempt)
        if stored.status >= 400:
            await attempt.rollback()
        return stored

    operations = once.in_transaction(session)
    try:
        result = await operations.run(body=run, **arguments)
        await session.commit()
    except BaseException:
        await session.rollback()
        raise
    return result


def _run_sync(
    once: Once | None,
    session: Any,
    arguments: RunArguments,
    body: Body,
    loop: asyncio.AbstractEventLoop,
) -> Result[Response]:
    """Called in a thread, which waits while the endpoint runs in another thread or in the loop."""
    if once is None or not hasattr(session, "commit"):
        raise ConfigurationError(
            f"transaction= gave a {type(session).__name__}. It must give a session or connection "
            "that can commit; for one that is not async, "
            "Idempotency(once, blocking=Once(url), ...) on the same database"
        )

    def run(attempt: Attempt) -> Response:
        stored = asyncio.run_coroutine_threadsafe(body(attempt), loop).result()
        if stored.status >= 400:
            attempt.rollback()
        return stored

    operations = once.in_transaction(session)
    try:
        result = operations.run(body=run, **arguments)
        session.commit()
    except BaseException:
        session.rollback()
        raise
    return result


async def response_to(error: Exception, request: Request) -> StarletteResponse | None:
    """The response of the app's exception handlers to an error; None if there is none for it.

    FastAPI itself would call them after the ends of the dependencies, which would end the
    transaction that the response is to be stored in.
    """
    buffer = AsyncResponseBuffer()

    async def fail(scope: Any, receive: Any, send: Any) -> None:
        raise error

    async def hold(message: Message) -> None:
        buffer.take(message)

    handle = wrap_app_handling_exceptions(fail, request)
    try:
        await handle(request.scope, request.receive, hold)
        return as_starlette(buffer.response(HOLD_MAX_BYTES))
    except Exception as raised:
        if raised is error:
            return None
        raise
    finally:
        buffer.close()


_limiters: Final[RunVar[anyio.CapacityLimiter]] = RunVar("oncekey.transactions")


def _limiter() -> anyio.CapacityLimiter:
    """Threads of our own: those that endpoints run in would all be taken by calls that wait for
    them."""
    found = _limiters.get(None)
    if found is None:
        found = anyio.CapacityLimiter(THREADS_MAX)
        _limiters.set(found)
    return found
