"""`IdempotencyMiddleware`, and `idempotent`, the decorator of views.

Owns the Django side of a run, in a transaction of the database too. http/sync_request.py has the
order of a run, settings.py the setting.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, Unpack

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.core.handlers.exception import response_for_exception
from django.db import connections, transaction
from django.http import Http404
from django.http.multipartparser import MultiPartParserError

from oncekey.core.errors import ConfigurationError
from oncekey.engine.attempts.attempt import Attempt
from oncekey.engine.attempts.kept_steps import warn_of_kept_steps
from oncekey.engine.once import Once, Operations
from oncekey.http import policy_document
from oncekey.http.canonical_body import UnreadableBody
from oncekey.http.django.cancellation_shield import shielded
from oncekey.http.django.failed_commits import is_failed_commit, watch_failed_commits
from oncekey.http.django.messages import (
    DjangoResponse,
    body_of,
    django_request,
    django_response,
    headers_of,
    is_unrouted,
    paths_of,
    rendered,
    request_of,
    unstored_marks,
)
from oncekey.http.django.outer_transactions import refusal
from oncekey.http.django.served_views import VIEWS
from oncekey.http.django.settings import (
    DjangoSettings,
    check_transaction,
    database_alias,
    django_settings,
)
from oncekey.http.guarded_views import guard_for_method, guarded_view_of
from oncekey.http.message import Response
from oncekey.http.policy_page import is_policy_page, page_with_entries
from oncekey.http.rules import ANY_METHOD, Rule, RuleOptions, rule_from_options
from oncekey.http.sync_request import FreshResponse
from oncekey.http.unguarded_keys import KEY_GUARDED, UNGUARDED_HEADERS, mark_key_guarded
from oncekey.http.unhandled_requests import is_raised_by_rest_validation, is_unstored
from oncekey.http.wsgi import has_unguarded_key, text_headers

_ATTEMPT: Final = "oncekey_attempt"
_WARN: Final = (
    "oncekey_warn"  # on a request: whether its response gets the header of an unguarded key
)
_UNHANDLED: Final = "oncekey_unhandled"  # on a response that no view made
_FIRST_ERROR_STATUS: Final = 400
# Django responds to these with 400, 403 or 404. Any other exception of a view is a failure.
_HANDLED_ERRORS: Final = (
    Http404,
    PermissionDenied,
    MultiPartParserError,
    BadRequest,
    SuspiciousOperation,
)


def attempt_of(request: Any) -> Attempt | None:
    """The attempt that a request runs in, for steps, child keys, the fence and rollback(); None if
    it is not guarded by a key."""
    attempt: Attempt | None = getattr(django_request(request), _ATTEMPT, None)
    return attempt


class IdempotencyMiddleware:
    """Guards the requests that ONCEKEY["rules"] match; by default every POST and PATCH.

    It stands below AuthenticationMiddleware, which finds the caller. Under ASGI Django runs it in a
    thread, and a client that leaves does not cancel what it has begun.
    """

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self.get_response = get_response
        self._settings = django_settings()  # raises if a setting is missing
        self._settings.serve_page()
        self._exchange = self._settings.guard.exchange
        self._find = self._exchange.rules.find
        watch_failed_commits()

    @property
    def unprotected(self) -> int:
        """How many requests ran unprotected because the store was down."""
        return self._settings.guard.unprotected

    def __call__(self, request: Any) -> Any:
        has_rules = self._settings.has_rules
        rule = self._find(request.method, *paths_of(request)) if has_rules else None
        if rule is None:
            response = self.get_response(request)
            if getattr(request, _WARN, False):
                for name, value in text_headers(UNGUARDED_HEADERS):
                    response[name] = value
            is_page = is_policy_page(request.method, request.path_info, self._exchange.page_path)
            return policy_page(request) if is_page and response.status_code == 404 else response
        call = functools.partial(_project_call, self.get_response, request)
        return respond(self._settings, rule, self._settings.alias, request, call)

    def process_view(self, request: Any, view: Any, args: Any, kwargs: Any) -> Any:
        """Refuse a request that has a key but no guard, or have a header added to its response."""
        guard, method = self._settings.guard, request.method
        if attempt_of(request) is not None or not has_unguarded_key(guard, request.META):
            return None
        if guard_for_method(view, method) is not None:
            return None
        decorated = guarded_view_of(view)
        is_excluded = (decorated is not None and not decorated.rule.guarded) or (
            self._settings.has_rules and self._exchange.rules.excludes(method, *paths_of(request))
        )
        guard.unguarded.report(method, request.path_info)
        if guard.unguarded.refuses and not is_excluded:
            return django_response(guard.unguarded.refusal(request.META.get("SCRIPT_NAME", "")))
        setattr(request, _WARN, KEY_GUARDED not in request.META)
        return None


def policy_page(request: Any) -> Any:
    """The built-in policy page as a view, for projects without the middleware."""
    guard = django_settings().guard
    entries = policy_document.policy_entries(
        [(rule.methods, rule.path, rule) for rule in guard.exchange.rules.all if rule.guarded],
        guard.once.policy,
    )
    return django_response(page_with_entries(entries, guard.exchange.replay_header, request.method))


def idempotent(
    *, transaction: bool | str = False, **options: Unpack[RuleOptions]
) -> Callable[[Any], Any]:
    """Guard a view, a method of a REST framework view, or by `method_decorator` a class's dispatch.

    transaction   True, or the alias of the database that the keys are in: the rows of the view, the
                  key and the response are committed together. For a 4xx response the rows are
                  rolled back and the response is stored; a failure (5xx or an exception) leaves
                  nothing
    options       those of a Rule but the path

    On a method of a REST framework view it runs after authentication, permissions and throttles.
    """
    if "path" in options:
        raise ConfigurationError("a view has its path already; rules are for the middleware")
    rule = rule_from_options({"methods": [ANY_METHOD], **options})
    alias = database_alias(transaction)
    check_transaction(rule, alias)

    def decorate(view: Callable[..., Any]) -> Callable[..., Any]:
        if isinstance(view, type):
            raise ConfigurationError(
                f"{view.__qualname__} is a class: guard one of its methods, or all of it by "
                '@method_decorator(idempotent(...), name="dispatch")'
            )
        if iscoroutinefunction(view):
            raise ConfigurationError(
                f"{view.__qualname__} is async: guard it by IdempotencyMiddleware, or decorate a "
                "plain function"
            )

        @functools.wraps(view)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            # The first argument of a method is the instance of its view.
            request = next(one for one in args if hasattr(one, "META"))
            call = functools.partial(view, *args, **kwargs)
            is_guarded = rule.guarded and rule.guards(request.method)
            if not is_guarded or attempt_of(request) is not None:
                return call()  # nothing to guard, or guarded by the middleware
            if request is not django_request(request):
                call = functools.partial(_rest_call, request, call)
            else:
                call = functools.partial(_view_call, request, call)
            return respond(django_settings(), rule, alias, request, call)

        VIEWS.add(guarded, view, rule, alias)
        return guarded

    return decorate


def respond(
    options: DjangoSettings, rule: Rule, alias: str | None, request: Any, call: Callable[[], Any]
) -> Any:
    """Respond to a guarded request; `call` calls the view. From its claim to its commit nothing
    cancels it."""
    guard = options.guard.under(django_request(request).META.get("SCRIPT_NAME", ""))
    headers = headers_of(request)
    if guard.is_exempt(rule, headers):
        return call()
    _check_outer_transactions(alias)
    mark_key_guarded(django_request(request).META)
    admitted = guard.admit(rule, headers, lambda: options.caller(request))
    if isinstance(admitted, Response):
        return django_response(admitted)
    try:
        body = body_of(request, rule, headers)
    except UnreadableBody as error:
        return django_response(guard.exchange.unreadable(str(error)))
    if body is None:
        return django_response(guard.exchange.too_large(rule))
    key, caller = admitted
    data = request_of(request, headers, body)

    def call_app(attempt: Attempt | None) -> DjangoResponse:
        setattr(django_request(request), _ATTEMPT, attempt)
        try:
            with unstored_marks(request) as marks:
                response = DjangoResponse(call())
            is_unhandled = getattr(response.final, _UNHANDLED, False)
            response.unhandled = is_unhandled or is_unstored(marks, response.status)
            return response
        except Exception as error:
            if is_failed_commit(error):
                warn_of_kept_steps(attempt)
            raise
        finally:
            setattr(django_request(request), _ATTEMPT, None)

    with shielded():
        if alias is None:
            return _to_send(guard.run(key, caller, data, call_app))
        with transaction.atomic(using=alias):
            operations = _joined_transaction(guard.once, alias)
            response = guard.run(key, caller, data, _rolling_back(call_app, alias), operations)
            if isinstance(response, FreshResponse) and not response.stored:
                transaction.set_rollback(True, using=alias)
        return _to_send(response)


def _to_send(response: FreshResponse[DjangoResponse] | Response) -> Any:
    if isinstance(response, Response):
        return django_response(response)
    return response.app_response.to_send(response.more_headers)


# --- transactions -------------------------------------------------------------------------------


def _joined_transaction(once: Once, alias: str) -> Operations:
    """The engine in the open transaction of Django's own connection."""
    connection = connections[alias]
    is_sqlite = connection.vendor == "sqlite"
    return once.in_transaction(connection.connection if is_sqlite else connection)


