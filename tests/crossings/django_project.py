"""A Django project with one guarded view, in a process that other tests have set Django up in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.crossings.rows import INSERT

if TYPE_CHECKING:
    from tests.crossings.web_surfaces import DjangoSurface


class DjangoProject:
    """`app` is its WSGI app, as long as the project is not closed."""

    def __init__(self, surface: DjangoSurface) -> None:
        from django import setup
        from django.conf import settings
        from django.core.wsgi import get_wsgi_application
        from django.db import connections
        from django.test.utils import override_settings
        from django.urls import path

        if not settings.configured:
            settings.configure(
                DATABASES={"default": {}}, LOGGING_CONFIG=None, SECRET_KEY="no secret", USE_TZ=True
            )
            setup()
        self._surface = surface
        options = dict(surface.options)
        if surface.rows is not None:
            _forget_connection()
            made = connections.configure_settings({"default": surface.rows.django})["default"]
            self._before = connections.settings.get("default")
            connections.settings["default"] = made
            options["transaction"] = True
            options.pop("retry_safe", None)
        urls: Any = type("urls", (), {})()
        self._overridden = override_settings(
            ALLOWED_HOSTS=["*"],
            DEBUG_PROPAGATE_EXCEPTIONS=True,
            MIDDLEWARE=["oncekey.http.django.IdempotencyMiddleware"],
            ROOT_URLCONF=urls,
            ONCEKEY={
                "once": surface.once,
                "caller": lambda request: "me",
                "close": False,
                "rules": None,
                "unserved": "allow",  # the views of other crossings
            },
        )
        self._overridden.enable()
        from oncekey.http.django import idempotent

        try:
            urls.urlpatterns = [path("charges", idempotent(**options)(self._charge))]
            self.app = get_wsgi_application()
        except BaseException:
            self.close()
            raise

    def _charge(self, request: Any) -> Any:
        from django.db import connection
        from django.http import JsonResponse

        key, cents = json.loads(request.body)["request"]
        shop = self._surface.shop
        if self._surface.rows is None:
            return JsonResponse(shop.charge(key, cents), status=201)
        shop.count_run(key)
        with connection.cursor() as cursor:
            cursor.execute(INSERT.format(key=key))
        return JsonResponse(shop.end(key, cents), status=201)

    def close(self) -> None:
        self._overridden.disable()
        if self._surface.rows is not None:
            from django.db import connections

            _forget_connection()
            connections.settings["default"] = self._before


def _forget_connection() -> None:
    """Let this thread's next use of the database connect by the settings of then."""
    from django.db import connections

    if any(one.alias == "default" for one in connections.all(initialized_only=True)):
        connections["default"].close()
        del connections["default"]
