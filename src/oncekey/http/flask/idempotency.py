"""`Idempotency`: Flask apps, guarded view by view or all of an app.

    Idempotency(app, once=Once(url), caller=lambda: g.account)

    @app.post("/charges")
    @idempotent(keep="7d")
    def charge(): ...

A decorated view is reached after the app's own `before_request`, so whoever that turns away meets
no key. Its answer is what Flask makes of it, error handlers included; `after_request` comes later
and adds to replays as well. With `rules=` the whole app is wrapped instead, see wsgi.py.

Owns the Flask side only; the order of a run is in sync_request.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final, ParamSpec, Unpack
from weakref import WeakKeyDictionary

from flask import Flask, Response, current_app, request, request_started
from werkzeug.datastructures import Headers as FlaskHeaders

from oncekey.core.errors import ConfigurationError
from oncekey.engine.blocking.attempt import Attempt
from oncekey.engine.blocking.once import Once
from oncekey.http import message, wsgi
from oncekey.http.body_canonical import UnreadableBody
from oncekey.http.exchange import (
    ATTEMPT,
    OPERATION_DEFAULT,
    POLICY_URL_DEFAULT,
    REPLAY_HEADER_DEFAULT,
    check_caller,
)
from oncekey.http.flask.routes import all_registered_views
from oncekey.http.guarded_views import UNSERVED, GuardedViews, guard_for_method, guarded_view_of
from oncekey.http.policy_page import is_policy_page, wsgi_app_or_page
from oncekey.http.problem import Render
from oncekey.http.route_table import served_views
from oncekey.http.rules import ANY_METHOD, Rule, RuleOptions, rule_from_options
from oncekey.http.sync_request import FreshResponse, SyncGuard
from oncekey.http.sync_response_buffer import SyncResponseBuffer
from oncekey.http.unguarded_keys import KEY_GUARDED, UNGUARDED_HEADERS, mark_key_guarded

P = ParamSpec("P")

EXTENSION: Final = "oncekey"
_WARN: Final = "oncekey.warn"  # in the environ: whether its client is to be told
_BODY: Final = "oncekey.body"  # in the environ: what was read before anything else could
VIEWS: Final = GuardedViews(
    "flask",
    "@idempotent(...) stands directly above the function, below @app.post(...).",
    'Idempotency(..., unserved="allow")',
)
VIEWS.elsewhere = all_registered_views
_checked: Final[WeakKeyDictionary[Flask, tuple[int, int]]] = WeakKeyDictionary()


def current_attempt() -> Attempt | None:
    """The attempt the current request runs in: for steps, child keys and the fence. None where no
    key guards it."""
    return wsgi.attempt_of(request.environ)


class Idempotency:
    """The extension; one per app, or one for several by `init_app`.

    once        the engine
    caller      gives the verified principal, or None to refuse: a function of no arguments that
                looks at flask.g or flask.request; with `rules` a function of the environ
    rules       where given, all of the app is guarded by them, outside of Flask; where not, the
                views that are decorated are
    unserved    a decorated function that no app or blueprint of the process serves is an error at
                the first request; "allow" where one is registered later, or never
    unguarded   what to do about a key on a request that nothing guards: "warn" says so in the
                response and in the log, "refuse" answers 400
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
        # First of all: what parses a form leaves no body to compare.
        app.before_request_funcs.setdefault(None, []).insert(0, _read_first)
        if self._rules is None:
            app.before_request_funcs[None].insert(1, _watch)
            app.after_request_funcs.setdefault(None, []).append(_warn)
            self._serve_page(app)
            return
        whole = wsgi.IdempotencyWSGI(
            app.wsgi_app,
            self.guard.once,
            caller=self.caller,
            rules=self._rules,
            close=False,
            **self._options,
        )
        self.guard = whole.guard
        app.wsgi_app = whole  # type: ignore[method-assign]

    def _serve_page(self, app: Flask) -> None:
        """Serve the built-in policy page where the app has none of its own."""
        inner, page_path = app.wsgi_app, self.guard.exchange.page_path

        def wsgi_app(environ: wsgi.Environ, start_response: wsgi.StartResponse) -> Any:
            if is_policy_page(environ["REQUEST_METHOD"], wsgi.path_of(environ), page_path):
                return wsgi_app_or_page(inner, app, environ, start_response)
            return inner(environ, start_response)

        app.wsgi_app = wsgi_app  # type: ignore[method-assign]

    @property
    def unprotected(self) -> int:
        """Runs without a key's protection because the store was down."""
        return self.guard.unprotected

    def caller_now(self) -> object:
        """Who sent the current request, as `caller` says."""
        return self.caller() if self._rules is None else self.caller(request.environ)

    def check(self, app: Flask) -> None:
        """Raise ConfigurationError if a decorated function is served unguarded, or not at all. The
        first request does the same; once all routes are registered, this says so earlier."""
        _check_app(app)


def idempotent(**options: Unpack[RuleOptions]) -> Callable[[Callable[P, Any]], Callable[P, Any]]:
    """Guard a view; `options` are those of a Rule, but for its path. Stands below `@app.post`."""
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
                return call()  # nothing to guard, or the whole app is
            return _respond(_extension(), rule, call)

        VIEWS.add(guarded, view, rule)
        return guarded

    return decorate