def _rolling_back(
    call_app: Callable[[Attempt | None], DjangoResponse], alias: str
) -> Callable[[Attempt | None], DjangoResponse]:
    """`call_app`, but the rows of an error response are rolled back. The savepoint is Django's own,
    so that its on_commit functions are dropped with the rows, on SQLite too."""

    def call_and_roll_back(attempt: Attempt | None) -> DjangoResponse:
        with transaction.atomic(using=alias):
            response = call_app(attempt)
            if response.status >= _FIRST_ERROR_STATUS:
                transaction.set_rollback(True, using=alias)
            return response

    return call_and_roll_back


def _check_outer_transactions(alias: str | None) -> None:
    """Raise ConfigurationError if a transaction is open around a guarded run: it is committed after
    the outcome is stored, and if that fails, retries get a response for rows that do not exist
    (I16). On the database of the key (`alias`) the key is in the transaction. Those that a TestCase
    opens are never committed."""
    for connection in connections.all(initialized_only=True):
        blocks = getattr(connection, "atomic_blocks", ())
        is_open = any(not getattr(block, "_from_testcase", False) for block in blocks)
        if connection.alias != alias and (is_open or _is_committed_by_hand(connection)):
            raise ConfigurationError(refusal(connection.alias))


def _is_committed_by_hand(connection: Any) -> bool:
    """Whether somebody has switched the connection's autocommit off, and so will commit."""
    is_usual = connection.connection is not None and connection.settings_dict["AUTOCOMMIT"]
    return bool(is_usual and not connection.in_atomic_block and not connection.autocommit)


# --- calls of views ----------------------------------------------------------------------------


def _project_call(get_response: Callable[[Any], Any], request: Any) -> Any:
    """Call the rest of the project, and mark a response that no view made."""
    response = get_response(request)
    if is_unrouted(request, response.status_code):
        setattr(response, _UNHANDLED, True)
    return response


def _view_call(request: Any, call: Callable[[], Any]) -> Any:
    """Call a view of Django's. Its response to a handled error is Django's own."""
    try:
        return call()
    except _HANDLED_ERRORS as error:
        return response_for_exception(request, error)


def _rest_call(request: Any, call: Callable[[], Any]) -> Any:
    """Call a method of a REST framework view, and finalize its response as the view itself does:
    errors handled, content rendered. The view finalizes the response that it gets once more."""
    view = request.parser_context["view"]
    try:
        response = call()
    except Exception as error:
        try:
            response = view.handle_exception(error)  # raises it again if it is not an API error
        except _HANDLED_ERRORS as again:  # such as a form with more fields than Django allows
            response = response_for_exception(django_request(request), again)
        if is_raised_by_rest_validation(error):
            setattr(response, _UNHANDLED, True)
    response = view.finalize_response(request, response, *view.args, **view.kwargs)
    return rendered(response)
