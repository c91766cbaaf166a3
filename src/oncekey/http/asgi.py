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
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from oncekey.core.duration import Duration, microseconds
from oncekey.core.errors import ConfigurationError
from oncekey.engine.aio.attempt import AsyncAttempt
from oncekey.engine.aio.once import AsyncOnce
from oncekey.http import lifespan
from oncekey.http.exchange import (
    ATTEMPT,
    OPERATION_DEFAULT,
    POLICY_URL_DEFAULT,
    REPLAY_HEADER_DEFAULT,
    Exchange,
    check_caller,
    checked_principal,
)
from oncekey.http.message import Response
from oncekey.http.mounted import drain_untold, draining
from oncekey.http.path_readings import decoded_segments, without_root_path
from oncekey.http.policy_page import asgi_app_or_page, is_policy_page
from oncekey.http.problem import Render
from oncekey.http.responder import App, Reading, Receive, Responder, Scope, Tasks
from oncekey.http.response_buffer import Message, ResponseBuffer, Send
from oncekey.http.route_table import layers_of
from oncekey.http.rules import Rule, Rules
from oncekey.http.unguarded_keys import (
    KEY_GUARDED,
    UNGUARDED_HEADERS,
    UnguardedKeys,
    mark_key_guarded,
)
from oncekey.http.unhandled_requests import WatchedScope, leave_unstored, watch_frameworks

__all__ = ["IdempotencyMiddleware", "attempt_of", "draining", "leave_unstored"]

Caller = Callable[[Scope], str | Awaitable[str | None] | None]

DRAIN_DEFAULT: Final = "30s"


def attempt_of(scope: Any) -> AsyncAttempt | None:
    """The attempt a handler runs in, from its ASGI scope (or an object that has one, such as a
    Starlette request): for steps, child keys and the fence. None where no key guards it."""
    found: AsyncAttempt | None = getattr(scope, "scope", scope).get(ATTEMPT)
    return found


class IdempotencyMiddleware:
    """Guards the requests that `rules` name; by default every POST and PATCH.

    caller      a function of the scope that gives the verified principal, or None to refuse
    rules       see Rule; the first that fits counts
    operation   what its keys are for; two apps on one store want two names
    policy_url  where clients find the published policy: a path of the app, where a built-in page
                is served unless the app has one of its own, or a whole URL; None for none
    replay_header   the header that marks a replay
    render_refusal  a function that gives a Refusal the shape of the app's own errors
    drain       how long a shutdown waits for what is running
    close       whether the engine is closed with the app
    unguarded   what to do about a key on a request that no rule guards: "warn" says so in the
                response and in the log, "refuse" answers 400
    """

    def __init__(
        self,
        app: App,
        once: AsyncOnce,
        *,
        caller: Caller,
        rules: Iterable[Rule] = (),
        operation: str = OPERATION_DEFAULT,
        policy_url: str | None = POLICY_URL_DEFAULT,
        challenge: str = "Bearer",
        replay_header: str = REPLAY_HEADER_DEFAULT,
        render_refusal: Render | None = None,
        drain: Duration = DRAIN_DEFAULT,
        close: bool = True,
        unguarded: str = "warn",
    ) -> None:
        if not isinstance(once, AsyncOnce):
            raise ConfigurationError(f"once must be an AsyncOnce, not a {type(once).__name__}")
        check_caller(caller)
        watch_frameworks(layers_of(app))
        self.app = app
        self.once = once
        self.caller = caller
        self.exchange = Exchange(
            Rules(rules),
            operation=operation,
            policy_url=policy_url,
            challenge=challenge,
            replay_header=replay_header,
            render_refusal=render_refusal,
        )
        self.lifespans = 0
        self.unprotected = 0  # runs without a key's protection because the store was down
        self._find = self.exchange.rules.find
        self._drain = microseconds(drain, name="drain") / 1_000_000
        self._close = close
        self.tasks = Tasks()
        self.unguarded = UnguardedKeys(self.exchange, once.notify, unguarded)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            rule = self._find(scope["method"], *paths_of(scope))
            # One that has an attempt is guarded already, by whoever stands outside.
            if (
                rule is not None
                and ATTEMPT not in scope
                and (rule.required or self.exchange.has_key(scope["headers"]))
            ):
                await _OfApp(self, rule, scope, receive, send).respond()
                return
            if rule is None and self._is_unguarded(scope):
                await self._warn_or_refuse(scope, receive, send)
                return
            if rule is None and is_policy_page(
                scope["method"], path_of(scope), self.exchange.page_path
            ):
                await asgi_app_or_page(self.app, self, scope, receive, send)
                return
        elif scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _is_unguarded(self, scope: Scope) -> bool:
        return self.unguarded.is_reported(scope["method"], scope) and self.exchange.has_key(
            scope["headers"]
        )

    async def _warn_or_refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request that no rule guards has a key."""
        if self.unguarded.refuses and not self.exchange.rules.excludes(
            scope["method"], *paths_of(scope)
        ):
            self.unguarded.note(scope["method"], scope["path"])
            refusal = self.unguarded.refusal(scope.get("root_path", ""))
            await _OfApp(self, Rule(), scope, receive, send).refuse(refusal)
            return
        await watched(self.app, self.unguarded, scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hold the app's shutdown back until what runs has ended: it closes what that needs. The
        engine begins and ends with the app, also where that begins again in the same process."""
        begun = False

        async def watched() -> Message:
            nonlocal begun
            message = await receive()
            if message["type"] == "lifespan.startup" and self._close:
                try:
                    lifespan.begin(self.once)
                except ConfigurationError as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    raise
                begun = True
            elif message["type"] == "lifespan.shutdown":
                await self.drain()
                await drain_untold()
            return message

        async def told(message: Message) -> None:
            nonlocal begun
            # Not when the app ends: one without a lifespan does so at the start, and once this
            # is told, some servers cancel what is left of it.
            if self._close and message["type"].startswith("lifespan.shutdown."):
                begun = False
                if lifespan.end(self.once):
                    await self.once.close()
            await send(message)

        self.lifespans += 1
        try:
            await self.app(scope, watched, told)
        finally:
            self.lifespans -= 1
            if begun:  # it could not begin, or ended without a word
                lifespan.end(self.once)

    async def drain(self) -> None:
        """Wait for the running requests, also for those whose clients are gone."""
        await self.once.drain(self._drain)
        await self.tasks.wait(self._drain)