def _check_served(app: Flask, **_: Any) -> None:
    """Before each request; a look at two numbers once all is well."""
    state = (len(app.view_functions), VIEWS.version)
    if _checked.get(app) != state:
        _check_app(app)
        _checked[app] = state


def _check_app(app: Flask) -> None:
    extension = app.extensions.get(EXTENSION)
    # An app that guards nothing may still hold the bare form of a guarded function.
    unserved = getattr(extension, "unserved", "allow")
    VIEWS.check(served_views([app]), unserved=unserved)


request_started.connect(_check_served)


def _extension() -> Idempotency:
    found = current_app.extensions.get(EXTENSION)
    if not isinstance(found, Idempotency):
        raise ConfigurationError(
            f"the app {current_app.name!r} has no Idempotency: a decorated view needs "
            "Idempotency(app, once=..., caller=...)"
        )
    return found


def _read_first() -> Response | None:
    """Read the body of a guarded request before anybody else does, and put it back. One that is
    cut short is answered here: its client is gone, and nobody could read it either."""
    view = guard_for_method(current_app.view_functions.get(request.endpoint or ""), request.method)
    if view is None:
        return None
    environ, rule = request.environ, view.rule
    if ATTEMPT in environ or _extension().guard.passes(rule, wsgi.headers_of(environ)):
        return None
    try:
        body = wsgi.read_body(environ, rule.max_request)
        if body is not None and wsgi.is_cut_short(environ, body):
            raise UnreadableBody(wsgi.CUT_SHORT)
    except UnreadableBody as error:
        return _given(_extension().guard.exchange.unreadable(str(error)))
    environ[_BODY] = body
    if body is not None:
        wsgi.put_body_back(environ, body)
    return None


def _watch() -> Any:
    """Refuse a request whose key nothing guards, or see to it that its client is told."""
    extension, environ = _extension(), request.environ
    view = current_app.view_functions.get(request.endpoint or "")
    if view is None or not wsgi.has_unguarded_key(extension.guard, environ):
        return None
    if guard_for_method(view, request.method) is not None:
        return None
    unguarded, left_out = extension.guard.unguarded, guarded_view_of(view)
    unguarded.note(request.method, request.path)
    if unguarded.refuses and (left_out is None or left_out.rule.guarded):
        return _given(unguarded.refusal(environ.get("SCRIPT_NAME", "")))
    environ[_WARN] = KEY_GUARDED not in environ
    return None


def _warn(response: Response) -> Response:
    if request.environ.get(_WARN):
        for name, value in wsgi.text_headers(UNGUARDED_HEADERS):
            response.headers[name] = value
    return response


def _respond(extension: Idempotency, rule: Rule, call: Callable[[], Any]) -> Any:
    environ = request.environ
    guard = extension.guard.under(environ.get("SCRIPT_NAME", ""))
    headers = wsgi.headers_of(environ)
    if guard.passes(rule, headers):
        return call()
    mark_key_guarded(environ)
    admitted = guard.admit(rule, headers, extension.caller_now)
    if isinstance(admitted, message.Response):
        return _given(admitted)
    if _BODY not in environ:
        raise ConfigurationError(
            "@idempotent must be on the view that is registered, below @app.post: this request's "
            "body was not read in time to be compared"
        )
    body: bytes | None = environ[_BODY]
    if body is None:
        return _given(guard.exchange.too_large(rule))

    def make(attempt: Attempt | None) -> _Answer:
        environ[ATTEMPT] = attempt
        try:
            return _Answer(_final(call))
        finally:
            del environ[ATTEMPT]

    keyed, who = admitted
    answer = guard.run(keyed, who, wsgi.request_of(environ, headers, body), make)
    if isinstance(answer, FreshResponse):
        return answer.answer.sent(answer.more)
    return _given(answer)


def _final(call: Callable[[], Any]) -> Response:
    """What Flask makes of what a view gives or raises."""
    try:
        given = call()
    except Exception as error:
        given = current_app.handle_user_exception(error)  # raises it again where nobody handles it
    return current_app.make_response(given)


class _Answer(SyncResponseBuffer):
    """A view's response; one that streams has been read."""

    def __init__(self, flask_response: Response) -> None:
        super().__init__()
        self._response = flask_response
        self.status = flask_response.status_code
        lines = flask_response.get_wsgi_headers(request.environ)
        self.headers = tuple(
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in lines
        )
        self._streams = flask_response.is_streamed or flask_response.direct_passthrough
        if not self._streams:
            self.add(flask_response.get_data())
            return
        source: Any = flask_response.response
        parts = source if flask_response.direct_passthrough else flask_response.iter_encoded()
        self.fill(_Closing(parts, source))

    def sent(self, more: message.Headers) -> Response:
        if self._streams:
            self._response.direct_passthrough = False
            self._response.response = self
        else:
            self.close()
        for name, value in wsgi.text_headers(more):
            self._response.headers[name] = value
        return self._response


class _Closing:
    """Parts, and what they come from."""

    def __init__(self, parts: Iterable[bytes], source: Any) -> None:
        self._parts = parts
        self._source = source

    def __iter__(self) -> Any:
        return iter(self._parts)

    def close(self) -> None:
        if hasattr(self._source, "close"):
            self._source.close()


def _given(answer: message.Response) -> Response:
    """Ours: a refusal or a replay."""
    made: Response = current_app.response_class(answer.body, answer.status)
    made.headers = FlaskHeaders(wsgi.text_headers(answer.headers))  # and nothing by default
    return made
