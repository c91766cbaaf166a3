"""A guarded request inside the transaction of the app's own session.

The handler's rows, the record and the response commit together, before anything is sent. A 4xx is
kept while its rows go; an exception or a 5xx takes everything back and frees the key.

The app's dependency still opens and closes the session. The commit is ours: left to the dependency
it would come after the response.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Final

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar
from starlette._exception_handler import wrap_app_handling_exceptions
from starlette.responses import Response as Starlette

from oncekey.core.errors import ConfigurationError
from oncekey.engine.aio.attempt import AsyncAttempt
from oncekey.engine.blocking.attempt import Attempt
from oncekey.engine.blocking.once import Once
from oncekey.engine.results import Result
from oncekey.http.exchange import RunArguments
from oncekey.http.fastapi.endpoint import Guarding, Visit
from oncekey.http.fastapi.route_request import AtRoute, as_starlette
from oncekey.http.message import Response
from oncekey.http.responder import App, Receive, Scope
from oncekey.http.response_buffer import HOLD_MAX_BYTES, ResponseBuffer, Send

# Each holds a database transaction too, so pools of connections end far below.
THREADS_MAX: Final = 100


class InTransaction(AtRoute):
    """A request to a route whose session is async."""

    def __init__(
        self, guarding: Guarding, app: App, scope: Scope, receive: Receive, send: Send
    ) -> None:
        super().__init__(guarding, app, scope, receive, send)
        loop = asyncio.get_running_loop()
        self._broken: asyncio.Future[Exception] = loop.create_future()

    async def _call(self, visit: Visit) -> Any:
        """Errors are answered here: FastAPI's own way to an answer leads through the dependencies,
        which would end the transaction that the answer is to be stored in."""
        try:
            return await visit.call()
        except Exception as error:
            answer = await _answer(error, visit)
            if answer is not None:
                return answer
            self._broken.set_result(error)
            await asyncio.shield(self._over)  # all is taken back; then the dependencies may see it
            raise

    async def _settle(self, task: asyncio.Task[None], recording: ResponseBuffer) -> None:
        waits: set[asyncio.Future[Any]] = {task, recording.settled, self._broken}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if self._broken.done():
            self._app_error = self._broken.result()
            raise self._app_error
        await super()._settle(task, recording)

    async def _ask(self, asking: RunArguments) -> Result[Response]:
        session = self._visit.result().session
        try:
            if inspect.iscoroutinefunction(getattr(session, "commit", None)):
                return await self._ask_async(session, asking)
            loop = asyncio.get_running_loop()
            return await anyio.to_thread.run_sync(
                self._ask_blocking, session, asking, loop, limiter=_limiter()
            )
        except Exception:
            if self._app_error is None:
                raise
            self._let_go()
            await asyncio.wait({self._task})  # dependencies see an error before the client does
            raise self._app_error from None  # whatever became of a session that it broke
        finally:
            self._let_go()

    async def _ask_async(self, session: Any, asking: RunArguments) -> Result[Response]:
        inside = self._owner.once.in_transaction(session)
        try:
            result = await inside.run(asking.operation, asking.key, self._body_of, **asking.options)
            await session.commit()
        except BaseException:
            await session.rollback()
            raise
        return result

    async def _body_of(self, attempt: AsyncAttempt) -> Response:
        stored = await super()._body_of(attempt)
        if stored.status >= 400:
            await attempt.rollback()
        return stored

    def _ask_blocking(
        self, session: Any, asking: RunArguments, loop: asyncio.AbstractEventLoop
    ) -> Result[Response]:
        """In a thread, which waits while the endpoint runs in another one or in the loop."""

        def body(attempt: Attempt) -> Response:
            work = super(InTransaction, self)._body_of(attempt)  # type: ignore[arg-type]
            stored = asyncio.run_coroutine_threadsafe(work, loop).result()
            if stored.status >= 400:
                attempt.rollback()
            return stored

        inside = _blocking(self._owner, session).in_transaction(session)
        try:
            result = inside.run(asking.operation, asking.key, body, **asking.options)
            session.commit()
        except BaseException:
            session.rollback()
            raise
        return result


def _blocking(owner: Any, session: Any) -> Once:
    once: Once | None = owner.blocking
    if once is None or not hasattr(session, "commit"):
        raise ConfigurationError(
            f"transaction= gave a {type(session).__name__}. It must give a session or connection "
            "that can commit; for one that is not async, "
            "Idempotency(once, blocking=Once(url), ...) on the same database"
        )
    return once


async def _answer(error: Exception, visit: Visit) -> Starlette | None:
    """What the app's exception handlers make of an error; None where it has none for it."""
    request = visit.request
    recording = ResponseBuffer()

    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise error

    handled = wrap_app_handling_exceptions(failing, request)
    try:
        await handled(request.scope, request.receive, recording.send)
        return as_starlette(recording.response(HOLD_MAX_BYTES))
    except Exception as raised:
        if raised is error:
            return None
        raise
    finally:
        recording.close()


_limiters: Final[RunVar[anyio.CapacityLimiter]] = RunVar("oncekey.transactions")


def _limiter() -> anyio.CapacityLimiter:
    """Threads apart from those that endpoints run in: those here wait for those there."""
    found = _limiters.get(None)
    if found is None:
        found = anyio.CapacityLimiter(THREADS_MAX)
        _limiters.set(found)
    return found
