"""The middleware and the decorator: which requests are guarded, and in whose transaction.

Owns the Django side of a run, the transactional one included; the order of a run is in
http/sync_request.py, the setting in settings.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, Unpack

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core import checks
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.core.handlers.exception import response_for_exception
from django.core.signals import request_started
from django.db import connections, transaction
from django.http import Http404

from oncekey.core.errors import ConfigurationError
from oncekey.engine.blocking.attempt import Attempt
from oncekey.engine.blocking.once import Once, Operations
from oncekey.http import policy_document
from oncekey.http.body_canonical import UnreadableBody
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
)
from oncekey.http.django.settings import (
    SETTING,
    DjangoSettings,
    check_transaction,
    database_alias,
    django_settings,
)
from oncekey.http.django.url_patterns import other_urlconf_views, urlconf_views
from oncekey.http.guarded_views import GuardedViews, guard_for_method, guarded_view_of
from oncekey.http.message import Response
from oncekey.http.policy_page import is_policy_page, page_with_entries
from oncekey.http.rules import ANY_METHOD, Rule, RuleOptions, rule_from_options
from oncekey.http.sync_request import FreshResponse
from oncekey.http.unguarded_keys import KEY_GUARDED, UNGUARDED_HEADERS, mark_key_guarded
from oncekey.http.wsgi import has_unguarded_key, text_headers

VIEWS: Final = GuardedViews(
    "django",
    "@idempotent(...) stands above the function or method that a URL pattern leads to.",
    'ONCEKEY = {..., "unserved": "allow"}',
)
VIEWS.served, VIEWS.elsewhere = urlconf_views, other_urlconf_views
_ATTEMPT: Final = "oncekey_attempt"
_WARN: Final = "oncekey_warn"  # on a request: whether its client is to be told
_UNHANDLED: Final = "oncekey_unhandled"  # on a response that no view has made
_FIRST_REFUSAL: Final = 400
# What Django answers with 400, 403 or 404; all else that a view raises is a failure.
_ANSWERED: Final = (Http404, PermissionDenied, BadRequest, SuspiciousOperation)


def attempt_of(request: Any) -> Attempt | None:
    """The attempt a request runs in: for steps, child keys, the fence and rollback(). None where no
    key guards it."""
    found: Attempt | None = getattr(django_request(request), _ATTEMPT, None)
    return found


class IdempotencyMiddleware:
    """Guards the requests that ONCEKEY["rules"] name; by default every POST and PATCH.

    Stands below AuthenticationMiddleware, for its caller. Under ASGI Django runs it in a thread.
    """

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self.get_response = get_response
        self._configured = django_settings()  # what is missing is missed now
        self._configured.serve_page()
        self._exchange = self._configured.guard.exchange
        self._find = self._exchange.rules.find

    @property
    def unprotected(self) -> int:
        """Runs without a key's protection because the store was down."""
        return self._configured.guard.unprotected

    def __call__(self, request: Any) -> Any:
        is_by_path = self._configured.guards_paths
        rule = self._find(request.method, *paths_of(request)) if is_by_path else None
        if rule is None:
            response = self.get_response(request)
            if getattr(request, _WARN, False):
                for name, value in text_headers(UNGUARDED_HEADERS):
                    response[name] = value
            is_page = is_policy_page(request.method, request.path_info, self._exchange.page_path)
            return policy_page(request) if is_page and response.status_code == 404 else response
        call = functools.partial(_respond_by_view, self.get_response, request)
        return respond(self._configured, rule, self._configured.alias, request, call)

    def process_view(self, request: Any, view: Any, args: Any, kwargs: Any) -> Any:
        """Refuse a request whose key nothing guards, or see to it that its client is told."""
        guard, method = self._configured.guard, request.method
        if attempt_of(request) is not None or not has_unguarded_key(guard, request.META):
            return None
        if guard_for_method(view, method) is not None:
            return None
        mark = guarded_view_of(view)
        is_left_out = (mark is not None and not mark.rule.guarded) or (
            self._configured.guards_paths
            and self._exchange.rules.excludes(method, *paths_of(request))
        )
        guard.unguarded.note(method, request.path_info)
        if guard.unguarded.refuses and not is_left_out:
            return django_response(guard.unguarded.refusal(request.META.get("SCRIPT_NAME", "")))
        setattr(request, _WARN, KEY_GUARDED not in request.META)
        return None


def policy_page(request: Any) -> Any:
    """The built-in policy page as a view, for projects that only decorate views."""
    guard = django_settings().guard
    found = policy_document.policy_entries(
        [(rule.methods, rule.path, rule) for rule in guard.exchange.rules.all if rule.guarded],
        guard.once.policy,
    )
    return django_response(page_with_entries(found, guard.exchange.replay_header, request.method))


