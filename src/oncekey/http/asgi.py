"""`IdempotencyMiddleware`: any ASGI app, guarded.

    app.add_middleware(IdempotencyMiddleware, once=AsyncOnce(url), caller=verified_account_id)

Requests that no rule guards reach the app untouched, their streams included. A guarded one is read,
claimed and run in a task of its own with a `receive` and a `send` of our own: a client that goes
away, or a server that shuts down, takes no result with it (I14). Its response leaves when its
outcome is durable (I13). Put authentication outside of it or into `caller`, compression and CORS
outside.

Owns the ASGI side only; the rules of an exchange are in exchange.py.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, Protocol
from urllib.parse import quote

from oncekey.core.duration import Duration, microseconds
from oncekey.core.errors import ConfigurationError, OncekeyError, StoreUnavailable
from oncekey.engine.aio.attempt import AsyncAttempt
from oncekey.engine.aio.once import AsyncOnce
from oncekey.engine.results import Result
from oncekey.http.exchange import OPERATION_DEFAULT, Asking, Exchange, Keyed, marks
from oncekey.http.message import Headers, Request, Response
from oncekey.http.recording import Message, Recording, Send
from oncekey.http.rules import Rule, Rules
from oncekey.http.running import (
    ATTEMPT,
    Incomplete,
    Unstored,
    check_caller,
    keep_seconds,
    outcome,
    principal,
)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[Any, Any, Any], Awaitable[None]]
Caller = Callable[[Scope], str | Awaitable[str | None] | None]

DRAIN_DEFAULT: Final = "30s"
_UNSTORED: Final = "oncekey.unstored"

_log = logging.getLogger("oncekey")


def attempt_of(scope: Any) -> AsyncAttempt | None:
    """The attempt a handler runs in, from its ASGI scope (or an object that has one, such as a
    Starlette request): for steps, child keys and the fence. None where no key guards it."""
    found: AsyncAttempt | None = getattr(scope, "scope", scope).get(ATTEMPT)
    return found


def leave_unstored(scope: Any) -> None:
    """Say that the response which follows is no outcome, whatever its status: its key is free
    again. For refusals that come before a handler ran."""
    said: list[bool] | None = getattr(scope, "scope", scope).get(_UNSTORED)
    if said is not None:
        said.append(True)  # a list, since layers in between may have copied the scope


class Tasks:
    """What runs, whether or not its client is still there."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def wait(self, seconds: float) -> None:
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # told to whoever waits; if nobody does, it is not the loop's business


class Owner(Protocol):
    """What a request's guard needs of whoever set it up."""

    once: AsyncOnce
    exchange: Exchange
    tasks: Tasks
    unprotected: int


