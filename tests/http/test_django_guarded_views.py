"""Decorated Django views of every kind are guarded for every unsafe method, and a view that no URL
pattern serves is refused. Each test runs in a process of its own, for its settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.http.app_server import ROOT

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
from oncekey.http.inspection.policy_discovery import find_policy
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
    for ask in (lambda: client.post("/function"), lambda: find_policy(app)):
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


SEVERAL_URLCONFS = """
import sys, types
import django
from django.conf import settings
from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import path

settings.configure(
    ALLOWED_HOSTS=["testserver"], ROOT_URLCONF="shop_urls", SECRET_KEY="x",
    ONCEKEY={"once": "memory://", "caller": lambda request: "me"},
)
django.setup()
from oncekey import ConfigurationError
from oncekey.http.django import idempotent
import shop_views

def urlconf(name, **views):
    sys.modules[name] = made = types.ModuleType(name)
    made.urlpatterns = [path(url, view) for url, view in views.items()]

def bare(request):
    return HttpResponse("paid")

client, key = Client(), {"Idempotency-Key": "k"}
urlconf("others", note=idempotent()(lambda request: HttpResponse("noted")))
with override_settings(ROOT_URLCONF="others"):  # shop_urls was not imported yet
    assert client.post("/note", headers={"Idempotency-Key": "n"}).content == b"noted"
assert client.post("/pay", headers=key).content == b"paid"

lost = idempotent()(bare)
urlconf("wrong", pay=bare)
assert client.post("/pay", headers=key).content == b"paid"  # bare is not in its URLconf
with override_settings(ROOT_URLCONF="wrong"):
    try:
        client.post("/pay", headers=key)
    except ConfigurationError as error:
        assert "bare function" in str(error), error
    else:
        sys.exit("served a guarded view in its bare form")
del sys.modules["wrong"]
django.urls.clear_url_caches()
try:
    another = idempotent()(lambda request: None)
    client.post("/pay", headers=key)
except ConfigurationError as error:
    assert 'ONCEKEY = {..., "unserved": "allow"}' in str(error), error
else:
    sys.exit("served an app with a lost view")
"""
SHOP_VIEWS = """
from django.http import HttpResponse
from oncekey.http.django import idempotent

@idempotent()
def pay(request):
    return HttpResponse("paid")
"""
SHOP_URLS = """
from django.urls import path
from shop_views import pay

urlpatterns = [path("pay", pay)]
"""


def test_django_view_of_another_urlconf_counts_as_served(tmp_path: Path) -> None:
    """`override_settings(ROOT_URLCONF=...)` is common in test suites, and a URLconf per host or
    tenant in projects. A wrong one is refused when it is used."""
    (tmp_path / "shop_views.py").write_text(SHOP_VIEWS)
    (tmp_path / "shop_urls.py").write_text(SHOP_URLS)
    run_script(tmp_path, SEVERAL_URLCONFS)


def test_django_guards_every_unsafe_method_of_every_kind_of_view(tmp_path: Path) -> None:
    """And says at a request, and by the command, which decorated view no URL pattern leads to."""
    run_script(tmp_path, DJANGO)


def run_script(folder: Path, text: str) -> None:
    script = folder / "project.py"
    script.write_text(text)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
