"""`IdempotencyMiddleware` guards any ASGI app.

    app.add_middleware(IdempotencyMiddleware, once=AsyncOnce(url), caller=verified_account_id)

Requests that no rule guards reach the app untouched, their streams included, and so do those of a
dashboard that is mounted in the app, whose forms have no keys. A guarded request is
one `GuardedRequest`: it is read, its key is claimed, and the app runs in the attempt's task with a
`receive` and a `send` of ours. So a client that goes away, or a server that shuts down, takes no
result with it (I14). The response is sent when its outcome is durable (I13). Put authentication
outside of the middleware or into `caller`, compression and CORS outside.

Owns a request's way through ASGI; what is decided about it is in exchange.py, and what becomes of
a run in buffered_run.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from oncekey.core.duration import Duration
from oncekey.core.errors import OncekeyError
from oncekey.engine.async_once import DRAIN_DEFAULT, AsyncOnce
from oncekey.engine.attempts.async_attempt import AsyncAttempt
from oncekey.engine.results import Result
from oncekey.http.asgi.buffered_run import AttemptRun
from oncekey.http.asgi.comparison_queue import compare_in_turn
from oncekey.http.asgi.late_work import watch_background_tasks
from oncekey.http.asgi.lifespan import AppGuard, note_request, run_lifespan
from oncekey.http.asgi.messages import (
    BodyReader,
    ReadResult,
    app_path,
    app_paths,
    has_key_line,
    headers_of,
    request_of,
    send_response,
    send_unread,
)
from oncekey.http.exchange import (
    ATTEMPT,
    OPERATION_DEFAULT,
    POLICY_URL_DEFAULT,
    REPLAY_HEADER_DEFAULT,
    STORE_DOWN_HEADERS,
    Exchange,
    RunArguments,
    check_caller,
    checked_principal,
)
from oncekey.http.inspection.policy_document import asgi_app_or_page, is_policy_page
from oncekey.http.inspection.route_table import is_for_keyless_app, layers_of
from oncekey.http.key_header import HEADER
from oncekey.http.message import App, Headers, Message, Receive, Response, Scope, Send
from oncekey.http.problem import Render
from oncekey.http.request_fingerprint import is_slow_to_compare
from oncekey.http.rules import SAFE_METHODS, Rule, Rules
from oncekey.http.stored_responses import NotStored
from oncekey.http.unguarded_keys import mark_key_guarded, run_marked
from oncekey.http.unhandled_requests import watch_frameworks

Caller = Callable[[Scope], str | Awaitable[str | None] | None]


def attempt_of(scope: Any) -> AsyncAttempt | None:
    """The attempt a handler runs in, from its ASGI scope (or an object that has one, such as a
    Starlette request): for steps, child keys and the fence. None where no key guards it."""
    found: AsyncAttempt | None = getattr(scope, "scope", scope).get(ATTEMPT)
    return found


class IdempotencyMiddleware(AppGuard):
    """Guards the requests that `rules` name; by default every POST and PATCH.

    caller      a function of the scope that gives the verified principal, or None to refuse
    rules       see Rule; the first that fits counts
    operation   what its keys are for; two apps on one store want two names
    policy_url  where clients find the published policy: a path of the app, where a built-in page
                is served unless the app has one of its own, or a whole URL; None for none
    replay_header   the header that marks a replay
    render_refusal  a function that gives a Refusal the shape of the app's own errors
    drain       how long a shutdown waits for running requests
    close       whether the engine is closed with the app
    unguarded   what to do about a key on a request that no rule guards: "warn" marks the response
                and writes to the log, "refuse" answers 400
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
        exchange = Exchange(
            Rules(rules),
            operation=operation,
            policy_url=policy_url,
            challenge=challenge,
            replay_header=replay_header,
            render_refusal=render_refusal,
        )
        super().__init__(once, exchange, drain, unguarded)
        check_caller(caller)
        watch_frameworks(layers_of(app))
        watch_background_tasks()
        self.app = app
        self.caller = caller
        self._find = exchange.rules.find
        self._page_path = exchange.page_path
        self._engine_to_close = once if close else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if scope["method"] in SAFE_METHODS:
                if is_policy_page(scope["method"], app_path(scope), self._page_path):
                    await asgi_app_or_page(self.app, self, scope, receive, send)
                    return
            elif (rule := self._find(scope["method"], *app_paths(scope))) is not None:
                # A request that has an attempt is guarded already, by a guard further outside.
                if ATTEMPT not in scope and (rule.required or has_key_line(scope)):
                    request = GuardedRequest(self, rule, scope, receive, send)
                    if request.has_key or not is_for_keyless_app(self.app, scope):
                        await request.respond()
                        return
            elif self.unguarded.is_reported(scope["method"], scope) and has_key_line(scope):
                await self._mark_or_refuse(scope, receive, send)
                return
        elif scope["type"] == "lifespan":
            await run_lifespan(self.app, self, self._engine_to_close, scope, receive, send)
            return
        await self.app(scope, receive, send)

    async def _mark_or_refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request that has a key and that no rule guards."""
        if self.unguarded.refuses and not self.exchange.rules.excludes(
            scope["method"], *app_paths(scope)
        ):
            self.unguarded.report(scope["method"], scope["path"])
            refusal = self.unguarded.refusal(scope.get("root_path", ""))
            await GuardedRequest(self, Rule(), scope, receive, send).refuse(refusal)
            return
        await run_marked(self.app, self.unguarded, scope, receive, send)


class GuardedRequest:
    """One request to a guarded app.

    1. `caller` says who calls, and the headers have the key; or the request is refused.
    2. The body is read to its end. If the client goes away before, nothing is claimed.
    3. The engine claims the key and runs the app in the attempt's task. The outcome is stored when
       the app's call has ended, or when nothing but background tasks is left of it.
    4. When the outcome is durable, the buffer is sent. Where the app did not run, a stored response
       or a refusal is sent. Background tasks go on meanwhile.

    Cancelling `respond` does not cancel the app.
    """

    def __init__(
        self,
        guard: IdempotencyMiddleware,
        rule: Rule,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        if not guard.lifespans:
            note_request(guard, scope)
        self._guard = guard
        self._rule = rule
        self._scope = scope
        self._send = send
        self._headers = headers_of(scope, rule.read_header_names)
        root_path = scope.get("root_path")
        self._exchange = guard.exchange.under(root_path) if root_path else guard.exchange
        self._reader = BodyReader(receive, rule.max_request)

    @property
    def has_key(self) -> bool:
        return HEADER in self._headers

    async def respond(self) -> None:
        mark_key_guarded(self._scope)
        rule, exchange = self._rule, self._exchange
        found = self._guard.caller(self._scope)
        if type(found) is not str and inspect.isawaitable(found):
            found = await found
        caller = checked_principal(found)
        key = exchange.key_of(rule, self._headers) if caller else exchange.unknown_caller()
        if isinstance(key, Response):
            await self.refuse(key)
            return
        assert key is not None
        is_read = not exchange.declared_too_large(rule, self._headers)
        read = await self._reader.read(keep=True) if is_read else ReadResult.TOO_LARGE
        if not self._reader.is_whole:
            if read is ReadResult.TOO_LARGE:
                too_large = exchange.too_large(rule)
                await send_unread(self._send, too_large, self._scope, self._reader)
            return
        request = request_of(self._scope, self._headers, self._reader.body)
        if is_slow_to_compare(request):
            arguments = await compare_in_turn(exchange, rule, key, caller, request)
        else:
            arguments = exchange.run_arguments(rule, key, caller, request)
        if isinstance(arguments, Response):
            self._reader.close()
            await send_response(self._send, arguments)
        else:
            await self._run_once(arguments)

    async def refuse(self, response: Response) -> None:
        """Send a refusal. The body is read first, because the connection's next request comes
        behind it; after one that is too large to be read the connection ends."""
        is_read = not self._exchange.declared_too_large(self._rule, self._headers)
        read = await self._reader.read(keep=False) if is_read else ReadResult.TOO_LARGE
        if read is ReadResult.TOO_LARGE:
            await send_unread(self._send, response, self._scope, self._reader)
        elif read is not ReadResult.GONE:
            await send_response(self._send, response)

    async def _run_once(self, arguments: RunArguments) -> None:
        guard = self._guard
        run = AttemptRun(guard, self._exchange, self._rule, guard.app, self._scope, self._reader)
        reply: Response | Headers | None
        try:
            try:
                result: Result[Any] = await guard.once.run(body=run.body, **arguments)
            except (NotStored, OncekeyError) as error:
                reply = run.reply_to_error(error)
            else:
                reply = run.reply(result)
            if isinstance(reply, Response):
                await send_response(self._send, reply)
            elif reply is None:
                await guard.app(self._scope, self._reader.receive, self._send_unprotected)
            else:
                await run.buffer.deliver(self._send, reply)
                await run.join()  # the server gets the app's error
        finally:
            if run.is_claimed:
                run.buffer.close()
            if not run.is_claimed or run.is_ended:
                self._reader.close()

    async def _send_unprotected(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            lines = [*message.get("headers", ()), *STORE_DOWN_HEADERS]
            message = {**message, "headers": lines}
        await self._send(message)
