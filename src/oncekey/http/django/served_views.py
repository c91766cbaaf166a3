"""Checks that the views which `idempotent` guards are served by URL patterns.

A project may have several URLconfs: one per host or tenant, or by `override_settings` in tests.
Before a decorated view counts as unserved, all known URLconfs are searched. Owns the record of
decorated views and the search; guarded_views.py has the check.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from django.conf import settings
from django.core import checks
from django.core.signals import request_started
from django.urls import get_resolver

from oncekey.core.errors import ConfigurationError
from oncekey.http.django.settings import SETTING
from oncekey.http.guarded_views import GuardedViews, ServedView

VIEWS: Final = GuardedViews(
    "django",
    "@idempotent(...) stands above the function or method that a URL pattern leads to.",
    'ONCEKEY = {..., "unserved": "allow"}',
)
_checked: tuple[int, str] | None = None


def _check() -> None:
    options = getattr(settings, SETTING, None) or {}
    VIEWS.check(project_views(), unserved=options.get("unserved"))


def _check_before_request(**_: Any) -> None:
    """Check the views before the first request, and again when more views were decorated or the
    URLconf was replaced. There is no earlier moment that all projects have."""
    global _checked
    state = (VIEWS.version, settings.ROOT_URLCONF)
    if state != _checked:
        _check()
        _checked = state


@checks.register(checks.Tags.urls)  # type: ignore[untyped-decorator]
def _system_check(app_configs: Any, **_: Any) -> list[Any]:
    """The check of `manage.py check` and `runserver`."""
    try:
        _check()
    except ConfigurationError as error:
        return [checks.Error(str(error), id="oncekey.E001")]
    return []


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


VIEWS.project_views, VIEWS.other_views = project_views, _other_views
request_started.connect(_check_before_request, dispatch_uid="oncekey")
