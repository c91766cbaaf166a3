"""A Django project; GUARDED_KIND says whether decorators ("views") or the middleware guard it, or
views of the REST framework ("rest")."""

from __future__ import annotations

import os
from typing import Any

import django
from django.conf import settings
from tests.http.wsgi_apps import handlers

KIND = os.environ.get("GUARDED_KIND", "views")


def caller(request: Any) -> str | None:
    return handlers.CALLERS.get(request.META.get("HTTP_AUTHORIZATION", ""))


def databases() -> dict[str, Any]:
    if not handlers.STORE.startswith("postgresql"):
        file = str(handlers.FOLDER / "keys.db")
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": file, "OPTIONS": {"timeout": 60}}
    from psycopg.conninfo import conninfo_to_dict

    parts = conninfo_to_dict(handlers.STORE)
    named = {name.upper(): parts[name] for name in ("user", "host", "port")}
    return {"ENGINE": "django.db.backends.postgresql", "NAME": parts["dbname"], **named}


def rules() -> list[dict[str, Any]]:
    return [{"path": f"/{name}", **handlers.options(name)} for name in handlers.HANDLERS]


ONCEKEY_SETTING: dict[str, Any] = {
    "once": handlers.engine,
    "caller": caller,
    "policy_url": "/policy",
}
HAS_MIDDLEWARE = KIND.startswith("middleware")
if HAS_MIDDLEWARE:
    ONCEKEY_SETTING["rules"] = [*rules(), {"path": "*"}]
    ONCEKEY_SETTING["transaction"] = KIND == "middleware-transaction"
if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="tests.http.wsgi_apps.django_views",
        DATABASES={"default": {**databases(), "ATOMIC_REQUESTS": KIND == "atomic"}},
        MIDDLEWARE=["oncekey.http.django.IdempotencyMiddleware"] if HAS_MIDDLEWARE else [],
        INSTALLED_APPS=["rest_framework"] if KIND == "rest" else [],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "OPTIONS": {
                    "loaders": [
                        ("django.template.loaders.locmem.Loader", {"hello": "Hello {{ name }}"})
                    ]
                },
            }
        ],
        REST_FRAMEWORK={
            "DEFAULT_AUTHENTICATION_CLASSES": ["tests.http.wsgi_apps.django_rest_auth.Tokens"],
            "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
            "UNAUTHENTICATED_USER": None,
        },
        ONCEKEY=ONCEKEY_SETTING,
        LOGGING_CONFIG=None,
        USE_TZ=True,
        SECRET_KEY="not a secret",
    )
    django.setup()

from django.core.asgi import get_asgi_application  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402

app = get_wsgi_application()
asgi = get_asgi_application()
