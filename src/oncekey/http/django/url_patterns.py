"""The views that URL patterns lead to: those of the project's URLconf, and of all others.

A project may have several URLconfs (one per host or tenant, `override_settings` in tests). Before
a decorated view counts as served by nobody, all that are known are asked. Owns the search; which
views are guarded is in guarded_views.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.urls import get_resolver

from oncekey.http.guarded_views import ServedView


def urlconf_views() -> Iterator[ServedView]:
    """The views of ROOT_URLCONF. Which methods they serve is their own affair."""
    yield from _served_by(get_resolver().url_patterns)


def other_urlconf_views() -> Iterator[ServedView]:
    """The views of every module with URL patterns that was imported, and of the ROOT_URLCONF that
    `override_settings` has put aside."""
    holder: Any = settings._wrapped
    while holder is not None:
        name = getattr(holder, "ROOT_URLCONF", None)
        holder = vars(holder).get("default_settings")
        if name is not None:
            with suppress(ImportError):  # one that is put aside may not be for this process
                yield from _served_by(get_resolver(name).url_patterns)
    for module in list(sys.modules.values()):
        patterns = getattr(module, "__dict__", {}).get("urlpatterns")
        if isinstance(patterns, (list, tuple)):
            yield from _served_by(patterns)


def _served_by(patterns: Iterable[Any]) -> Iterator[ServedView]:
    todo = list(patterns)
    while todo:
        pattern = todo.pop()
        if hasattr(pattern, "url_patterns"):
            todo += pattern.url_patterns
        elif hasattr(pattern, "callback"):
            yield ServedView(pattern.callback, None)
