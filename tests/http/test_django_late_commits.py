"""I16 in Django: a transaction around a guarded view would commit after the outcome is stored, so
it is refused before the view runs. Each test runs in a process of its own, for its settings.

What is told before any request is in test_django_outer_layers.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.http.django_orders import run

MIDDLEWARE = "oncekey.http.django.IdempotencyMiddleware"


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


FUNCTION = """
import logging
from oncekey import Once

lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("oncekey").addHandler(handler)
create_tables()
open_account()
keys = Once(f"sqlite:///{sys.argv[1]}/keys.db")

@keys.guard("charge", key=lambda key: key, retry_safe=True)
def charge(key):
    place(None)
    return "ok"
"""


def test_i16_a_guarded_function_in_an_open_transaction_is_warned_of_once(tmp_path: Path) -> None:
    run(
        FUNCTION
        + """
for key in ("a", "b"):
    try:
        with transaction.atomic():
            charge(key)
            raise LookupError
    except LookupError:
        pass
assert orders() == 0 and charge("a") == "ok" and orders() == 0  # what the warning is about
(line,) = lines
for word in ("'charge'", "'default'", "rolled back", "in_transaction", "transaction=True"):
    assert word in line, line

@keys.guard("refund", key=lambda key: key)
def refund(key):
    return "ok"

with transaction.atomic(using="other"):
    refund("a")
assert len(lines) == 2 and "'refund'" in lines[1] and "'other'" in lines[1], lines
""",
        tmp_path,
    )


def test_a_guarded_function_is_not_warned_of_where_nothing_can_be_rolled_back(
    tmp_path: Path,
) -> None:
    run(
        FUNCTION
        + """
from django.test.runner import DiscoverRunner
import unittest

charge("outside of any block")
rows = Once(f"sqlite:///{sys.argv[1]}/default.db")
with transaction.atomic():
    orders()
    rows.in_transaction(connection.connection).run("inside", "k", lambda attempt: place(None) and 1)

@keys.guard("commits by itself", key=lambda key: key)
def commits(key):
    with transaction.atomic():
        place(None)

commits("a")

@keys.guard("tested", key=lambda key: key)
def tested(key):
    return "ok"

class Tests(TestCase):
    databases = ["default", "other"]

    def test_guarded(self):
        self.assertEqual(tested("a"), "ok")

runner = DiscoverRunner(verbosity=0, interactive=False)
runner.setup_test_environment()
old = runner.setup_databases()
suite = unittest.defaultTestLoader.loadTestsFromTestCase(Tests)
assert unittest.TextTestRunner().run(suite).wasSuccessful()
runner.teardown_databases(old)
assert lines == [], lines
""",
        tmp_path,
    )


def test_a_process_that_imports_the_adapter_and_uses_no_django_gets_no_warning() -> None:
    program = """
import oncekey.http.django
from oncekey import Once
with Once("memory://") as once:
    once.run("charge", "order-1", lambda attempt: 1)
"""
    settings = {key: value for key, value in os.environ.items() if not key.startswith("DJANGO_")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=settings)
    assert (done.returncode, done.stderr) == (0, b"")
