"""`Idempotency`, the Flask extension, and `idempotent`, the decorator of views.

A decorated view runs after the app's `before_request` functions, so a request that they reject does
not claim its key. Its response is stored as Flask makes it, error handlers included. The
`after_request` functions run for replays too, so what they add is not stored; but they and the
teardown functions run before the outcome is stored, see request_end.py. With `rules=` the whole app
is wrapped instead, see wsgi.py.

Owns the Flask side only; sync_request.py has the order of a run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final, ParamSpec, Unpack

from flask import Flask, Response, current_app, request
from werkzeug.datastructures import Headers as FlaskHeaders

from oncekey.core.errors import ConfigurationError
from oncekey.engine.attempts.attempt import Attempt
from oncekey.engine.attempts.kept_steps import late_part, warn_of_kept_steps
from oncekey.engine.once import Once
from oncekey.http import message, wsgi
from oncekey.http.exchange import (
    ATTEMPT,
    OPERATION_DEFAULT,
    POLICY_URL_DEFAULT,
    REPLAY_HEADER_DEFAULT,
    check_caller,
)
from oncekey.http.flask.request_end import end_request, watch_request_ends
from oncekey.http.flask.request_input import (
    close_body_with,
    discard_body,
    keep_body,
    read_body,
)
from oncekey.http.flask.served_views import EXTENSION, VIEWS, check_app
from oncekey.http.guarded_views import UNSERVED, guard_for_method, guarded_view_of
from oncekey.http.outcomes import FAILURE
from oncekey.http.policy_page import is_policy_page, wsgi_app_or_page
from oncekey.http.problem import Render
from oncekey.http.rules import ANY_METHOD, Rule, RuleOptions, rule_from_options
from oncekey.http.sync_request import FreshResponse, SyncGuard
from oncekey.http.sync_response_buffer import SyncResponseBuffer
from oncekey.http.unguarded_keys import KEY_GUARDED, UNGUARDED_HEADERS, mark_key_guarded
from oncekey.http.unhandled_requests import UNSTORED, is_unstored
from oncekey.http.wsgi_body import Environ

P = ParamSpec("P")

_WARN: Final = (
    "oncekey.warn"  # in the environ: whether the response gets the header of an unguarded key
)


def current_attempt() -> Attempt | None:
    """The attempt that the current request runs in, for steps, child keys and the fence; None if it
    is not guarded by a key."""
    return wsgi.attempt_of(request.environ)


class Idempotency:
    """The extension: one per app, or one for several apps by `init_app`.

    once        the engine
    caller      returns the verified principal, or None to refuse: a function without arguments that
                uses flask.g or flask.request; with `rules` a function of the environ
    rules       guard the whole app by these rules, outside of Flask. By default only decorated
                views are guarded
    unserved    "refuse" makes the first request fail if no app or blueprint of the process serves
                a decorated function; "allow" if it is registered later, or never
    unguarded   what happens to a request that has a key but no guard: "warn" adds a header to the
                response and a line to the log, "refuse" responds with 400
    operation, policy_url, challenge, replay_header, render_refusal and close are those of
    IdempotencyWSGI
    """

    def __init__(
        self,
        app: Flask | None = None,
        *,
        once: Once,
        caller: Callable[..., str | None],
        rules: Iterable[Rule] | None = None,
        operation: str = OPERATION_DEFAULT,
        policy_url: str | None = POLICY_URL_DEFAULT,
        challenge: str = "Bearer",
        replay_header: str = REPLAY_HEADER_DEFAULT,
        render_refusal: Render | None = None,
        close: bool = True,
        unserved: str = "refuse",
        unguarded: str = "warn",
    ) -> None:
        check_caller(caller)
        if unserved not in UNSERVED:
            raise ConfigurationError(f"unserved={unserved!r} must be 'refuse' or 'allow'")
        self.unserved = unserved
        self.caller = caller
        self._rules = None if rules is None else tuple(rules)
        self.has_rules = rules is not None
        self._options: dict[str, Any] = {
            "operation": operation,
            "policy_url": policy_url,
            "challenge": challenge,
            "replay_header": replay_header,
            "render_refusal": render_refusal,
            "unguarded": unguarded,
        }
        self.guard = SyncGuard(once, rules=self._rules or (), **self._options)
        if close:
            wsgi.close_at_exit(once)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        if EXTENSION in app.extensions:
            raise ConfigurationError(f"the app {app.name!r} has an Idempotency already")
        app.extensions[EXTENSION] = self
        VIEWS.apps.add(app)
        # Before all others: a function that parses a form would leave no body to compare.
        app.before_request_funcs.setdefault(None, []).insert(0, _keep_body)
        if self._rules is None:
            app.before_request_funcs[None].insert(1, _warn_or_refuse)
            app.after_request_funcs.setdefault(None, []).append(_add_warning)
            watch_request_ends(app)
            self._serve_page(app)
            return
        middleware = wsgi.IdempotencyWSGI(
            app.wsgi_app,
            self.guard.once,
            caller=self.caller,
            rules=self._rules,
            close=False,
            **self._options,
        )
        self.guard = middleware.guard
        app.wsgi_app = middleware  # type: ignore[method-assign]

    def _serve_page(self, app: Flask) -> None:
        """Serve the built-in policy page unless the app has its own."""
        inner, page_path = app.wsgi_app, self.guard.exchange.page_path

        def wsgi_app(environ: Environ, start_response: wsgi.StartResponse) -> Any:
            if is_policy_page(environ["REQUEST_METHOD"], wsgi.path_of(environ), page_path):
                return wsgi_app_or_page(inner, app, environ, start_response)
            return inner(environ, start_response)

        app.wsgi_app = wsgi_app  # type: ignore[method-assign]

    @property
    def unprotected(self) -> int:
        """How many requests ran unprotected because the store was down."""
        return self.guard.unprotected

    def current_caller(self) -> object:
        """The caller of the current request."""
        return self.caller() if self._rules is None else self.caller(request.environ)

    def check(self, app: Flask) -> None:
        """Raise ConfigurationError if a decorated function is served unguarded, or not at all. The
        first request does so too; call this once all routes are registered to know earlier."""
        check_app(app)


def idempotent(**options: Unpack[RuleOptions]) -> Callable[[Callable[P, Any]], Callable[P, Any]]:
    """Guard a view. It stands below `@app.post`; its options are those of a Rule but the path."""
    if "path" in options:
        raise ConfigurationError("a view has its path already; give rules= to guard by path")
    rule = rule_from_options({"methods": [ANY_METHOD], **options})

    def decorate(view: Callable[P, Any]) -> Callable[P, Any]:
        for app in list(VIEWS.apps):
            VIEWS.check_order(view, app.view_functions.values())

        @functools.wraps(view)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> Any:
            call = functools.partial(current_app.ensure_sync(view), *args, **kwargs)
            is_guarded = rule.guarded and rule.guards(request.method)
            if not is_guarded or ATTEMPT in request.environ:
                return call()  # nothing to guard, or guarded further outside
            return _respond(_extension(), rule, call)

        VIEWS.add(guarded, view, rule)
        return guarded

    return decorate


def _extension() -> Idempotency:
    found = current_app.extensions.get(EXTENSION)
    if not isinstance(found, Idempotency):
        raise ConfigurationError(
            f"the app {current_app.name!r} has no Idempotency: a decorated view needs "
            "Idempotency(app, once=..., caller=...)"
        )
    return found


def _keep_body() -> None:
    """Have the body of a guarded request kept, before any other function reads it."""
    view = guard_for_method(current_app.view_functions.get(request.endpoint or ""), request.method)
    if view is None or ATTEMPT in request.environ:
        return
    guard = _extension().guard
    if not guard.is_exempt(view.rule, wsgi.headers_of(request.environ)):
        mounted = guard.under(request.environ.get("SCRIPT_NAME", ""))
        keep_body(mounted.exchange, view.rule, flask_response)


def _warn_or_refuse() -> Any:
    """Refuse a request that has a key but no guard, or have a header added to its response."""
    extension, environ = _extension(), request.environ
    view = current_app.view_functions.get(request.endpoint or "")
    if view is None or not wsgi.has_unguarded_key(extension.guard, environ):
        return None
    if guard_for_method(view, request.method) is not None:
        return None
    unguarded, decorated = extension.guard.unguarded, guarded_view_of(view)
    unguarded.report(request.method, request.path)
    if unguarded.refuses and (decorated is None or decorated.rule.guarded):
        return flask_response(unguarded.refusal(environ.get("SCRIPT_NAME", "")))
    environ[_WARN] = KEY_GUARDED not in environ
    return None


def _add_warning(response: Response) -> Response:
    if request.environ.get(_WARN):
        for name, value in wsgi.text_headers(UNGUARDED_HEADERS):
            response.headers[name] = value
    return response


def _respond(extension: Idempotency, rule: Rule, call: Callable[[], Any]) -> Any:
    """Respond to a request whose view is guarded; `call` calls the view."""
    environ = request.environ
    guard = extension.guard.under(environ.get("SCRIPT_NAME", ""))
    headers = wsgi.headers_of(environ)
    if guard.is_exempt(rule, headers):
        return call()
    mark_key_guarded(environ)
    admitted = guard.admit(rule, headers, extension.current_caller)
    if isinstance(admitted, message.Response):
        discard_body()
        return flask_response(admitted)
    body = read_body(guard.exchange, rule)
    if isinstance(body, message.Response):
        return flask_response(body)

    def call_app(attempt: Attempt | None) -> _FlaskResponse:
        marks: list[int] = []
        environ.update({ATTEMPT: attempt, UNSTORED: marks})
        try:
            response = _FlaskResponse(_final_response(call))
            if attempt is not None:
                _end_request(response, attempt, rule.max_response)
            response.unhandled = is_unstored(marks, response.status)
            return response
        finally:
            del environ[ATTEMPT], environ[UNSTORED]

    key, caller = admitted
    sent = wsgi.request_of(environ, headers, body)
    if request.url_rule is not None:
        sent = sent._replace(template=request.url_rule.rule, name=request.endpoint or "")
    response = guard.run(key, caller, sent, call_app)
    if isinstance(response, FreshResponse):
        return close_body_with(response.app_response.to_send(response.more_headers))
    return close_body_with(flask_response(response))


def _end_request(response: _FlaskResponse, attempt: Attempt, body_max: int) -> None:
    """Run the app's functions for the end of the request. They fail by an error, or by a response
    that one of them made of it."""
    if response.status >= FAILURE:
        response.end_request(body_max)  # the view has failed before them
        return
    with late_part(attempt):
        response.end_request(body_max)
    if response.response(body_max).status >= FAILURE:
        warn_of_kept_steps(attempt)


def _final_response(call: Callable[[], Any]) -> Response:
    """The response that Flask makes of what a view returns or raises."""
    try:
        returned = call()
    except Exception as error:
        returned = current_app.handle_user_exception(error)  # raises it if there is no handler
    return current_app.make_response(returned)


class _FlaskResponse(SyncResponseBuffer):
    """The response of a view. A streamed response has been read."""

    def __init__(self, flask_response: Response) -> None:
        super().__init__()
        self._response = flask_response
        self._stored: message.Response | None = None  # as it was before the request's end
        self.status = flask_response.status_code
        self.headers = _header_lines(flask_response)
        self._streams = flask_response.is_streamed or flask_response.direct_passthrough
        if not self._streams:
            self.add(flask_response.get_data())
            return
        source: Any = flask_response.response
        parts = source if flask_response.direct_passthrough else flask_response.iter_encoded()
        self.fill(_ClosingParts(parts, source))
        flask_response.direct_passthrough = False
        flask_response.response = self

    def end_request(self, body_max: int) -> None:
        """Run the app's functions for the end of a request. They are run for a replay too, so the
        view's own response is stored; but if they change its status, theirs is the outcome."""
        try:
            self._stored = self.response(body_max)
            self._response = end_request(self._response, is_read=not self.is_cut)
            if self._response.status_code != self.status:
                body = self._response.get_data()
                is_long = len(body) > body_max
                self._stored = message.Response(
                    self._response.status_code,
                    _header_lines(self._response),
                    b"" if is_long else body,
                    is_long,
                )
        except BaseException:
            self.close()
            raise

    def response(self, body_max: int) -> message.Response:
        return self._stored or super().response(body_max)

    def to_send(self, more_headers: message.Headers) -> Response:
        """The response with more headers."""
        if self._response.response is not self:
            self.close()
        for name, value in wsgi.text_headers(more_headers):
            self._response.headers[name] = value
        return self._response


def _header_lines(response: Response) -> message.Headers:
    lines = response.get_wsgi_headers(request.environ)
    return tuple((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in lines)


class _ClosingParts:
    """The parts of a body, which close their source."""

    def __init__(self, parts: Iterable[bytes], source: Any) -> None:
        self._parts = parts
        self._source = source

    def __iter__(self) -> Any:
        return iter(self._parts)

    def close(self) -> None:
        if hasattr(self._source, "close"):
            self._source.close()


def flask_response(response: message.Response) -> Response:
    """A refusal or a replay as a response of Flask."""
    made: Response = current_app.response_class(response.body, response.status)
    made.headers = FlaskHeaders(wsgi.text_headers(response.headers))  # without default headers
    return made
