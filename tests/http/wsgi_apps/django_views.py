"""The views of the Django app."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import connection, transaction
from django.http import Http404, HttpResponse, JsonResponse, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from tests.http.wsgi_apps import handlers
from tests.http.wsgi_apps.django_app import HAS_MIDDLEWARE, KIND

from oncekey.http.django import attempt_of, idempotent


def response_of(response: handlers.HandlerResponse) -> Any:
    kind = HttpResponse if isinstance(response.body, bytes) else StreamingHttpResponse
    converted = kind(response.body, status=response.status, headers=response.headers)
    for cookie in response.cookies:
        name, _, value = cookie.partition("=")
        converted.set_cookie(name, value)
    return converted


def view_of(name: str) -> Any:
    handler = handlers.HANDLERS[name]

    def view(request: Any, argument: str = "") -> Any:
        return response_of(handler(argument, request.body, attempt_of(request)))

    return view if HAS_MIDDLEWARE else idempotent(**handlers.options(name))(view)


def read(request: Any) -> Any:
    return response_of(handlers.read())


@idempotent()
def refuses(request: Any, how: str) -> Any:
    handlers.effect("refuses")
    raise Http404 if how == "missing" else PermissionDenied


@idempotent()
def template(request: Any) -> Any:
    handlers.effect("template")
    return TemplateResponse(request, "hello", {"name": "Ada"})


@idempotent()
def untyped(request: Any) -> Any:
    converted = HttpResponse(status=204)
    del converted["Content-Type"]
    return converted


@method_decorator(idempotent(), name="dispatch")
class Orders(View):  # type: ignore[misc]
    def post(self, request: Any) -> Any:
        return JsonResponse({"number": handlers.effect("orders")}, status=201)

    def get(self, request: Any) -> Any:
        return HttpResponse("read")


@idempotent()
def charge_form(request: Any) -> Any:
    handlers.effect("charge form")
    return HttpResponse(request.POST["cents"])


class Reading(View):  # type: ignore[misc]
    def get(self, request: Any) -> Any:
        return HttpResponse("read")


def lost(request: Any) -> Any:
    handlers.effect("lost")
    raise Http404


def insert(item: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (%s)", [item])
    transaction.on_commit(lambda: handlers.effect(f"committed {item}"))


@idempotent(transaction=True)
def buy(request: Any, how: str) -> Any:
    handlers.effect(f"buy {how}")
    insert(how)
    if how == "gated":
        handlers.gate("buy")
    if how == "raises":
        raise ValueError("s3cret")
    if how == "missing":
        raise Http404
    status = {"poor": 402, "fails": 500, "limited": 429}.get(how, 201)
    running = attempt_of(request)
    assert running is not None
    converted = JsonResponse({"item": how, "fence": running.fence}, status=status)
    converted["Location"] = f"/orders/{how}"
    return converted


urlpatterns = [
    *(path(name.replace("{}", "<argument>"), view_of(name)) for name in handlers.HANDLERS),
    path("read", read),
    path("refuses/<how>", refuses),
    path("template", template),
    path("untyped", untyped),
    path("reading", Reading.as_view()),
    path("lost", lost),
    path("charge-form", charge_form),
    path("orders", Orders.as_view()),
    path("buy/<how>", buy),
]
if KIND == "rest":
    from tests.http.wsgi_apps.django_rest_views import urls

    urlpatterns += urls
