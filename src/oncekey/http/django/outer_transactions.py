"""Finds the transactions that a Django project opens around a guarded view.

Such a transaction is committed after the outcome is stored, and if that fails, retries get a
response for rows that do not exist (I16). middleware.py refuses it when a request with a key comes.
This module finds it before, from the URL patterns and settings, for `manage.py check`, `runserver`
and `oncekey doctor`. It calls no view, and sees `transaction.atomic` and ATOMIC_REQUESTS; what a
middleware opens is left to the request. A decorator of the project's own whose code names a commit
may be harmless, so it is a warning, also of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from django.conf import settings
from django.core import checks
from django.core.signals import request_started
from django.db import DEFAULT_DB_ALIAS, connections, transaction

from oncekey.http.django.served_views import VIEWS, project_views
from oncekey.http.django.settings import SETTING
from oncekey.http.outer_layers import (
    COMMIT_REMEDY,
    attached,
    late_commits,
    outer_layers,
    warn_of_late_commits,
)

MIDDLEWARE: Final = "oncekey.http.django.IdempotencyMiddleware"
_WRONG_ID: Final = "oncekey.E002"
_LATE_ID: Final = "oncekey.W001"
_REMEDY: Final = f"{COMMIT_REMEDY}, or leave the commit to @idempotent(transaction=True)"
_told_of: tuple[int, str] | None = None


def refusal(alias: str, view: str = "this guarded view") -> str:
    """What is wrong with an open transaction of a database around a view, and what to write."""
    return (
        f"a transaction of the database {alias!r} is open around {view}, and would be committed "
        "after the outcome is stored. Put @idempotent above @transaction.atomic, or "
        "IdempotencyMiddleware above a middleware that opens it; under ATOMIC_REQUESTS use "
        "@idempotent(transaction=True), IdempotencyMiddleware, or non_atomic_requests"
    )


@checks.register(checks.Tags.urls)  # type: ignore[untyped-decorator]
def _system_check(app_configs: Any, **_: Any) -> list[Any]:
    """The check of `manage.py check` and `runserver`."""
    errors = [checks.Error(text, id=_WRONG_ID) for text in late_transactions()]
    return errors + [checks.Warning(text, _REMEDY, id=_LATE_ID) for text in late_decorators()]


def _warn_before_request(**_: Any) -> None:
    """Log the same warnings before the first request, and again for views that were added since: a
    project may be served without its checks."""
    global _told_of
    state = (VIEWS.version, settings.ROOT_URLCONF)
    if state != _told_of and not is_guarded_by_middleware():
        warn_of_late_commits(project_views(), _REMEDY)
    _told_of = state


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


request_started.connect(_warn_before_request, dispatch_uid=__name__)
