"""Runs an ASGI app once under a key, with its response held back, and says what is to be sent.

`AttemptRun` runs the app in the attempt's own task, which needs no other: for asgi.py. The outcome
is known when the app's call has ended, because the app may commit after its response (I16). If only
background tasks follow, it is stored before they begin, and the app goes on in the same task; see
late_work.py.
`HandlerRun` runs a handler that was begun before its key is claimed, in a task of its own: for
fastapi/route_request.py.

Owns what becomes of a run; the response is in response_buffer.py.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Coroutine
from types import FrameType
from typing import Any, Final

from oncekey.core.errors import OncekeyError, StoreUnavailable
from oncekey.engine.attempts.async_attempt import AsyncAttempt, finish_early, task_of
from oncekey.engine.attempts.kept_steps import warn_of_kept_steps
from oncekey.engine.results import Result
from oncekey.http.asgi.late_work import (
    LateExitsError,
    has_late_exits,
    observe_background_tasks,
    waiting_above,
    waiting_in,
)
from oncekey.http.asgi.lifespan import AppGuard
from oncekey.http.asgi.messages import BodyReader
from oncekey.http.asgi.request_tasks import Latch, RequestTask
from oncekey.http.asgi.response_buffer import AsyncResponseBuffer
from oncekey.http.exchange import ATTEMPT, Exchange, unprotected_event
from oncekey.http.message import App, Headers, Message, Response, Scope
from oncekey.http.rules import Rule
from oncekey.http.stored_responses import FAILURE, IncompleteResponse, NotStored, outcome_to_store
from oncekey.http.unhandled_requests import UNSTORED, WatchedScope, is_unstored


class BufferedRun:
    """One run of an app under a key: its buffered response, and what came of it.

    is_claimed  whether the engine has called the body: the app runs under the key
    error       the app's own error, if it ended without a complete response
    """

    buffer: AsyncResponseBuffer
    is_claimed = False
    error: BaseException | None = None
    _claimed_at = 0.0

    def __init__(self, guard: AppGuard, exchange: Exchange, rule: Rule) -> None:
        self._guard = guard
        self._exchange = exchange
        self._rule = rule
        self.unstored: list[int] = []  # filled if the app says that no handler has run

    def claim(self) -> None:
        """The engine has called the body."""
        self.is_claimed = True
        self._claimed_at = time.monotonic()

    def stored(self) -> Response:
        """What is stored of the response. Raises NotStored for one that ends no key."""
        buffer, rule = self.buffer, self._rule
        self._exchange.latency.record(rule, time.monotonic() - self._claimed_at)
        if self.unstored and is_unstored(self.unstored, buffer.status):
            raise NotStored
        response = buffer.response(rule.max_response)
        return outcome_to_store(response, rule, self._guard.once.policy)

    def reply(self, result: Result[Response]) -> Response | Headers:
        """What is to be sent when the engine's `run` has returned: the app's own response with
        these headers added, or the stored one of an earlier attempt, or of an attempt that has
        overtaken ours."""
        if result.replayed or not self.is_claimed:
            return self._exchange.replay(result.value, result.expires_in)
        return self._exchange.fresh_headers(result.expires_in)

    def reply_to_error(self, error: NotStored | OncekeyError) -> Response | Headers | None:
        """What is to be sent when the engine's `run` has raised:

        1. the app's own response, if it ends no key
        2. None if the store was down before the app began, and the rule lets it run unprotected
        3. else a refusal

        Raises the error again if it is the app's own.
        """
        if isinstance(error, NotStored):
            return ()
        if error is self.error:
            raise error  # from an engine of the handler's own
        is_down = isinstance(error, StoreUnavailable) and not error.final
        if is_down and not self.is_claimed and self._rule.store_down == "run":
            self._guard.unprotected += 1
            self._guard.once.notify(unprotected_event(error))
            return None
        return self._exchange.error_response(error, self._rule)


class AttemptRun(BufferedRun):
    """A run in the attempt's own task.

    is_finished     whether the outcome was given to the engine before the app's end
    is_ended        whether the app has ended
    """

    is_finished = False
    is_ended = False
    _call: Any = None  # that of the app, while it runs
    _only_background_follows = False  # by what is known before the response is complete
    _late_error: BaseException | None = None  # of the app, after its outcome
    _ended: Latch[None] | None = None  # if somebody waits for the app's end
    _task: asyncio.Task[Any] | None = None  # that of the attempt, once the run is finished

    def __init__(
        self,
        guard: AppGuard,
        exchange: Exchange,
        rule: Rule,
        app: App,
        scope: Scope,
        reader: BodyReader,
    ) -> None:
        super().__init__(guard, exchange, rule)
        self._app = app
        self._scope = scope
        self._reader = reader

    async def body(self, attempt: AsyncAttempt) -> Response | None:
        """The engine calls this under a fresh claim: runs the app to its end, and returns what is
        stored. Raises the app's error, also one that comes after a complete response; if the
        outcome is stored already, such an error is for the server only."""
        self.claim()
        self._attempt = attempt
        self.buffer = AsyncResponseBuffer(
            users=2
        )  # the request, and the run until its outcome is known
        scope = WatchedScope(self._scope)
        scope.update({"extensions": {}, UNSTORED: self.unstored, ATTEMPT: attempt})
        self._app_scope = scope
        observe_background_tasks(self)
        try:
            call = self._call = self._app(scope, self.receive, self.send)
            await call
            if self.is_finished:
                return None
            if not self.buffer.is_complete:
                raise IncompleteResponse("the app ended before its response was complete")
            value = self._value_to_store()
            self.buffer.close()
            return value
        except NotStored:
            self.buffer.close()
            raise
        except BaseException as raised:
            if not self.is_finished:
                self.error = raised
                if self.buffer.is_complete and self.buffer.status < FAILURE:
                    warn_of_kept_steps(attempt)
                self.buffer.close()
                raise
            if not isinstance(raised, GeneratorExit):  # that is for this coroutine alone
                self._late_error = raised
            if not isinstance(raised, Exception):
                raise  # a cancellation, or what ends the whole process
            return None
        finally:
            self.is_ended = True
            self._call = None
            if self._ended is not None:
                self._ended.set(None)
            if self.is_finished:
                self._guard.tasks.background.discard(self._task)

    async def send(self, message: Message) -> None:
        """The app's `send`. The outcome of a response that is too long to be held is stored here,
        because the rest of it is sent as it comes."""
        buffer = self.buffer
        waits_for = buffer.take(message)
        if waits_for is not None:
            await waits_for
        elif buffer.is_storable and not self.is_finished and not self.is_ended:
            if not buffer.is_complete:
                # Neither is enough: the app may have copied its scope, or send in another task.
                above = waiting_above(sys._getframe(1), _BODY)
                if above.has_exits or has_late_exits(self._app_scope):
                    raise LateExitsError
                await self._finish()
            elif self._only_background_follows and self._is_harmless(sys._getframe(1)):
                await self._finish()

    async def before_background(self, waiting: FrameType | None) -> None:
        """A background task of the app is about to begin. If nothing that may commit comes after
        it, the outcome is stored now, and the task begins when that is durable."""
        if self.is_finished or self.is_ended or not self._is_harmless(waiting):
            return
        if self.buffer.is_complete:
            await self._finish()
        else:  # a middleware with a task of its own has still to pass the last part on
            self._only_background_follows = True

    def _is_harmless(self, frame: FrameType | None) -> bool:
        """Whether nothing that may commit waits for this frame. The app may have begun it in a task
        of its own, that of a middleware: then the attempt's task waits for this middleware."""
        found = waiting_above(frame, _BODY)
        if not found.is_harmless or found.has_exits or has_late_exits(self._app_scope):
            return False
        if found.is_reached or found.middleware is None:
            return found.is_reached
        outer = waiting_in(self._call)
        return outer.is_harmless and outer.middleware is found.middleware

    async def receive(self) -> Message:
        """The app's `receive`. It gives the request, and then nothing until the response is
        complete: whether the client is still there is not the app's concern."""
        if not self._reader.is_given:
            return self._reader.next_part()
        await self.buffer.wait_complete()
        return {"type": "http.disconnect"}

    async def join(self) -> None:
        """Wait for the app's end; raises the error that came after its response. Cancelling this
        does not cancel the app."""
        if not self.is_ended:
            ended = self._ended = Latch()
            if self._task is not None:  # an interrupted app may not come to say that it has ended
                self._task.add_done_callback(lambda _: ended.set(None))
            await ended.wait()
        if self._late_error is not None:
            raise self._late_error

    async def _finish(self) -> None:
        value: Response | None = None
        error: Exception | None = None
        try:
            value = self._value_to_store()
        except Exception as raised:
            error = raised
        finally:
            self.buffer.close()
        self._task = task_of(self._attempt)
        finishing = finish_early(self._attempt, value, error)
        self.is_finished = True  # not before the engine knows the outcome
        self._guard.tasks.background.add(self._task)
        await finishing

    def _value_to_store(self) -> Response:
        try:
            return self.stored()
        except NotStored:
            raise
        except Exception as raised:
            self.error = raised
            raise