class IdempotencyMiddleware:
    """Guards the requests that `rules` name; by default every POST and PATCH.

    caller      a function of the scope that gives the verified principal, or None to refuse
    rules       see Rule; the first that fits counts
    operation   what its keys are for; two apps on one store want two names
    policy_url  where clients find the published policy
    drain       how long a shutdown waits for what is running
    close       whether the engine is closed with the app
    """

    def __init__(
        self,
        app: App,
        once: AsyncOnce,
        *,
        caller: Caller,
        rules: Iterable[Rule] = (),
        operation: str = OPERATION_DEFAULT,
        policy_url: str | None = None,
        challenge: str = "Bearer",
        drain: Duration = DRAIN_DEFAULT,
        close: bool = True,
    ) -> None:
        if not isinstance(once, AsyncOnce):
            raise ConfigurationError(f"once must be an AsyncOnce, not a {type(once).__name__}")
        check_caller(caller)
        self.app = app
        self.once = once
        self.caller = caller
        self.exchange = Exchange(
            Rules(rules), operation=operation, policy_url=policy_url, challenge=challenge
        )
        self.unprotected = 0  # runs without a key's protection because the store was down
        self._find = self.exchange.rules.find
        self._drain = microseconds(drain, name="drain") / 1_000_000
        self._close = close
        self.tasks = Tasks()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            rule = self._find(scope["method"], scope["path"])
            if rule is not None and (rule.required or self.exchange.has_key(scope["headers"])):
                await _OfApp(self, rule, scope, receive, send).respond()
                return
        elif scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        await self.app(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hold the app's shutdown back until what runs has ended: it closes what that needs."""

        async def watched() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self.drain()
            return message

        async def told(message: Message) -> None:
            # Not when the app ends: one without a lifespan does so at the start, and once this
            # is told, some servers cancel what is left of it.
            if self._close and message["type"].startswith("lifespan.shutdown."):
                await self.once.close()
            await send(message)

        await self.app(scope, watched, told)

    async def drain(self) -> None:
        """Wait for the running requests, also for those whose clients are gone."""
        await self.once.drain(self._drain)
        await self.tasks.wait(self._drain)


class Responder:
    """One guarded request. How the app is begun and asked who calls is up to subclasses."""

    def __init__(
        self, owner: Owner, rule: Rule, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._owner = owner
        self._exchange = owner.exchange
        self._rule = rule
        self._scope = scope
        self._receive = receive
        self._send = send
        self._headers: Headers = tuple((bytes(n).lower(), bytes(v)) for n, v in scope["headers"])
        self._body = b""
        self._body_given = False
        self._recording: Recording | None = None
        self._task: asyncio.Task[None] | None = None
        self._app_error: BaseException | None = None
        self._began = False
        self._unstored: list[bool] = []

    async def _read(self) -> Reading:
        """Read the whole request: a refused one too, for the connection's next one comes behind
        it. Nothing is read of what is too large by its own word."""
        if self._exchange.declared_too_large(self._rule, self._headers):
            return Reading.TOO_LARGE
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return Reading.GONE
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > self._rule.max_request:
                return Reading.TOO_LARGE
            chunks.append(chunk)
            if not message.get("more_body", False):
                self._body = b"".join(chunks)
                return Reading.WHOLE

    async def _guarded(self, keyed: Keyed, caller: str) -> None:
        asking = self._exchange.asking(keyed, caller, self._request())
        if isinstance(asking, Response):
            await self._give(asking)
            return
        try:
            await self._run(asking)
        except OncekeyError as error:
            if error is self._app_error:
                raise  # the handler's own, from an engine of its own
            await self._failed(error)
        finally:
            if self._recording is not None:
                self._recording.close()

    async def _run(self, asking: Asking) -> None:
        keep = keep_seconds(self._owner.once.policy, self._rule)
        try:
            result = await self._ask(asking)
        except Unstored:
            assert self._recording is not None
            await self._deliver(self._recording, ())
            return
        if result.replayed or not self._began:
            await self._give(self._exchange.replay(result.value, keep))
        else:
            assert self._recording is not None
            await self._deliver(self._recording, marks(keep, replayed=False))

    async def _ask(self, asking: Asking) -> Result[Response]:
        once = self._owner.once
        return await once.run(asking.operation, asking.key, self._body_of, **asking.options)

    async def _failed(self, error: OncekeyError) -> None:
        is_down = isinstance(error, StoreUnavailable) and not self._began
        if is_down and self._rule.store_down == "run":
            self._owner.unprotected += 1
            _log.warning("the store is down, a request runs without protection: %s", error)
            await self._run_unprotected()
            return
        await self._give(self._exchange.refuse(error, self._rule))

    # --- the run ------------------------------------------------------------------------------

    async def _body_of(self, attempt: AsyncAttempt) -> Response:
        """Run the app until its outcome is known: at the last part of its response, not at its
        end, for background tasks come in between."""
        self._began = True
        began = time.monotonic()
        task, recording = self._begin(attempt)
        with recording:
            await self._settle(task, recording)
            self._exchange.durations.saw(self._rule, time.monotonic() - began)
            if self._unstored:
                raise Unstored
            response = recording.response(self._rule.max_response)
        return outcome(response, self._rule, self._owner.once.policy)

    def _begin(self, attempt: AsyncAttempt) -> tuple[asyncio.Task[None], Recording]:
        raise NotImplementedError

    async def _run_unprotected(self) -> None:
        raise NotImplementedError

    async def _settle(self, task: asyncio.Task[None], recording: Recording) -> None:
        task.add_done_callback(recording.app_ended)
        try:
            await asyncio.shield(recording.known)
        except asyncio.CancelledError:  # another attempt has taken over, or all is shut down
            task.cancel()
            await asyncio.wait({task})
            raise
        if not recording.settled.done():
            self._app_error = error_of(task)
            raise self._app_error

    def _private_scope(self) -> Scope:
        """The scope for an app whose response is held back."""
        return {**self._scope, "extensions": {}, _UNSTORED: self._unstored}

    async def _private_receive(self) -> Message:
        """The request, and then nothing until the response is over: whether the client is still
        there is not the handler's concern."""
        if not self._body_given:
            return await self._given_body()
        assert self._recording is not None
        await asyncio.shield(self._recording.ended)
        return {"type": "http.disconnect"}

    async def _given_body(self) -> Message:
        if self._body_given:
            return await self._receive()
        self._body_given = True
        return {"type": "http.request", "body": self._body, "more_body": False}

    # --- responses ----------------------------------------------------------------------------

    async def _deliver(self, recording: Recording, more: Headers) -> None:
        """The app's own response; then the app's own end, as if we were not there."""
        assert self._task is not None
        await recording.deliver(self._send, more)
        await asyncio.shield(self._task)

    async def _give(self, response: Response, more: Headers = ()) -> None:
        await self._send(
            {
                "type": "http.response.start",
                "status": response.status,
                "headers": [*response.headers, *more],
            }
        )
        await self._send({"type": "http.response.body", "body": response.body})

    def _request(self) -> Request:
        scope = self._scope
        path: bytes = scope.get("raw_path") or quote(scope["path"]).encode("ascii")
        query: bytes = scope.get("query_string", b"")
        return Request(scope["method"], path.partition(b"?")[0], query, self._headers, self._body)


class _OfApp(Responder):
    """A request to a whole app, which is begun under the key."""

    _owner: IdempotencyMiddleware

    async def respond(self) -> None:
        rule, exchange = self._rule, self._exchange
        caller = await self._caller()
        keyed = exchange.key_of(rule, self._headers) if caller else exchange.nobody()
        reading = await self._read()
        if reading is Reading.GONE:
            return  # before all of it was here: nothing is claimed
        if reading is Reading.TOO_LARGE and not isinstance(keyed, Response):
            keyed = exchange.too_large(rule)
        if isinstance(keyed, Response):
            is_last = reading is Reading.TOO_LARGE
            await self._give(keyed, CLOSE if is_last else ())
            return
        assert keyed is not None
        await self._guarded(keyed, caller)

    async def _caller(self) -> str:
        caller = self._owner.caller(self._scope)
        if inspect.isawaitable(caller):
            caller = await caller
        return principal(caller)

    def _begin(self, attempt: AsyncAttempt) -> tuple[asyncio.Task[None], Recording]:
        recording = self._recording = Recording()
        scope = {**self._private_scope(), ATTEMPT: attempt}
        work = _run(self._owner.app, scope, self._private_receive, recording.send)
        self._task = self._owner.tasks.start(work)
        return self._task, recording

    async def _run_unprotected(self) -> None:
        await self._owner.app(self._scope, self._given_body, self._send)


async def _run(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)


class Reading(enum.Enum):
    """How the reading of a request ended."""

    WHOLE = "all of it is here"
    GONE = "the client went away"
    TOO_LARGE = "it is longer than allowed"


CLOSE: Final[Headers] = ((b"connection", b"close"),)


def error_of(task: asyncio.Task[None]) -> BaseException:
    """Why the app ended without a whole response."""
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception() or Incomplete("the app ended before its response was complete")