def idempotent(
    *, transaction: bool | str = False, **options: Unpack[RuleOptions]
) -> Callable[[Any], Any]:
    """Guard a view, a method of a REST framework view, or by `method_decorator` a class's dispatch.

    transaction   True, or the alias of the database that the keys are in too: the handler's rows,
                  the key and the answer commit together. A refusal (4xx) is kept while the rows
                  are rolled back; a failure (5xx or raised) leaves nothing
    options       those of a Rule, but for its path

    On a method of a REST framework view it comes after authentication, permissions and throttles.
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
            # A method of a view has its instance first.
            request = next(one for one in args if hasattr(one, "META"))
            call = functools.partial(view, *args, **kwargs)
            is_guarded = rule.guarded and rule.guards(request.method)
            if not is_guarded or attempt_of(request) is not None:
                return call()  # nothing to guard, or the middleware does
            if request is not django_request(request):
                call = functools.partial(_rest_call, request, call)
            else:
                call = functools.partial(_view_call, request, call)
            _check_requests(alias)
            return respond(django_settings(), rule, alias, request, call)

        VIEWS.add(guarded, view, rule)
        return guarded

    return decorate


def respond(
    setup: DjangoSettings, rule: Rule, alias: str | None, request: Any, call: Callable[[], Any]
) -> Any:
    """The response to a request that a rule fits."""
    guard = setup.guard.under(django_request(request).META.get("SCRIPT_NAME", ""))
    headers = headers_of(request)
    if guard.passes(rule, headers):
        return call()
    mark_key_guarded(django_request(request).META)
    admitted = guard.admit(rule, headers, lambda: setup.caller(request))
    if isinstance(admitted, Response):
        return django_response(admitted)
    try:
        body = body_of(request, rule, headers)
    except UnreadableBody as error:
        return django_response(guard.exchange.unreadable(str(error)))
    if body is None:
        return django_response(guard.exchange.too_large(rule))
    keyed, who = admitted
    asked = request_of(request, headers, body)

    def make(attempt: Attempt | None) -> DjangoResponse:
        setattr(django_request(request), _ATTEMPT, attempt)
        try:
            made = DjangoResponse(call())
            made.unhandled = getattr(made.final, _UNHANDLED, False)
            return made
        finally:
            setattr(django_request(request), _ATTEMPT, None)

    if alias is None:
        return _sent(guard.run(keyed, who, asked, make))
    with transaction.atomic(using=alias):
        operations = enlisted(guard.once, alias)
        answer = guard.run(keyed, who, asked, undoing(make, alias), operations)
        if isinstance(answer, FreshResponse) and not answer.stored:
            transaction.set_rollback(True, using=alias)
    return _sent(answer)


def _sent(answer: FreshResponse[DjangoResponse] | Response) -> Any:
    return (
        django_response(answer) if isinstance(answer, Response) else answer.answer.sent(answer.more)
    )


# --- which views are served ---------------------------------------------------------------------


_checked: tuple[int, str] | None = None


def _check_served(**_: Any) -> None:
    """At the first request, and when more views were decorated since, or the URLconf is another
    one; there is no earlier moment that all projects have."""
    global _checked
    state = (VIEWS.version, settings.ROOT_URLCONF)
    if state != _checked:
        options = getattr(settings, SETTING, None) or {}
        VIEWS.check(urlconf_views(), unserved=options.get("unserved"))
        _checked = state


@checks.register(checks.Tags.urls)  # type: ignore[untyped-decorator]
def _system_check(app_configs: Any, **_: Any) -> list[Any]:
    """For `manage.py check` and `runserver`."""
    options = getattr(settings, SETTING, None) or {}
    try:
        VIEWS.check(urlconf_views(), unserved=options.get("unserved"))
    except ConfigurationError as error:
        return [checks.Error(str(error), id="oncekey.E001")]
    return []


request_started.connect(_check_served, dispatch_uid="oncekey")


# --- transactions -------------------------------------------------------------------------------


def enlisted(once: Once, alias: str) -> Operations:
    """The engine on Django's own connection, whose transaction is open."""
    connection = connections[alias]
    is_sqlite = connection.vendor == "sqlite"
    return once.in_transaction(connection.connection if is_sqlite else connection)


def undoing(
    make: Callable[[Attempt | None], DjangoResponse], alias: str
) -> Callable[[Attempt | None], DjangoResponse]:
    """The same, with the rows of a refusal rolled back. By a savepoint of Django's own: what it
    was told to do on commit goes with them, on SQLite too."""

    def made(attempt: Attempt | None) -> DjangoResponse:
        with transaction.atomic(using=alias):
            answer = make(attempt)
            if answer.status >= _FIRST_REFUSAL:
                transaction.set_rollback(True, using=alias)
            return answer

    return made


def _check_requests(alias: str | None) -> None:
    """With ATOMIC_REQUESTS a decorated view's rows are committed after it, and after its outcome:
    were that to fail, retries would be told of rows that are not there."""
    for connection in connections.all(initialized_only=True):
        blocks = getattr(connection, "atomic_blocks", ())
        if (
            connection.settings_dict["ATOMIC_REQUESTS"]
            and connection.alias != alias
            and not all(getattr(block, "_from_testcase", False) for block in blocks)
        ):
            raise ConfigurationError(
                f"ATOMIC_REQUESTS of {connection.alias!r} commits after the outcome is stored; "
                "use @idempotent(transaction=True), IdempotencyMiddleware, or non_atomic_requests"
            )


# --- what views give ----------------------------------------------------------------------------


def _respond_by_view(get_response: Callable[[Any], Any], request: Any) -> Any:
    """What the rest of the project answers; marked where no view of it has run."""
    response = get_response(request)
    if is_unrouted(request, response.status_code):
        setattr(response, _UNHANDLED, True)
    return response


def _view_call(request: Any, call: Callable[[], Any]) -> Any:
    """The final response of a plain view: Django's own answer where it raises one of these."""
    try:
        return call()
    except _ANSWERED as error:
        return response_for_exception(request, error)


def _rest_call(request: Any, call: Callable[[], Any]) -> Any:
    """The final response of a REST framework view's method: what its view makes of an error, in
    the form the client wants. The view does the same again with what it is given."""
    view = request.parser_context["view"]
    try:
        response = call()
    except Exception as error:
        response = view.handle_exception(error)  # raises it again where it is no API's error
    response = view.finalize_response(request, response, *view.args, **view.kwargs)
    return rendered(response)
