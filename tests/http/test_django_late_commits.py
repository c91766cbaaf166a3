"""I16 in Django: a transaction around a guarded view would commit after the outcome is stored, so
it is refused before the view runs. Each test runs in a process of its own, for its settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.http.app_server import ROOT

MIDDLEWARE = "oncekey.http.django.IdempotencyMiddleware"

DJANGO = """
import asyncio, sys
import django
from django.conf import settings
from django.http import HttpResponse
from django.test import AsyncClient, Client, TestCase
from django.urls import path

settings.configure(
    ALLOWED_HOSTS=["testserver"], ROOT_URLCONF="__main__", SECRET_KEY="x",
    INSTALLED_APPS=["rest_framework"],
    REST_FRAMEWORK={"DEFAULT_AUTHENTICATION_CLASSES": [], "UNAUTHENTICATED_USER": None},
    DATABASES={name: {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{sys.argv[1]}/{name}.db",
                      "TEST": {"NAME": f"{sys.argv[1]}/{name}_test.db"}}
               for name in ("default", "other")},
    MIDDLEWARE=MIDDLEWARE,
    ONCEKEY={"once": f"sqlite:///{sys.argv[1]}/default.db", "caller": lambda request: "me",
             "rules": RULES},
)
django.setup()
from django.db import connection, connections, transaction
from oncekey import ConfigurationError
from oncekey.http.django import idempotent
from rest_framework.response import Response
from rest_framework.views import APIView

ran = []

def create_tables():
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE accounts (id INTEGER PRIMARY KEY)")
        cursor.execute("CREATE TABLE orders (account INTEGER REFERENCES accounts "
                       "DEFERRABLE INITIALLY DEFERRED)")

def place(request):
    ran.append(1)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (1)")
    return HttpResponse("placed", status=201)

def orders():
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM orders")
        return cursor.fetchone()[0]

def open_account():
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO accounts VALUES (1)")

class AtomicRest(APIView):
    @transaction.atomic
    @idempotent()
    def post(self, request):
        place(request)
        return Response("placed", 201)

class NeverMind(APIView):
    @idempotent()
    @transaction.atomic
    def post(self, request):
        place(request)
        return Response("placed", 201)

def by_hand(view):
    def wrapped(request):
        transaction.set_autocommit(False)
        try:
            response = view(request)
            transaction.commit()
            return response
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)
    return wrapped

async def place_async(request):
    from asgiref.sync import sync_to_async
    return await sync_to_async(place)(request)

urlpatterns = [
    path("outside", transaction.atomic(idempotent()(place))),
    path("elsewhere", transaction.atomic(using="other")(idempotent()(place))),
    path("elsewhere-too", transaction.atomic(using="other")(idempotent(transaction=True)(place))),
    path("rest", AtomicRest.as_view()),
    path("by-hand", by_hand(idempotent()(place))),
    path("inside", idempotent()(transaction.atomic(place))),
    path("rest-inside", NeverMind.as_view()),
    path("with", transaction.atomic(idempotent(transaction=True)(place))),
    path("plain", place),
    path("plain-async", place_async),
]

def post(url, key="k", client=None):
    client = client or Client(raise_request_exception=False)
    return client.post(url, headers={"Idempotency-Key": key})
"""
NO_MIDDLEWARE = "MIDDLEWARE, RULES = [], None\n"


def run(code: str, folder: Path, setting: str = NO_MIDDLEWARE) -> str:
    program = setting + DJANGO + "\n" + code
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_i16_a_transaction_around_a_guarded_view_is_refused_before_the_view_runs(
    tmp_path: Path,
) -> None:
    run(
        """
create_tables()
for url in ("outside", "elsewhere", "elsewhere-too", "rest", "by-hand"):
    try:
        post("/" + url, url, Client())
    except ConfigurationError as error:
        assert "above @transaction.atomic" in str(error), error
    else:
        raise AssertionError(f"{url} was not refused")
    assert post("/" + url, url).status_code == 500
