"""One request to a guarded route, from its first byte to its last.

The route's handler runs in a task of its own until it is at the door, all its dependencies solved.
What it reads of the body until then is kept (in a file, if it is much); the rest is read once the
caller is known.
Only then is there a caller, and the engine is asked. A fresh key opens the door inside the run; a
replay or a refusal is what the handler then answers, without the endpoint. What it sends is held
back until the outcome is durable (I13), and neither task ends with the client (I14).

Owns the meeting of the two tasks. The rules are the exchange's, the waiting the Responder's.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Final

from starlette.responses import Response as Starlette

from oncekey.engine.aio.attempt import AsyncAttempt
from oncekey.engine.context import enter as enter_body
from oncekey.engine.results import Result
from oncekey.http.exchange import ATTEMPT, STORE_DOWN_MARK, RunArguments, checked_principal
from oncekey.http.fastapi.endpoint import DOOR, Guarding, Visit
from oncekey.http.message import Headers, Response
from oncekey.http.responder import App, Reading, Receive, Responder, Scope, error_of
from oncekey.http.response_buffer import Message, ResponseBuffer, Send
from oncekey.http.unguarded_keys import mark_key_guarded

# Where FastAPI puts what closes the files of a form.
_FILES: Final = "fastapi_middleware_astack"


class AtRoute(Responder):
    """A request to a route; also the one who opens its door."""

    _recording: ResponseBuffer
    _task: asyncio.Task[None]

    def __init__(
        self, guarding: Guarding, app: App, scope: Scope, receive: Receive, send: Send
    ) -> None:
        super().__init__(guarding.owner, guarding.rule, scope, receive, send)
        loop = asyncio.get_running_loop()
        self._app = app
        self._asked = False
        self._inner: Scope = {**self._private_scope(), DOOR: self}
        self._visit: asyncio.Future[Visit] = loop.create_future()  # somebody is at the door
        self._sign: asyncio.Future[Response | None] = loop.create_future()  # None: come in
        self._over: asyncio.Future[None] = loop.create_future()  # its outcome is durable
        self._stopped: asyncio.Future[Reading] = loop.create_future()  # it cannot be read
        self._is_whole = False
        self._pulled = 0  # how much of the body the handler has read before the door

    async def respond(self) -> None:
        """Answer it. Cancelling this takes nothing away from what runs."""
        is_free = not self._rule.required and not self._exchange.has_key(self._headers)
        mark_key_guarded(self._scope)
        if is_free or ATTEMPT in self._scope:  # no key, or guarded by whoever stands outside
            await self._app({**self._scope, DOOR: None}, self._receive, self._send)
            return
        await asyncio.shield(self._owner.tasks.start(self._respond()))

    async def _respond(self) -> None:
        if self._exchange.declared_too_large(self._rule, self._headers):
            await super()._give(self._exchange.too_large(self._rule), self._last())
            return
        self._recording = ResponseBuffer()
        self._task = self._owner.tasks.start(self._handle())
        try:
            await self._meet()
        except BaseException as error:
            if not self._sign.done():
                self._sign.set_exception(error)  # nobody is left standing at the door
            raise
        finally:
            self._let_go()
            if not self._asked:
                self._recording.close()

    async def _meet(self) -> None:
        waits: set[asyncio.Future[Any]] = {
            self._task,
            self._visit,
            self._recording.settled,
            self._stopped,
        }
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if self._stopped.done():
            await self._give_up(self._stopped.result())
            return
        if not self._visit.done():  # the app has refused it before the endpoint (I15)
            await self._finish()
            return
        caller = checked_principal(self._visit.result().caller)
        exchange = self._exchange
        keyed = exchange.key_of(self._rule, self._headers) if caller else exchange.unknown_caller()
        if isinstance(keyed, Response):
            await self._give(keyed)
            return
        assert keyed is not None
        reading = Reading.WHOLE if self._is_whole else await self._read()
        if reading is not Reading.WHOLE:
            await self._give_up(reading)
            return
        self._asked = True  # from here on the Responder closes it
        await self._guarded(keyed, caller)

    async def _give_up(self, reading: Reading) -> None:
        """Not all of the request can be read, so nothing is claimed. The handler, wherever it is,
        ends by itself."""
        refused = self._exchange.too_large(self._rule)
        if not self._sign.done():
            self._sign.set_result(refused)
        if reading is Reading.TOO_LARGE:
            await super()._give(refused, self._last())

    # --- the handler's task -------------------------------------------------------------------

    async def _handle(self) -> None:
        """The route's own handling; the files of a form live as long as it does."""
        async with AsyncExitStack() as files:
            self._inner[_FILES] = files
            await self._app(self._inner, self._private_receive, self._hold)

    async def enter(self, visit: Visit) -> Any:
        self._visit.set_result(visit)
        sign = await asyncio.shield(self._sign)
        if sign is not None:
            return as_starlette(sign)
        attempt: AsyncAttempt | None = self._inner.get(ATTEMPT)
        if attempt is not None:
            # This task is older than the attempt. Never left: what it streams belongs to it too,
            # and an attempt that has ended is nobody's current one.
            enter_body(attempt)
        return await self._call(visit)

    async def _call(self, visit: Visit) -> Any:
        return await visit.call()

    async def _hold(self, message: Message) -> None:
        """The handler's `send`. What follows its response waits for the outcome: background tasks,
        and the ends of its dependencies."""
        await self._recording.send(message)
        if self._began and self._recording.ended.done():
            await asyncio.shield(self._over)

    async def _private_receive(self) -> Message:
        if not self._is_whole and not self._visit.done():
            return await self._pull()
        if not self._body_given:
            return self._next_part(self._pulled)
        if self._began:
            # At a disconnect a streamed response is cut short, so not before all is over.
            await asyncio.shield(self._over)
        return await super()._private_receive()

    async def _pull(self) -> Message:
        """The client's next message, for a handler that reads before its endpoint, and kept."""
        message = await self._receive()
        chunk = message.get("body") or b""
        gone = message["type"] == "http.disconnect"
        if gone or self._body.size + len(chunk) > self._rule.max_request:
            if not self._stopped.done():
                self._stopped.set_result(Reading.GONE if gone else Reading.TOO_LARGE)
            return {"type": "http.disconnect"}
        self._body.write(bytes(chunk))  # the server may use its buffer again
        self._pulled = self._body.size
        self._is_whole = self._body_given = not message.get("more_body", False)
        return message

    # --- the run ------------------------------------------------------------------------------

    def _begin(self, attempt: AsyncAttempt) -> tuple[asyncio.Task[None], ResponseBuffer]:
        self._inner[ATTEMPT] = attempt
        self._sign.set_result(None)
        return self._task, self._recording

    async def _ask(self, asking: RunArguments) -> Result[Response]:
        try:
            return await super()._ask(asking)
        finally:
            self._let_go()

    async def _run_unprotected(self) -> None:
        self._sign.set_result(None)
        await self._finish(STORE_DOWN_MARK)

    def _let_go(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    # --- responses ----------------------------------------------------------------------------

    async def _give(self, response: Response, more: Headers = ()) -> None:
        if self._sign.done():  # the endpoint has run, but this is the answer
            await super()._give(response, more)
            return
        self._sign.set_result(response._replace(headers=(*response.headers, *more)))
        await self._finish()

    async def _finish(self, more: Headers = ()) -> None:
        """What the handler answers by itself."""
        waits = {self._task, self._recording.settled}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not self._recording.settled.done():
            raise error_of(self._task)
        await self._deliver(self._recording, more)


def as_starlette(response: Response) -> Starlette:
    made = Starlette(response.body, response.status)
    made.raw_headers = list(response.headers)
    return made
