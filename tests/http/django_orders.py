"""A Django project whose orders cannot be committed while an account is missing.

`run` runs it, and code that follows it, in a process of its own for its settings.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.http.app_server import ROOT

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
