"""The guarded apps of wsgi_apps/ on Gunicorn, by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.http.app_server import ServedApp, serve_app
from tests.support.servers import require
from tests.support.servers.http_servers import Gunicorn

# Name -> the app's module and attribute, and how it is guarded (GUARDED_KIND).
WSGI_APPS = {
    "wsgi": ("plain_app:app", ""),
    "flask": ("flask_app:app", ""),
    "flask-rules": ("flask_app:app", "rules"),
    "django": ("django_app:app", "views"),
    "django-middleware": ("django_app:app", "middleware"),
}
THREADS = 24


@contextmanager
def serve_wsgi(name: str, *, threads: int = THREADS, **options: Any) -> Iterator[ServedApp]:
    """Serve one of WSGI_APPS; skips the test where Gunicorn is not installed."""
    require(lambda: Gunicorn("x:y"))
    app, kind = WSGI_APPS[name]
    env = {"GUARDED_KIND": kind}
    with serve_app(
        Gunicorn, f"tests.http.wsgi_apps.{app}", threads=threads, env=env, **options
    ) as served:
        yield served
