"""I16 in Django: what commits around a guarded view is told before any request, by the system check
and by doctor, or at the first one by the log. Each test runs in a process of its own."""

from __future__ import annotations

from pathlib import Path

from tests.http.django_orders import run

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