assert ran == [] and orders() == 0
""",
        tmp_path,
    )


def test_i16_a_failed_commit_inside_of_the_guard_or_with_the_key_is_no_success(
    tmp_path: Path,
) -> None:
    run(
        """
create_tables()
# `with` frees its key; the others store the failure, because nothing says that they may run again.
for url in ("inside", "rest-inside", "with"):
    assert post("/" + url, url).status_code == 500, url
assert (len(ran), orders()) == (3, 0)
open_account()
assert [post("/" + url, url).status_code for url in ("inside", "rest-inside")] == [500, 500]
assert (len(ran), orders()) == (3, 0)
for replayed in (None, "true"):
    response = post("/with", "with")
    assert (response.status_code, response.get("X-Idempotency-Replayed")) == (201, replayed)
assert (len(ran), orders()) == (4, 1)
""",
        tmp_path,
    )


def test_the_transaction_of_a_test_case_is_no_transaction_around_the_view(tmp_path: Path) -> None:
    run(
        """
from django.test.runner import DiscoverRunner
import unittest

class Tests(TestCase):
    databases = ["default", "other"]

    @classmethod
    def setUpTestData(cls):
        create_tables()
        open_account()

    def test_guarded(self):
        for replayed in (None, "true"):
            response = post("/inside", client=self.client)
            self.assertEqual(response.status_code, 201)
            self.assertEqual(response.get("X-Idempotency-Replayed"), replayed)
        self.assertEqual(orders(), 1)

    def test_refused(self):
        with self.assertRaises(ConfigurationError):
            post("/outside", client=self.client)

from django.test.utils import override_settings
runner = DiscoverRunner(verbosity=0, interactive=False)
runner.setup_test_environment()
old = runner.setup_databases()
suite = unittest.defaultTestLoader.loadTestsFromTestCase(Tests)
with override_settings(ONCEKEY={**settings.ONCEKEY, "once": "memory://"}):
    assert unittest.TextTestRunner().run(suite).wasSuccessful()
runner.teardown_databases(old)
""",
        tmp_path,
    )


BEHIND = """
def around(get_response):
    from django.db import transaction
    def middleware(request):
        with transaction.atomic():
            return get_response(request)
    return middleware

OURS = "oncekey.http.django.IdempotencyMiddleware"
MIDDLEWARE, RULES = {order}, [{{"retry_safe": True}}]
"""


SENDS = """
create_tables()
def send(url):
    if url.endswith("async"):
        client = AsyncClient(raise_request_exception=False)
        return asyncio.run(client.post(url, headers={"Idempotency-Key": url}))
    return post(url, url)
"""


def test_i16_a_middleware_that_opens_a_transaction_around_ours_is_refused(tmp_path: Path) -> None:
    run(
        SENDS
        + """
assert [send(url).status_code for url in ("/plain", "/plain-async")] == [500, 500]
assert ran == []
""",
        tmp_path,
        BEHIND.format(order='["__main__.around", OURS]'),
    )


def test_i16_a_commit_of_a_middleware_inside_of_ours_is_waited_for(tmp_path: Path) -> None:
    run(
        SENDS
        + """
for url in ("/plain", "/plain-async"):
    assert send(url).status_code == 500
assert (len(ran), orders()) == (2, 0)
open_account()
for url in ("/plain", "/plain-async"):
    assert [send(url).get("X-Idempotency-Replayed") for _ in range(2)] == [None, "true"]
assert (len(ran), orders()) == (4, 2)
""",
        tmp_path,
        BEHIND.format(order='[OURS, "__main__.around"]'),
    )


KEPT = """
import logging
from oncekey import current_attempt

lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("oncekey").addHandler(handler)

def place_in_step(request):
    current_attempt().step("insert", lambda key: [place(request) and None])
    if "fails" in request.path:
        raise LookupError("the view itself fails")
    if "hook" in request.path:
        transaction.on_commit(lambda: [].pop())
    return HttpResponse("placed", status=201)