_BODY: Final = AttemptRun.body.__code__


class HandlerRun(BufferedRun):
    """A run in a task that begins before the key is claimed.

    task            its task, once it was started
    outcome_known   set when the response can be stored, or the handler has ended
    waits_for_end   whether the outcome is not known before the handler's end
    """

    task: RequestTask
    waits_for_end = False

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start the handler. It may have ended when this returns."""
        self.buffer = AsyncResponseBuffer()
        self.outcome_known: Latch[None] = Latch()
        self.task = self._guard.tasks.start(work, self._wake)

    def _wake(self) -> None:
        self.outcome_known.set(None)

    def fail(self, error: BaseException) -> None:
        """The handler has failed, though it has not ended."""
        self.error = error
        self._wake()

    async def send(self, message: Message) -> None:
        """The handler's `send`."""
        waits_for = self.buffer.take(message)
        if waits_for is not None:
            await waits_for
        elif self.buffer.is_storable and not self.waits_for_end:
            self._wake()

    async def outcome(self) -> Response:
        """Wait until the outcome is known, and return what is stored of it. Raises the handler's
        error, or NotStored for a response that ends no key."""
        buffer = self.buffer
        buffer.add_user()
        try:
            if not self.outcome_known.is_set:
                try:
                    await self.outcome_known.wait()
                except asyncio.CancelledError:  # another attempt has taken over, or the loop ends
                    await self.task.cancel()
                    raise
            if self.error is None and not buffer.is_storable:
                self.error = self.incomplete_error()
            if self.error is None and self.waits_for_end:
                self.error = self.task.ended.value
            if self.error is not None:
                raise self.error
            return self.stored()
        finally:
            buffer.close()

    def incomplete_error(self) -> BaseException:
        """Why the handler ended without a complete response."""
        error = self.task.ended.value
        if isinstance(error, asyncio.CancelledError):
            return asyncio.CancelledError()
        return error or IncompleteResponse("the app ended before its response was complete")
