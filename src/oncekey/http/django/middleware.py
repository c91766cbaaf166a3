"""`IdempotencyMiddleware`, and `idempotent`, the decorator of views.

Owns the Django side of a run; view_call.py has the call of the view, settings.py the setting,
http/wsgi/request_guard.py the order of a run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, Unpack

from asgiref.sync import iscoroutinefunction
from django.db import transaction

from oncekey.core.errors import ConfigurationError
from oncekey.engine.attempts.attempt import Attempt
from oncekey.engine.attempts.kept_steps import warn_of_kept_steps
from oncekey.http.django.messages import (
    DjangoResponse,
    body_of,
    django_request,
    django_response,
    headers_of,
    paths_of,
    request_of,
    unstored_marks,
)
from oncekey.http.django.settings import (
    DjangoSettings,
    check_transaction,
    database_alias,
    django_settings,
)
from oncekey.http.django.view_call import (
    UNHANDLED,
    check_outer_transactions,
    is_failed_commit,
    joined_transaction,
    project_call,
    rest_call,
    rolling_back,
    shielded,
    view_call,
    watch_failed_commits,
)
from oncekey.http.django.view_checks import VIEWS
from oncekey.http.inspection.guarded_views import guard_for_method, guarded_view_of
from oncekey.http.inspection.policy_document import (
    is_policy_page,
    page_with_entries,
    policy_entries,
)
from oncekey.http.message import Response, TooLarge, UnreadableBody, text_headers
from oncekey.http.rules import ANY_METHOD, Rule, RuleOptions, rule_from_options
from oncekey.http.unguarded_keys import KEY_GUARDED, UNGUARDED_HEADERS, mark_key_guarded
from oncekey.http.unhandled_requests import is_unstored
from oncekey.http.wsgi.request_guard import FreshResponse

_ATTEMPT: Final = "oncekey_attempt"
_WARN: Final = (
    "oncekey_warn"  # on a request: whether its response gets the header of an unguarded key
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
        call = functools.partial(project_call, self.get_response, request)
        return respond(self._settings, rule, self._settings.alias, request, call)

    def process_view(self, request: Any, view: Any, args: Any, kwargs: Any) -> Any:
        """Refuse a request that has a key but no guard, or have a header added to its response."""
        guard, method = self._settings.guard, request.method
        if attempt_of(request) is not None or not guard.has_unguarded_key(request.META):
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
    entries = policy_entries(
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
                call = functools.partial(rest_call, request, call)
            else:
                call = functools.partial(view_call, request, call)
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
    check_outer_transactions(alias)
    mark_key_guarded(django_request(request).META)
    admitted = guard.admit(rule, headers, lambda: options.caller(request))
    if isinstance(admitted, Response):
        return django_response(admitted)
    try:
        body = body_of(request, rule, headers)
    except (TooLarge, UnreadableBody) as error:
        return django_response(guard.exchange.refused_body(rule, error))
    key, caller = admitted
    data = request_of(request, headers, body)

    def call_app(attempt: Attempt | None) -> DjangoResponse:
        setattr(django_request(request), _ATTEMPT, attempt)
        try:
            with unstored_marks(request) as marks:
                response = DjangoResponse(call())
            is_unhandled = getattr(response.final, UNHANDLED, False)
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
            return _to_send(guard.run(rule, key, caller, data, call_app))
        with transaction.atomic(using=alias):
            operations = joined_transaction(guard.once, alias)
            in_savepoint = rolling_back(call_app, alias)
            response = guard.run(rule, key, caller, data, in_savepoint, operations)
            if isinstance(response, FreshResponse) and not response.is_stored:
                transaction.set_rollback(True, using=alias)
        return _to_send(response)


def _to_send(response: FreshResponse[DjangoResponse] | Response) -> Any:
    if isinstance(response, Response):
        return django_response(response)
    return response.app_response.to_send(response.more_headers)