atomic = transaction.atomic(place_in_step)
guarded = atomic if MIDDLEWARE else idempotent(retry_safe=True)(atomic)
settings.ONCEKEY["once"] = "memory://"  # SQLite has one writer, and a step would wait for it
urlpatterns += [path("orders", guarded), path("fails", guarded), path("hook", guarded)]
create_tables()
assert post("/orders", "key-of-order-17").status_code == 500
(line,) = [line for line in lines if "steps stay finished" in line]
assert "'insert'" in line and "POST /orders" in line and "key-of" not in line, line
del lines[:]
assert post("/fails", "2").status_code == 500
open_account()
assert post("/hook", "3").status_code == 500
assert [line for line in lines if "steps stay finished" in line] == []
assert orders() == 1
"""


def test_django_tells_of_steps_that_a_failed_commit_leaves_behind(tmp_path: Path) -> None:
    """A view that fails after a step is what steps are for; and what fails in on_commit functions
    takes no rows back."""
    (tmp_path / "middleware").mkdir()
    run(KEPT, tmp_path)
    rules = f"MIDDLEWARE, RULES = ['{MIDDLEWARE}'], [{{'retry_safe': True}}]\n"
    run(KEPT, tmp_path / "middleware", rules)


LATE = """
from django.core.checks import run_checks
from django.core.wsgi import get_wsgi_application
from django.urls import clear_url_caches
from oncekey.doctor.commit_checks import commit_findings

app = get_wsgi_application()
everything = list(urlpatterns)

def texts():
    return [found.msg for found in run_checks() if found.id == "oncekey.E002"]

def only(*names):
    urlpatterns[:] = [one for one in everything if str(one.pattern) in names]
    clear_url_caches()
    told = texts()
    (found,) = commit_findings(app, [])
    assert (found.severity.name == "BROKEN") == bool(told), found
    assert all(text in found.what for text in told)
    return told
"""


def test_i16_a_transaction_around_a_guarded_view_is_named_by_the_system_check_and_doctor(
    tmp_path: Path,
) -> None:
    """`manage.py check` and `runserver` refuse it at the start, before any request."""
    run(
        LATE
        + """
for name in ("outside", "elsewhere", "elsewhere-too", "rest"):
    (text,) = only(name)
    assert "above @transaction.atomic" in text, text
    assert ("'other'" if name.startswith("elsewhere") else "'default'") in text, text
assert "place (" in only("outside")[0]
assert only("inside", "rest-inside", "with", "plain", "plain-async") == []
""",
        tmp_path,
    )


def test_i16_atomic_requests_around_a_guarded_view_are_named_by_the_system_check(
    tmp_path: Path,
) -> None:
    run(
        LATE
        + """
urlpatterns[:0] = everything[:0] = [
    path("not-atomic", transaction.non_atomic_requests(idempotent()(place))),
    path("both", idempotent(transaction=True)(place)),
]
connections.settings["default"]["ATOMIC_REQUESTS"] = True
assert len(only("inside")) == 1
assert only("not-atomic", "both", "plain") == []
""",
        tmp_path,
    )


def test_i16_views_inside_of_the_middleware_may_be_atomic(tmp_path: Path) -> None:
    middleware = '["oncekey.http.django.IdempotencyMiddleware"]'
    run(
        LATE + 'assert only("outside", "rest") == []',
        tmp_path,
        f"MIDDLEWARE, RULES = {middleware}, ()\n",
    )


def test_doctor_names_a_middleware_of_django_around_the_guard_that_commits(tmp_path: Path) -> None:
    setting = """
class CommitLate:
    def __init__(self, get_response):
        self.get_response = get_response
    def __call__(self, request):
        with transaction.atomic():
            return self.get_response(request)
MIDDLEWARE, RULES = ["__main__.CommitLate"], None
"""
    run(
        LATE
        + """
urlpatterns[:] = [one for one in everything if str(one.pattern) == "inside"]
(found,) = commit_findings(app, [])
assert found.severity.name == "WARNING" and "CommitLate" in found.what, found
""",
        tmp_path,
        setting,
    )
