"""`Idempotency`, the Flask extension, and `idempotent`, the decorator of views.

A decorated view runs after the app's `before_request` functions, so a request that they reject does
not claim its key. Its response is stored as Flask makes it, error handlers included. The
`after_request` functions run for replays too, so what they add is not stored; but they and the
teardown functions run before the outcome is stored, see messages.py. With `rules=` the whole app
is wrapped instead, see wsgi/middleware.py.

Owns the Flask side only; messages.py has the request's body and its end,
wsgi/request_guard.py the order of a run.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, ParamSpec, Unpack
from weakref import WeakKeyDictionary

from flask import Blueprint, Flask, Response, current_app, request, request_started

from oncekey.core.errors import ConfigurationError
from oncekey.engine.attempts.attempt import Attempt
from oncekey.engine.once import Once
from oncekey.http import message
from oncekey.http.exchange import (
    ATTEMPT,
    OPERATION_DEFAULT,
    POLICY_URL_DEFAULT,
    REPLAY_HEADER_DEFAULT,
    Exchange,
    check_caller,
)
from oncekey.http.flask.messages import (
    FlaskResponse,
    close_body_with,
    discard_body,
    final_response,
    flask_response,
    keep_body,
    read_body,
    watch_request_ends,
)
from oncekey.http.inspection.guarded_views import (
    UNSERVED,
    GuardedViews,
    ServedView,
    closure_of,
    guard_for_method,
    guarded_view_of,
)
from oncekey.http.inspection.outer_layers import warn_of_late_commits
from oncekey.http.inspection.policy_document import is_policy_page, wsgi_app_or_page
from oncekey.http.inspection.route_table import app_views
from oncekey.http.problem import Render
from oncekey.http.rules import ANY_METHOD, Rule, RuleOptions, Rules, rule_from_options
from oncekey.http.unguarded_keys import KEY_GUARDED, UNGUARDED_HEADERS, mark_key_guarded
from oncekey.http.unhandled_requests import UNSTORED, is_unstored
from oncekey.http.wsgi.messages import Environ, headers_of, path_of, request_of
from oncekey.http.wsgi.middleware import IdempotencyWSGI, StartResponse, attempt_of
from oncekey.http.wsgi.request_guard import FreshResponse, RequestGuard, close_at_exit

P = ParamSpec("P")

EXTENSION: Final = "oncekey"  # the name of our extension in `app.extensions`
VIEWS: Final = GuardedViews(
    "flask",
    "@idempotent(...) stands directly above the function, below @app.post(...).",
    'Idempotency(..., unserved="allow")',
)
_checked: Final[WeakKeyDictionary[Flask, tuple[int, int]]] = WeakKeyDictionary()
_WARN: Final = (
    "oncekey.warn"  # in the environ: whether the response gets the header of an unguarded key
)


def current_attempt() -> Attempt | None:
    """The attempt that the current request runs in, for steps, child keys and the fence; None if it
    is not guarded by a key."""
    return attempt_of(request.environ)


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
        options: dict[str, Any] = {
            "operation": operation,
            "policy_url": policy_url,
            "challenge": challenge,
            "replay_header": replay_header,
            "render_refusal": render_refusal,
        }
        self._options = {**options, "unguarded": unguarded}
        exchange = Exchange(Rules(self._rules or ()), **options)
        self.guard = RequestGuard(once, exchange, unguarded)
        if close:
            close_at_exit(once)
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
        middleware = IdempotencyWSGI(
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

        def wsgi_app(environ: Environ, start_response: StartResponse) -> Any:
            if is_policy_page(environ["REQUEST_METHOD"], path_of(environ), page_path):
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
    if not guard.is_exempt(view.rule, headers_of(request.environ)):
        mounted = guard.under(request.environ.get("SCRIPT_NAME", ""))
        keep_body(mounted.exchange, view.rule)


def _warn_or_refuse() -> Any:
    """Refuse a request that has a key but no guard, or have a header added to its response."""
    extension, environ = _extension(), request.environ
    view = current_app.view_functions.get(request.endpoint or "")
    if view is None or not extension.guard.has_unguarded_key(environ):
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
        for name, value in message.text_headers(UNGUARDED_HEADERS):
            response.headers[name] = value
    return response


def _respond(extension: Idempotency, rule: Rule, call: Callable[[], Any]) -> Any:
    """Respond to a request whose view is guarded; `call` calls the view."""
    environ = request.environ
    guard = extension.guard.under(environ.get("SCRIPT_NAME", ""))
    headers = headers_of(environ)
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

    def call_app(attempt: Attempt | None) -> FlaskResponse:
        marks: list[int] = []
        environ.update({ATTEMPT: attempt, UNSTORED: marks})
        try:
            response = FlaskResponse(final_response(call))
            if attempt is not None:
                response.end_request(attempt, rule.max_response)
            response.unhandled = is_unstored(marks, response.status)
            return response
        finally:
            del environ[ATTEMPT], environ[UNSTORED]

    key, caller = admitted
    sent = request_of(environ, headers, body)
    if request.url_rule is not None:
        sent = sent._replace(template=request.url_rule.rule, name=request.endpoint or "")
    response = guard.run(rule, key, caller, sent, call_app)
    if isinstance(response, FreshResponse):
        return close_body_with(response.app_response.to_send(response.more_headers))
    return close_body_with(flask_response(response))


# --- the views of an app --------------------------------------------------------------------------


def check_app(app: Flask) -> None:
    """Raise ConfigurationError if the app serves a decorated function unguarded, or if no route
    serves it. Log which decorators of guarded views commit too late."""
    extension = app.extensions.get(EXTENSION)
    # An app without our extension may still serve the undecorated form of a guarded function.
    unserved = getattr(extension, "unserved", "allow")
    served = app_views([app])
    VIEWS.check(served, unserved=unserved)
    if not getattr(extension, "has_rules", False):  # by which views are guarded from outside
        warn_of_late_commits(served)


def _check_before_request(app: Flask, **_: Any) -> None:
    """Check the app before its first request, and again when views were added since."""
    state = (len(app.view_functions), VIEWS.version)
    if _checked.get(app) != state:
        check_app(app)
        _checked[app] = state


def _all_registered_views() -> Iterator[ServedView]:
    """The views of every app, and of every blueprint, registered or not.

    Slow, because it searches all objects of the garbage collector. Called on the way to an error
    only.
    """
    for one in gc.get_objects():
        kind = type(one)  # isinstance() would ask a proxy such as current_app for its app
        if issubclass(kind, Flask):
            yield from app_views([one])
        elif issubclass(kind, Blueprint):
            for deferred in list(one.deferred_functions):
                yield _deferred_view(deferred)


def _deferred_view(deferred: Callable[..., Any]) -> ServedView:
    """The view that a blueprint will register with its app. A blueprint has the arguments of
    `add_url_rule` in a closure. Any other deferred function leads to no guarded function, or to one
    whose methods are not known yet."""
    arguments = closure_of(deferred)
    view, options = arguments.get("view_func"), arguments.get("options")
    if view is None or not isinstance(options, dict):
        return ServedView(deferred, None)
    methods = options.get("methods") or getattr(view, "methods", None) or ("GET",)
    return ServedView(view, methods)


VIEWS.other_views = _all_registered_views
request_started.connect(_check_before_request)
