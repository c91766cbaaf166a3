"""A decorated view of a Django project, whatever its kind, is guarded for every unsafe method; one
that no URL pattern leads to is told. In a process of its own, for its settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.http.served import ROOT

DJANGO = """
import functools, sys
import django
from django.conf import settings
from django.http import HttpResponse
from django.test import Client
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View

settings.configure(
    ALLOWED_HOSTS=["testserver"], ROOT_URLCONF="__main__", SECRET_KEY="x",
    INSTALLED_APPS=["rest_framework"],
    REST_FRAMEWORK={"DEFAULT_AUTHENTICATION_CLASSES": [], "UNAUTHENTICATED_USER": None},
    ONCEKEY={"once": "memory://", "caller": lambda request: "me"},
)
django.setup()
from oncekey import ConfigurationError
from oncekey.http.discovery import find
from oncekey.http.django import idempotent
from rest_framework.decorators import action, api_view
from rest_framework.response import Response
from rest_framework.routers import DefaultRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

ran = []

def answer(*args, **kwargs):
    ran.append(1)
    return HttpResponse("paid")

@idempotent()
def function(request):
    return answer()

def careless(f):
    return lambda request: f(request)

@method_decorator(idempotent(), name="dispatch")
class Dispatch(View):
    post = put = delete = answer

class Methods(View):
    @idempotent()
    def put(self, request):
        return answer()
    @method_decorator(idempotent())
    def delete(self, request):
        return answer()

class Rest(APIView):
    @idempotent()
    def put(self, request):
        ran.append(1)
        return Response("paid")
    delete = patch = put

@api_view(["PUT", "DELETE"])
@idempotent()
def rest_function(request):
    ran.append(1)
    return Response("paid")

class Set(ViewSet):
    @idempotent()
    def update(self, request, pk):
        ran.append(1)
        return Response("paid")
    destroy = partial_update = update
    @action(detail=True, methods=["put", "delete"])
    @idempotent()
    def cancel(self, request, pk):
        return self.update.__wrapped__(self, request, pk)

router = DefaultRouter()
router.register("set", Set, basename="set")
urlpatterns = [
    path("function", function),
    path("careless", careless(function)),
    path("in/", include([path("dispatch", Dispatch.as_view())])),
    path("in/", include([path("methods", Methods.as_view())])),
    path("rest", Rest.as_view()),
    path("rest-function", rest_function),
    *router.urls,
]
client, number = Client(), 0
for url, methods in {
    "/function": "POST PUT DELETE PATCH CHARGE",
    "/careless": "PUT CHARGE",
    "/in/dispatch": "POST PUT DELETE",
    "/in/methods": "PUT DELETE",
    "/rest": "PUT DELETE PATCH",
    "/rest-function": "PUT DELETE",
    "/set/1/": "PUT DELETE PATCH",
    "/set/1/cancel/": "PUT DELETE",
}.items():
    for method in methods.split():
        ran.clear()
        number += 1
        key = {"Idempotency-Key": f"k-{number}"}
        asked = [client.generic(method, url, headers=h) for h in (key, key, {})]
        assert [one.status_code for one in asked] == [200, 200, 400], (url, method, asked)
        assert ran == [1], (url, method, ran)
assert client.get("/function").content == b"paid"

try:
    @idempotent()
    class Whole(View):
        pass
except ConfigurationError as error:
    assert "dispatch" in str(error)
else:
    sys.exit("a class was decorated")

def bare(request):
    return answer()

from django.core.checks import run_checks
assert run_checks() == []
lost = idempotent()(bare)
assert [found.id for found in run_checks()] == ["oncekey.E001"]
from django.core.wsgi import get_wsgi_application
app = get_wsgi_application()
for words, view in (("no route serves it", None), ("bare function", bare)):
    if view is not None:
        urlpatterns.append(path("bare", view))
        from django.urls import clear_url_caches
        clear_url_caches()
    for ask in (lambda: client.post("/function"), lambda: find(app)):
        try:
            ask()
        except ConfigurationError as error:
            assert words in str(error) and "bare (" in str(error), error
        else:
            sys.exit("served an app with a lost view")
urlpatterns[-1] = path("bare", lost)
clear_url_caches()
assert client.post("/function").status_code == 400
"""


def test_django_guards_every_unsafe_method_of_every_kind_of_view(tmp_path: Path) -> None:
    """And says at a request, and by the command, which decorated view no URL pattern leads to."""
    script = tmp_path / "project.py"
    script.write_text(DJANGO)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
