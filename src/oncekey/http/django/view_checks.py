"""Checks the views of a Django project: whether each guard is reached, and what is around it.

1. The views that `idempotent` guards are served by URL patterns. A project may have several
   URLconfs: one per host or tenant, or by `override_settings` in tests. Before a decorated view
   counts as unserved, all known URLconfs are searched.
2. No transaction is open around a guarded view. It would be committed after the outcome is stored,
   and if that fails, retries get a response for rows that do not exist (I16). middleware.py refuses
   it when a request with a key comes; here it is found before, from the URL patterns and settings,
   for `manage.py check`, `runserver` and `oncekey doctor`. `transaction.atomic` and ATOMIC_REQUESTS
   are seen; what a middleware opens is left to the request. A decorator of the project's own whose
   code names a commit may be harmless, so it is a warning, also of the log.

Calls no view.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from django.conf import settings
from django.core import checks
from django.core.signals import request_started
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.urls import get_resolver

from oncekey.core.errors import ConfigurationError
from oncekey.http.django.settings import SETTING
from oncekey.http.inspection.guarded_views import GuardedViews, ServedView
from oncekey.http.inspection.outer_layers import (
    COMMIT_REMEDY,
    attached,
    late_commits,
    outer_layers,
    warn_of_late_commits,
)

VIEWS: Final = GuardedViews(
    "django",
    "@idempotent(...) stands above the function or method that a URL pattern leads to.",
    'ONCEKEY = {..., "unserved": "allow"}',
)
MIDDLEWARE: Final = "oncekey.http.django.IdempotencyMiddleware"
_UNSERVED_ID: Final = "oncekey.E001"
_WRONG_ID: Final = "oncekey.E002"
_LATE_ID: Final = "oncekey.W001"
_REMEDY: Final = f"{COMMIT_REMEDY}, or leave the commit to @idempotent(transaction=True)"
_checked: tuple[int, str] | None = None


@checks.register(checks.Tags.urls)  # type: ignore[untyped-decorator]
def _system_check(app_configs: Any, **_: Any) -> list[Any]:
    """The check of `manage.py check` and `runserver`."""
    errors = []
    try:
        _check_served()
    except ConfigurationError as error:
        errors.append(checks.Error(str(error), id=_UNSERVED_ID))
    errors += [checks.Error(text, id=_WRONG_ID) for text in late_transactions()]
    return errors + [checks.Warning(text, _REMEDY, id=_LATE_ID) for text in late_decorators()]


def _check_before_request(**_: Any) -> None:
    """Check the views before the first request, and again when more views were decorated or the
    URLconf was replaced. There is no earlier moment that all projects have, and a project may be
    served without its system checks: so the warnings are logged here too."""
    global _checked
    state = (VIEWS.version, settings.ROOT_URLCONF)
    if state == _checked:
        return
    _check_served()
    if not is_guarded_by_middleware():
        warn_of_late_commits(project_views(), _REMEDY)
    _checked = state


# --- guards that are reached ----------------------------------------------------------------------


def _check_served() -> None:
    options = getattr(settings, SETTING, None) or {}
    VIEWS.check(project_views(), unserved=options.get("unserved"))


def project_views() -> Iterator[ServedView]:
    """The views of ROOT_URLCONF. URL patterns do not say which methods they serve."""
    yield from _views_of(get_resolver().url_patterns)


def _other_views() -> Iterator[ServedView]:
    """The views of every imported module with URL patterns, and of the ROOT_URLCONF that
    `override_settings` has replaced."""
    holder: Any = settings._wrapped
    while holder is not None:
        name = getattr(holder, "ROOT_URLCONF", None)
        holder = vars(holder).get("default_settings")
        if name is not None:
            with suppress(ImportError):  # a replaced URLconf may not exist in this process
                yield from _views_of(get_resolver(name).url_patterns)
    for module in list(sys.modules.values()):
        patterns = getattr(module, "__dict__", {}).get("urlpatterns")
        if isinstance(patterns, (list, tuple)):
            yield from _views_of(patterns)


def _views_of(patterns: Iterable[Any]) -> Iterator[ServedView]:
    pending = list(patterns)
    while pending:
        pattern = pending.pop()
        if hasattr(pattern, "url_patterns"):
            pending += pattern.url_patterns
        elif hasattr(pattern, "callback"):
            yield ServedView(pattern.callback, None)


# --- transactions around a guard ------------------------------------------------------------------


def refusal(alias: str, view: str = "this guarded view") -> str:
    """What is wrong with an open transaction of a database around a view, and what to write."""
    return (
        f"a transaction of the database {alias!r} is open around {view}, and would be committed "
        "after the outcome is stored. Put @idempotent above @transaction.atomic, or "
        "IdempotencyMiddleware above a middleware that opens it; under ATOMIC_REQUESTS use "
        "@idempotent(transaction=True), IdempotencyMiddleware, or non_atomic_requests"
    )


def late_transactions() -> list[str]:
    """Return a sentence for each guarded view of the project that a transaction is around."""
    if is_guarded_by_middleware():
        return []  # its guard is outside of every view
    found = {}
    for served in project_views():
        for outer in outer_layers(served.view):
            aliases = {alias for layer in outer.layers for alias in _atomic_aliases(layer)}
            for alias in sorted(aliases | _atomic_requests(served.view)):
                if outer.guard.rule.guarded and alias != outer.guard.database:
                    found[refusal(alias, outer.guarded)] = True
    return list(found)


def late_decorators() -> list[str]:
    """Return a sentence for each guarded view of the project with a decorator, or a `dispatch`,
    around it that looks as if it commits."""
    if is_guarded_by_middleware():
        return []
    return list(dict.fromkeys(text for _, text in late_commits(project_views())))


def is_guarded_by_middleware() -> bool:
    """Whether the middleware has rules, by which it guards views from outside."""
    options = getattr(settings, SETTING, None) or {}
    return MIDDLEWARE in settings.MIDDLEWARE and options.get("rules", ()) is not None


def _atomic_requests(view: Any) -> set[str]:
    """The databases whose ATOMIC_REQUESTS hold for a view."""
    excluded = getattr(view, "_non_atomic_requests", ())
    return {
        alias
        for alias, options in connections.settings.items()
        if options.get("ATOMIC_REQUESTS") and alias not in excluded
    }


def _atomic_aliases(layer: Any) -> Iterator[str]:
    for one in attached(layer):
        if one is transaction.atomic:
            yield DEFAULT_DB_ALIAS
        elif isinstance(one, transaction.Atomic):
            yield one.using or DEFAULT_DB_ALIAS


def outer_middlewares() -> Iterable[str]:
    """The names of the middlewares that a guard of this project is inside of."""
    names = list(settings.MIDDLEWARE)
    return names[: names.index(MIDDLEWARE)] if is_guarded_by_middleware() else names


VIEWS.project_views, VIEWS.other_views = project_views, _other_views
request_started.connect(_check_before_request, dispatch_uid="oncekey")
