"""One request to a guarded route, from its first byte to its last.

Owns the two tasks of such a request and how they wait for each other. What is decided about the
request is in exchange.py, and what becomes of a run in
asgi/buffered_run.py.
"""

from __future__ import annotations

import enum
from contextlib import AsyncExitStack
from typing import Any, Final

from oncekey.core.errors import OncekeyError
from oncekey.engine.attempts.async_attempt import AsyncAttempt
from oncekey.engine.attempts.attempt import Attempt
from oncekey.engine.attempts.attempt_base import enter as enter_body
from oncekey.engine.attempts.kept_steps import warn_of_kept_steps
from oncekey.engine.results import Result
from oncekey.http.asgi.buffered_run import HandlerRun
from oncekey.http.asgi.comparison_queue import compare_in_turn
from oncekey.http.asgi.late_work import LateExitsError, has_late_exits
from oncekey.http.asgi.lifespan import note_request
from oncekey.http.asgi.messages import (
    BodyReader,
    ReadResult,
    headers_of,
    request_of,
    send_response,
    send_unread,
)
from oncekey.http.asgi.request_tasks import Latch
from oncekey.http.exchange import ATTEMPT, STORE_DOWN_HEADERS, RunArguments, checked_principal
from oncekey.http.fastapi.endpoint import ON_CALL, EndpointGuard, PendingCall, as_starlette
from oncekey.http.fastapi.transaction import response_to, run_in_transaction
from oncekey.http.key_header import HEADER
from oncekey.http.message import App, Headers, Message, Receive, Response, Scope, Send
from oncekey.http.request_fingerprint import is_slow_to_compare
from oncekey.http.stored_responses import FAILURE, NotStored
from oncekey.http.unguarded_keys import mark_key_guarded
from oncekey.http.unhandled_requests import UNSTORED

# Where FastAPI puts what closes the files of a form.
_FILES: Final = "fastapi_middleware_astack"


class State(enum.Enum):
    """How far a request has come."""

    SOLVING = "FastAPI validates the request and solves the endpoint's dependencies"
    PENDING = "the endpoint's call waits for its key"
    ANSWERED = "the endpoint is not called: a stored response or a refusal is returned for it"
    UNPROTECTED = "the store is down, and the endpoint is called without a key"
    RUNNING = "the key is claimed, and the endpoint is called"
    OVER = "the outcome is durable: background tasks follow"


# By themselves, because to look a member up takes long.
_SOLVING: Final = State.SOLVING
_PENDING: Final = State.PENDING
_ANSWERED: Final = State.ANSWERED
_UNPROTECTED: Final = State.UNPROTECTED
_RUNNING: Final = State.RUNNING
_OVER: Final = State.OVER


