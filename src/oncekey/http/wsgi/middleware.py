"""`IdempotencyWSGI`, the middleware that guards any WSGI app.

    app = IdempotencyWSGI(app, Once(url), caller=verified_account_id)

Requests that no rule guards reach the app untouched, their streams included. A guarded request is
read, claimed and run with an environ of its own; its whole response is buffered, and sent once its
outcome is durable (I13). Put authentication outside of it or into `caller`, compression and CORS
outside.

Owns the WSGI side only: exchange.py has the rules of an exchange, request_guard.py the order of a
run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from oncekey.engine.attempts.attempt import Attempt
from oncekey.engine.attempts.kept_steps import warn_of_kept_steps
from oncekey.engine.once import Once
from oncekey.http.exchange import (
    ATTEMPT,
    OPERATION_DEFAULT,
    POLICY_URL_DEFAULT,
    REPLAY_HEADER_DEFAULT,
    Exchange,
    check_caller,
)
from oncekey.http.inspection.policy_document import is_policy_page, wsgi_app_or_page
from oncekey.http.inspection.route_table import layers_of
from oncekey.http.message import (
    Headers,
    Response,
    TextHeaders,
    TooLarge,
    UnreadableBody,
    encoded_headers,
    text_headers,
)
from oncekey.http.problem import Render
from oncekey.http.rules import Rule, Rules
from oncekey.http.stored_responses import FAILURE, IncompleteResponse
from oncekey.http.unguarded_keys import KEY_GUARDED, UNGUARDED_HEADERS, mark_key_guarded
from oncekey.http.unhandled_requests import UNSTORED, is_unstored, watch_frameworks
from oncekey.http.wsgi.messages import (
    Environ,
    WSGIBody,
    headers_of,
    path_of,
    put_body_back,
    request_of,
)
from oncekey.http.wsgi.request_guard import RequestGuard, ResponseBuffer, close_at_exit

StartResponse = Callable[..., Any]
App = Callable[[Any, Any], Iterable[bytes]]
Caller = Callable[[Environ], str | None]


def attempt_of(environ: Environ) -> Attempt | None:
    """The attempt that a handler runs in, for steps, child keys and the fence; None if its request
    is not guarded by a key."""
    attempt: Attempt | None = environ.get(ATTEMPT)
    return attempt


class IdempotencyWSGI:
    """Guards the requests that `rules` match; by default every POST and PATCH.

    caller      a function of the environ that returns the verified principal, or None to refuse
    rules       see Rule; the first that matches applies. Their paths are matched with PATH_INFO
    operation   the namespace of the app's keys; two apps on one store need two names
    policy_url  where clients find the published policy: a path of the app, where a built-in page
                is served unless the app has one of its own; or a whole URL; None for none
    challenge   the WWW-Authenticate header for an unknown caller; "" for none
    replay_header   the header that marks a replay
    render_refusal  a function that gives a Refusal the shape of the app's own errors
    close       whether the engine is closed when the process ends
    unguarded   what happens to a request that has a key but no rule: "warn" adds a header to the
                response and a line to the log, "refuse" responds with 400
    """

    def __init__(
        self,
        app: App,
        once: Once,
        *,
        caller: Caller,
        rules: Iterable[Rule] = (),
        operation: str = OPERATION_DEFAULT,
        policy_url: str | None = POLICY_URL_DEFAULT,
        challenge: str = "Bearer",
        replay_header: str = REPLAY_HEADER_DEFAULT,
        render_refusal: Render | None = None,
        close: bool = True,
        unguarded: str = "warn",
    ) -> None:
        check_caller(caller)
        self.exchange = Exchange(
            Rules(rules),
            operation=operation,
            policy_url=policy_url,
            challenge=challenge,
            replay_header=replay_header,
            render_refusal=render_refusal,
        )
        self.guard = RequestGuard(once, self.exchange, unguarded)
        watch_frameworks(layers_of(app))
        self.app = app
        self.once = once
        self.caller = caller
        self._find = self.exchange.rules.find
        if close:
            close_at_exit(once)

    @property
    def unprotected(self) -> int:
        """How many requests ran unprotected because the store was down."""
        return self.guard.unprotected

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], path_of(environ)
        rule = self._find(method, path)
        if rule is not None and environ.get(ATTEMPT) is None:  # else guarded further outside
            return self._respond(rule, environ, start_response)
        if rule is None and is_policy_page(method, path, self.exchange.page_path):
            return wsgi_app_or_page(self.app, self, environ, start_response)
        if rule is None and self.guard.has_unguarded_key(environ):
            return self._warn_or_refuse(environ, start_response)
        return self.app(environ, start_response)

    def _respond(
        self, rule: Rule, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Respond to a request that a rule guards."""
        guard = self.guard.under(environ.get("SCRIPT_NAME", ""))
        headers = headers_of(environ)
        if guard.is_exempt(rule, headers):
            return self.app(environ, start_response)
        mark_key_guarded(environ)
        admitted = guard.admit(rule, headers, lambda: self.caller(environ))
        sent = WSGIBody(environ, rule.max_request)
        if isinstance(admitted, Response):
            sent.discard()
            return _send(admitted, start_response)
        try:
            body = sent.read()
        except (TooLarge, UnreadableBody) as error:
            return _send(guard.exchange.refused_body(rule, error), start_response)

        def call_app(attempt: Attempt | None) -> WSGIResponse:
            copied = {**environ, ATTEMPT: attempt, UNSTORED: []}
            put_body_back(copied, body)
            return WSGIResponse(self.app, copied)

        key, caller = admitted
        request = request_of(environ, headers, body)
        response = guard.run(rule, key, caller, request, call_app)
        if isinstance(response, Response):
            return _send(response, start_response)
        return response.app_response.send(start_response, response.more_headers)

    def _warn_or_refuse(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Respond to a request that has a key but no rule."""
        unguarded, method = self.guard.unguarded, environ["REQUEST_METHOD"]
        if unguarded.refuses and not self.exchange.rules.excludes(method, path_of(environ)):
            unguarded.report(method, path_of(environ))
            WSGIBody(environ, Rule().max_request).discard()
            return _send(unguarded.refusal(environ.get("SCRIPT_NAME", "")), start_response)
        if KEY_GUARDED in environ:  # a guard further outside reports it
            return self.app(environ, start_response)
        guarded: list[bool] = []
        environ[KEY_GUARDED] = guarded

        def start_marked(line: str, lines: TextHeaders, *exc_info: Any) -> Any:
            if not guarded:
                unguarded.report(method, path_of(environ))
                lines = [*lines, *text_headers(UNGUARDED_HEADERS)]
            return start_response(line, lines, *exc_info)

        return self.app(environ, start_marked)


class WSGIResponse(ResponseBuffer):
    """The response of a WSGI app, which has run to its end once this exists."""

    def __init__(self, app: App, environ: Environ) -> None:
        super().__init__()
        self._line = ""
        self._lines: TextHeaders = []
        try:
            self.fill(app(environ, self._start))
            if not self._line:
                raise IncompleteResponse("the app ended before its response was complete")
        except BaseException:
            if self._line and int(self._line[:3]) < FAILURE:
                warn_of_kept_steps(environ.get(ATTEMPT))
            self.close()
            raise
        self.status = int(self._line[:3])
        self.headers = encoded_headers(self._lines)
        self.unhandled = is_unstored(environ.get(UNSTORED, ()), self.status)

    def _start(
        self, line: str, lines: TextHeaders, exc_info: Any = None
    ) -> Callable[[bytes], None]:
        """The app's `start_response`."""
        if exc_info is not None:
            if self.size:
                # A server would have sent this part already. Half a response followed by an error
                # page must not be stored.
                raise exc_info[1].with_traceback(exc_info[2])
        elif self._line:
            raise RuntimeError("the app began its response twice")
        self._line, self._lines = line, list(lines)
        return self.add

    def add(self, chunk: bytes) -> None:
        if not self._line:
            raise RuntimeError("the app sent a body before it began its response")
        super().add(chunk)

    def send(self, start_response: StartResponse, more_headers: Headers) -> Iterable[bytes]:
        """Start the response, and return its body."""
        start_response(self._line, [*self._lines, *text_headers(more_headers)])
        return self


def _send(response: Response, start_response: StartResponse) -> Iterable[bytes]:
    """Send a refusal or a replay."""
    start_response(status_line(response.status), text_headers(response.headers))
    return [response.body]


def status_line(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:  # it has no standard phrase
        return f"{status} Status"