class _OfApp(Responder):
    """A request to a whole app, which is begun under the key."""

    _owner: IdempotencyMiddleware

    async def respond(self) -> None:
        mark_key_guarded(self._scope)
        rule, exchange = self._rule, self._exchange
        caller = await self._caller()
        keyed = exchange.key_of(rule, self._headers) if caller else exchange.unknown_caller()
        reading = await self._read(keep=not isinstance(keyed, Response))
        if reading is Reading.GONE:
            return  # before all of it was here: nothing is claimed
        if reading is Reading.TOO_LARGE and not isinstance(keyed, Response):
            keyed = exchange.too_large(rule)
        if isinstance(keyed, Response):
            is_last = reading is Reading.TOO_LARGE
            await self._give(keyed, self._last() if is_last else ())
            return
        assert keyed is not None
        await self._guarded(keyed, caller)
        if self._task is None or self._task.done():
            self._body.close()

    async def refuse(self, response: Response) -> None:
        reading = await self._read(keep=False)
        if reading is not Reading.GONE:
            await self._give(response, self._last() if reading is Reading.TOO_LARGE else ())

    async def _caller(self) -> str:
        caller = self._owner.caller(self._scope)
        if inspect.isawaitable(caller):
            caller = await caller
        return checked_principal(caller)

    def _begin(self, attempt: AsyncAttempt) -> tuple[asyncio.Task[None], ResponseBuffer]:
        recording = self._recording = ResponseBuffer()
        scope = WatchedScope({**self._private_scope(), ATTEMPT: attempt})
        work = _run(self._owner.app, scope, self._private_receive, recording.send)
        self._task = self._owner.tasks.start(work)
        return self._task, recording

    async def _run_unprotected(self) -> None:
        await self._owner.app(self._scope, self._given_body, self._send_unprotected)


def path_of(scope: Scope) -> str:
    """The path as the app's own routes see it: without what it is mounted under."""
    return without_root_path(scope["path"], scope.get("root_path", ""))


def paths_of(scope: Scope) -> tuple[str, ...]:
    """What the app's own routes may take the path for."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    raw: bytes = scope.get("raw_path") or b""
    if not root and b"%" not in raw:
        return (path,)
    read = [path, decoded_segments(raw)] if b"%" in raw else [path]  # some split before they decode
    if root:
        # Some heed a root path, some do not, and some take what follows it wherever it stands.
        read += [without_root_path(one, root) for one in read]
        read += [one.partition(root)[2] for one in read if root in one]
    return tuple(dict.fromkeys(read))


async def watched(
    app: App, unguarded: UnguardedKeys, scope: Any, receive: Receive, send: Send
) -> None:
    """Run an app with a key that we do not guard; tell the client unless a guard inside does."""
    if KEY_GUARDED in scope:  # whoever stands outside tells the client
        await app(scope, receive, send)
        return
    taken: list[bool] = []
    scope[KEY_GUARDED] = taken

    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start" and not taken:
            unguarded.note(scope["method"], scope["path"])
            message = {**message, "headers": [*message.get("headers", ()), *UNGUARDED_HEADERS]}
        await send(message)

    await app(scope, receive, marked)


async def _run(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)