class RouteRequest:
    """One request to a guarded route: an answering task, and a task for FastAPI's own handler.

        server       answering task           handler task (FastAPI)        engine
          |                |                           |                       |
          |-- respond ---->|-- start ----------------->| SOLVING               |
          |                |                           | reads, validates,     |
          |                |                           | dependencies          |
          |                |<-- PendingCall -----------| PENDING               |
          |                | caller, key,              | wrapper waits for     |
          |                | rest of the body          | the decision          |
          |                |-- run(key) ---------------------------------------->|
          |                |                           |<-- claimed: RUNNING --|
          |                |                           | endpoint              |
          |                |                           | response -> buffer    |
          |                |                           |-- outcome ----------->|
          |                |<-- result: the outcome is durable ------------------|
          |                |-- OVER ------------------>|                       |
          |<-- response ---|                           | background tasks      |
          |<-- end ------------------------------------|                       |

    A dependency that yields may commit in its end. If there is one, FastAPI's own order is kept:
    background tasks and the ends of dependencies follow the response while the endpoint is RUNNING,
    and the outcome is known when the handler has ended. In a transaction (transaction=) the commit
    is ours, and the end of the session's dependency follows it.

    1. The app refuses the request before its endpoint (I15): the handler sends a response without
       a PendingCall. It is sent as it is, and nothing is claimed.
    2. The engine has a stored response, or the request is refused: the decision is that response,
       the wrapper returns it instead of calling the endpoint (ANSWERED), and it is sent like any
       other response of the handler.
    3. The body cannot be read to its end: nothing is claimed, and the handler ends by itself.
    4. The endpoint raises inside a transaction: that is rolled back before the dependencies see
       the error, and these see it before the client does.

    Both tasks begin at once, so the PendingCall is there when the handler's task was started,
    unless something before the endpoint waits. The server may cancel `respond`; neither task ends
    with it (I14). What is sent is held back until the outcome is durable (I13).
    """

    def __init__(
        self, guard: EndpointGuard, app: App, scope: Scope, receive: Receive, send: Send
    ) -> None:
        note_request(guard.setup, scope)
        self._guard = guard
        self._app = app
        self._scope = scope
        self._receive = receive
        self._send = send
        self._headers = headers_of(scope, guard.rule.read_header_names)
        self._exchange = guard.setup.exchange.under(scope.get("root_path", ""))
        self._reader = BodyReader(receive, guard.rule.max_request)
        self._run = HandlerRun(guard.setup, self._exchange, guard.rule)
        self._inner = {
            **scope,
            "extensions": {},
            UNSTORED: self._run.unstored,
            ON_CALL: self._on_call,
        }
        self._state = _SOLVING
        # What SOLVING led to: a call; a body that cannot be read; None: the handler's own response.
        self._solved: Latch[PendingCall | ReadResult | None] = Latch()
        # What the pending call returns or raises; None: call the endpoint.
        self._decision: Latch[Response | BaseException | None] = Latch()
        self._over: Latch[None] = Latch()
        # The status of the endpoint's own response, 0 if FastAPI makes one; None before it returns.
        self._returned: int | None = None
        self._is_delivered = False  # whether the handler's own response was sent

    async def respond(self) -> None:
        """Answer the request. Cancelling this does not cancel what runs."""
        is_free = not self._guard.rule.required and HEADER not in self._headers
        mark_key_guarded(self._scope)
        if is_free or ATTEMPT in self._scope:  # or a guard further outside has claimed the key
            await self._app({**self._scope, ON_CALL: None}, self._receive, self._send)
            return
        await self._guard.setup.tasks.start(self._respond()).join()
        if self._is_delivered:
            await self._run.task.join()  # the server gets the handler's error

    # --- the answering task -------------------------------------------------------------------

    async def _respond(self) -> None:
        rule, exchange = self._guard.rule, self._exchange
        if exchange.declared_too_large(rule, self._headers):
            too_large = exchange.too_large(rule)
            await send_unread(self._send, too_large, self._scope, self._reader)
            return
        try:
            self._run.start(self._handle())
            solved = await self._solved.wait()
            if isinstance(solved, PendingCall):
                await self._answer(solved)
            elif solved is None:
                await self._send_own()
            else:
                await self._give_up(solved)
        except BaseException as error:
            self._decision.set(error)  # or the call would wait for ever
            raise
        finally:
            self._end_wait()
            self._run.buffer.close()

    async def _answer(self, call: PendingCall) -> None:
        rule, exchange, reader = self._guard.rule, self._exchange, self._reader
        caller = checked_principal(call.caller)
        key = exchange.key_of(rule, self._headers) if caller else exchange.unknown_caller()
        if isinstance(key, Response):
            await self._send_reply(key)
            return
        assert key is not None
        read = ReadResult.WHOLE if reader.is_whole else await reader.read(keep=True)
        if read is not ReadResult.WHOLE:
            await self._give_up(read)
            return
        request = request_of(self._scope, self._headers, reader.body)
        if is_slow_to_compare(request):
            arguments = await compare_in_turn(exchange, rule, key, caller, request)
        else:
            arguments = exchange.run_arguments(rule, key, caller, request)
        if isinstance(arguments, Response):
            await self._send_reply(arguments)
            return
        reply: Response | Headers | None
        try:
            result = await self._run_once(call, arguments)
        except (NotStored, OncekeyError) as error:
            reply = self._run.reply_to_error(error)
        else:
            reply = self._run.reply(result)
        if isinstance(reply, Response):
            await self._send_reply(reply)
        elif reply is None:
            self._decide(_UNPROTECTED, None)
            await self._send_own(STORE_DOWN_HEADERS)
        else:
            await self._deliver(reply)

    async def _run_once(self, call: PendingCall, arguments: RunArguments) -> Result[Response]:
        setup = self._guard.setup
        try:
            if self._guard.session is not None:
                return await run_in_transaction(setup, call.session, arguments, self._run_endpoint)
            return await setup.once.run(body=self._run_endpoint, **arguments)
        except Exception:
            error = self._run.error
            if self._guard.session is None or error is None:
                raise
            self._end_wait()
            await self._run.task.ended.wait()
            raise error from None  # and not what became of a session that it broke
        finally:
            self._end_wait()

    async def _run_endpoint(self, attempt: AsyncAttempt | Attempt) -> Response:
        """The engine calls this under a fresh claim."""
        self._run.claim()
        self._inner[ATTEMPT] = attempt
        self._decide(_RUNNING, None)
        try:
            return await self._run.outcome()
        except BaseException as error:
            if self._has_failed_late(error):
                warn_of_kept_steps(attempt)
            raise

    def _has_failed_late(self, error: BaseException) -> bool:
        """Whether the run has failed when its endpoint had returned. The failure is a response if
        an exception handler made one of it."""
        if self._returned is None or not isinstance(error, NotStored):
            return self._returned is not None
        status = self._run.buffer.status
        return status >= FAILURE and status != self._returned

    def _decide(self, state: State, response: Response | None) -> None:
        self._state = state
        self._decision.set(response)

    def _end_wait(self) -> None:
        """The handler no longer waits for its outcome."""
        if self._state is _RUNNING:
            self._state = _OVER
        self._over.set(None)

    async def _give_up(self, read: ReadResult) -> None:
        too_large = self._exchange.too_large(self._guard.rule)
        self._decision.set(too_large)  # for a call that is pending or still comes
        if read is ReadResult.TOO_LARGE:
            await send_unread(self._send, too_large, self._scope, self._reader)

    async def _send_reply(self, response: Response) -> None:
        """Through the handler while the call is pending; past it when the endpoint has run."""
        if self._state is _PENDING:
            self._decide(_ANSWERED, response)
            await self._send_own()
        else:
            await send_response(self._send, response)

    async def _send_own(self, more: Headers = ()) -> None:
        """Send what the handler responds."""
        await self._run.outcome_known.wait()
        if not self._run.buffer.is_storable:
            raise self._run.incomplete_error()
        await self._deliver(more)

    async def _deliver(self, more: Headers) -> None:
        await self._run.buffer.deliver(self._send, more)
        self._is_delivered = True

    # --- the handler's task -------------------------------------------------------------------

    async def _handle(self) -> None:
        """FastAPI's own handling of the route; the files of a form live as long as it runs."""
        try:
            async with AsyncExitStack() as files:
                self._inner[_FILES] = files
                await self._app(self._inner, self._private_receive, self._private_send)
        finally:
            self._solved.set(None)

    async def _on_call(self, call: PendingCall) -> Any:
        """The endpoint's wrapper calls this; returns what the endpoint is to return."""
        if self._state is _SOLVING:
            self._state = _PENDING
        self._solved.set(call)
        decision = await self._decision.wait()
        if isinstance(decision, BaseException):
            raise decision
        if decision is not None:
            return as_starlette(decision)
        attempt: AsyncAttempt | None = self._inner.get(ATTEMPT)
        if attempt is not None:
            # This task is older than the attempt. It is never left: what the endpoint streams
            # belongs to the attempt too, and an attempt that has ended is nobody's current one.
            enter_body(attempt)
        try:
            value = await call.run()
            self._returned = getattr(value, "status_code", 0)
            return value
        except Exception as error:
            if self._guard.session is None:
                raise
            response = await response_to(error, call.request)
            if response is not None:
                return response
            self._run.fail(error)
            await self._over.wait()  # until it is rolled back; then dependencies see it
            raise

    async def _private_send(self, message: Message) -> None:
        """The handler's `send`. What follows the response waits for the outcome; but if the ends of
        dependencies follow, where the app may commit, then the outcome waits for them (I16)."""
        run = self._run
        buffer = run.buffer
        if self._state is _RUNNING and self._guard.session is None and has_late_exits(self._inner):
            run.waits_for_end = True
        await run.send(message)
        if run.waits_for_end:
            if buffer.is_storable and not buffer.is_complete:
                raise LateExitsError
        elif self._state is _RUNNING and buffer.is_complete:
            await self._over.wait()
        elif self._state is _SOLVING and buffer.is_storable:
            self._solved.set(None)

    async def _private_receive(self) -> Message:
        """The handler's `receive`. What FastAPI reads before the endpoint is passed on and kept."""
        reader = self._reader
        if self._state is _SOLVING and not reader.is_whole:
            message = await reader.pass_on()
            if isinstance(message, ReadResult):
                self._solved.set(message)
                return {"type": "http.disconnect"}
            return message
        if not reader.is_given:
            return reader.next_part()
        if self._state is _RUNNING and not self._run.waits_for_end:
            # At a disconnect a streamed response is cut short, so not before all is over.
            await self._over.wait()
        await self._run.buffer.wait_complete()
        return {"type": "http.disconnect"}
