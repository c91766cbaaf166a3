"""The guarded routes of path_spellings.py in Django, with a REST framework router beside them."""

from __future__ import annotations

from typing import Any

import django
from django.conf import settings
from django.http import HttpResponse
from django.urls import path, re_path

settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="not a secret",
    MIDDLEWARE=[
        "oncekey.http.django.IdempotencyMiddleware",
        "django.middleware.common.CommonMiddleware",
    ],
    INSTALLED_APPS=["rest_framework"],
    REST_FRAMEWORK={"DEFAULT_AUTHENTICATION_CLASSES": [], "UNAUTHENTICATED_USER": None},
    LOGGING_CONFIG=None,
    ONCEKEY={
        "once": "memory://",
        "caller": lambda request: "me",
        "rules": [{"path": path} for path in ("/pay", "/items/{id}/refund", "/refunds", "/legacy")],
    },
)
django.setup()

from django.core.asgi import get_asgi_application  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.routers import DefaultRouter  # noqa: E402
from rest_framework.viewsets import ViewSet  # noqa: E402

RAN = "the handler ran"


def ran(request: Any, **values: Any) -> Any:
    return HttpResponse(RAN)


class Refunds(ViewSet):  # type: ignore[misc]
    def create(self, request: Any, **values: Any) -> Response:
        return Response(RAN)


router = DefaultRouter()
router.register("refunds", Refunds, basename="refund")
urlpatterns = [
    path("pay", ran),
    re_path("^legacy$", ran),
    path("items/<id>/refund", ran),
    *router.urls,
]
wsgi = get_wsgi_application()
asgi = get_asgi_application()
