"""A Django project under ASGI whose views wait at a gate, see app_server.py.

Paths below /rule are guarded by the middleware, those below /view by the decorator, in a handler
without any middleware: there Django runs a sync view in its thread directly. `?name=` names the
effects and the gate of one request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import django
from asgiref.sync import async_to_sync, sync_to_async
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.db import connections, transaction
from django.http import Http404, HttpResponse, JsonResponse, StreamingHttpResponse
from django.test.utils import override_settings
from django.urls import path
from tests.http.apps.call_log import FOLDER, CallLog, Receive, Send
from tests.http.apps.movable_clock import MovableClock

from oncekey import Once, Policy
from oncekey.http.django import idempotent
from oncekey.http.wsgi import request_guard
from oncekey.stores.sqlite import SQLiteStore

CLOCK = MovableClock(FOLDER)
POLL = 0.002
PARTS = 60
PART = b"a part of it, and not the last one\n" * 30
CALLERS = {"Bearer alice": "alice", "Bearer bob": "bob"}
KEYS = "keys"  # the alias of the database that has the keys
MAX_RESPONSE = 3_000_000

vars(request_guard)["HOLD_MAX_BYTES"] = 4_000_000  # so that tests are quick


def effect(name: str) -> None:
    with (FOLDER / "effects").open("a") as ledger:
        ledger.write(name + "\n")


def gate(name: str) -> None:
    (FOLDER / f"{name}.here").touch()
    while not (FOLDER / f"{name}.go").exists():
        time.sleep(POLL)


async def gate_async(name: str) -> None:
    (FOLDER / f"{name}.here").touch()
    while not (FOLDER / f"{name}.go").exists():  # noqa: ASYNC110, it is another process
        await asyncio.sleep(POLL)


# --- views ----------------------------------------------------------------------------------------


def name_of(request: Any) -> str:
    """Add the effect; returns the name of the request."""
    name: str = request.GET["name"]
    effect(name)
    return name


@transaction.non_atomic_requests  # type: ignore[untyped-decorator]
def plain(request: Any) -> Any:
    gate(name_of(request))
    return JsonResponse({"done": True}, status=201, headers={"Location": "/x"})


@transaction.non_atomic_requests  # type: ignore[untyped-decorator]
def calls_async(request: Any) -> Any:
    """A sync view that waits in async code, as one does that sends to a channel layer."""
    async_to_sync(gate_async)(name_of(request))
    return JsonResponse({"done": "in async code"})


@transaction.non_atomic_requests  # type: ignore[untyped-decorator]
def large(request: Any) -> Any:
    gate(name_of(request))
    return HttpResponse(PART * PARTS * 20, content_type="text/plain")


@transaction.non_atomic_requests  # type: ignore[untyped-decorator]
def stream(request: Any) -> Any:
    """A response with the gate in its middle."""
    name = name_of(request)

    def parts() -> Iterator[bytes]:
        for number in range(PARTS):
            if number == PARTS // 2:
                async_to_sync(gate_async)(name)
            yield b"%d " % number + PART

    return StreamingHttpResponse(parts(), content_type="text/plain")


@transaction.non_atomic_requests  # type: ignore[untyped-decorator]
def endless(request: Any) -> Any:
    """A response too long to be buffered, with the gate in what is read after the outcome."""
    name = name_of(request)

    def parts() -> Iterator[bytes]:
        for number in range(100):
            if number == 67:
                gate(name)
            yield b"x" * 60_000
        effect(f"{name} sent all")

    return StreamingHttpResponse(parts(), content_type="text/plain")


@transaction.non_atomic_requests  # type: ignore[untyped-decorator]
def raises(request: Any) -> Any:
    gate(name_of(request))
    raise ValueError("s3cret")


@transaction.non_atomic_requests  # type: ignore[untyped-decorator]
def refuses(request: Any) -> Any:
    gate(name_of(request))
    raise Http404


def insert(alias: str, name: str) -> int:
    """Add a row; returns how many of this name there are."""
    with connections[alias].cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (%s)", [name])
        cursor.execute("SELECT count(*) FROM orders WHERE name = %s", [name])
        count: int = cursor.fetchone()[0]
    return count


def rows(alias: str) -> Callable[[Any], Any]:
    """A view that has a transaction open while it waits: by ATOMIC_REQUESTS, or that of its key."""

    def rows(request: Any) -> Any:
        name = name_of(request)
        insert(alias, name)
        before = connections[alias].connection
        transaction.on_commit(lambda: async_to_sync(effect_async)(f"{name} committed"), using=alias)
        gate(name)
        count = insert(alias, name)
        is_same = connections[alias].connection is before
        return JsonResponse({"rows": count, "on the same connection": is_same})

    return rows


async def effect_async(name: str) -> None:
    effect(name)


@transaction.non_atomic_requests  # type: ignore[untyped-decorator]
async def awaits(request: Any) -> Any:
    await gate_async(name_of(request))
    return JsonResponse({"done": "on the loop"}, status=201)


@transaction.non_atomic_requests  # type: ignore[untyped-decorator]
async def awaits_rows(request: Any) -> Any:
    name = name_of(request)
    await sync_to_async(insert)("default", name)
    await gate_async(name)
    return JsonResponse({"rows": await sync_to_async(insert)("default", name)})


SYNC_VIEWS = (plain, calls_async, large, stream, endless, raises, refuses)
urlpatterns = [
    *(path(f"rule/{view.__name__}", view) for view in (*SYNC_VIEWS, awaits, awaits_rows)),
    *(
        path(f"view/{view.__name__}", idempotent(max_response=MAX_RESPONSE)(view))
        for view in SYNC_VIEWS
    ),
    path("rule/rows", rows("default")),
    path(
        "view/rows",
        transaction.non_atomic_requests(idempotent(transaction=KEYS)(rows(KEYS))),
    ),
]


# --- the project ----------------------------------------------------------------------------------


def database(name: str) -> dict[str, Any]:
    file = str(FOLDER / f"{name}.db")
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": file, "OPTIONS": {"timeout": 60}}


settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    DATABASES={"default": {**database("shop"), "ATOMIC_REQUESTS": True}, KEYS: database("keys")},
    MIDDLEWARE=["oncekey.http.django.IdempotencyMiddleware"],
    ONCEKEY={
        "once": lambda: Once(
            SQLiteStore(FOLDER / "keys.db", clock=CLOCK.wall),
            policy=Policy(lease="1m"),
            clock=CLOCK,
        ),
        "caller": lambda request: CALLERS.get(request.META.get("HTTP_AUTHORIZATION", "")),
        "policy_url": "/policy",
        "rules": [{"path": "/rule/*", "max_response": MAX_RESPONSE}],
    },
    LOGGING_CONFIG=None,
    USE_TZ=True,
    SECRET_KEY="not a secret",
)
django.setup()
for each in connections:
    with connections[each].cursor() as made:
        made.execute("CREATE TABLE IF NOT EXISTS orders (name TEXT)")
    connections[each].close()
behind_middleware = get_asgi_application()
with override_settings(MIDDLEWARE=[]):
    bare = get_asgi_application()


async def by_path(scope: Any, receive: Receive, send: Send) -> None:
    handler = bare if scope.get("path", "").startswith("/view/") else behind_middleware
    await handler(scope, receive, send)


app = CallLog(by_path)
