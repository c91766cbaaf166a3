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
from rest_framework.decorators import api_view
everything.append(path("api", api_view(["POST"])(transaction.atomic(idempotent()(place)))))
assert len(only("api")) == 1
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


LAYERS = (
    LATE
    + """
import logging
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.decorators import api_view
from tests.http.outer_layers import COMMITTING, HARMLESS, login_required, transactional, session

lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("oncekey").addHandler(handler)

def warned(view):
    urlpatterns[:] = [path("orders", view)]
    clear_url_caches()
    warnings = [found for found in run_checks() if found.id == "oncekey.W001"]
    (found,) = commit_findings(app, [])
    assert (found.severity.name == "WARNING") == bool(warnings), found
    assert all(one.msg in found.what for one in warnings)
    assert texts() == []
    return [one.msg for one in warnings]

def served(view):
    idempotent()(lambda request: None)  # a view more is a reason to look again
    settings.ONCEKEY["unserved"] = "allow"
    told = warned(view)
    for _ in range(2):
        assert post("/orders", "k").status_code < 500
    logged, lines[:] = list(lines), []
    assert [line.partition(". Put @idempotent above")[0] for line in logged] == told
    return told

class Base(View):
    @idempotent()
    def post(self, request):
        return HttpResponse("placed")

def ok(request):
    return HttpResponse("placed")
"""
)


def test_i16_a_decorator_of_the_project_around_a_guarded_view_is_named_before_its_commit_fails(
    tmp_path: Path,
) -> None:
    """By the system check, by doctor, and by the log at the first request, once."""
    run(
        LAYERS
        + """
for name, decorator in COMMITTING.items():
    (text,) = served(login_required(decorator(login_required(idempotent()(ok)))))
    assert text.startswith(name + " (") and "guard of ok (" in text, text
    assert served(idempotent()(decorator(ok))) == []

rest = api_view(["POST"])(transactional(idempotent()(ok)))
(text,) = served(rest)
assert text.startswith("transactional.<locals>.committing ("), text
(text,) = served(transactional(api_view(["POST"])(idempotent()(ok))))
assert text.startswith("transactional.<locals>.committing ("), text
for harmless in HARMLESS:
    assert served(harmless(idempotent()(ok))) == []
    decorated = method_decorator(harmless, name="dispatch")(type("Sub", (Base,), {}))
    assert served(decorated.as_view()) == []
assert served(transactional(ok)) == []
assert warned(transactional(idempotent(transaction=True)(ok))) == []
""",
        tmp_path,
    )


def test_i16_a_class_that_commits_around_its_guarded_method_is_named(tmp_path: Path) -> None:
    run(
        LAYERS
        + """
class InDispatch(Base):
    def dispatch(self, *args):
        response = super().dispatch(*args)
        session.commit()
        return response

class InOverride(Base):
    def post(self, request):
        response = super().post(request)
        session.commit()
        return response

@method_decorator([login_required, transactional], name="dispatch")
class InDecorators(Base):
    pass

@method_decorator([transactional, idempotent()], name="dispatch")
class InOneList(View):
    def post(self, request):
        return HttpResponse("placed")

class AboveDispatch(View):
    @method_decorator(transactional)
    @idempotent()
    def dispatch(self, request):
        return HttpResponse("placed")

for view_class, layer, guarded in (
    (InDispatch, "InDispatch.dispatch (", "Base.post ("),
    (InOverride, "InOverride.post (", "Base.post ("),
    (InDecorators, "transactional (", "Base.post ("),
    (InOneList, "transactional (", "InOneList.dispatch and"),
    (AboveDispatch, "transactional (", "AboveDispatch.dispatch ("),
):
    (text,) = served(view_class.as_view())
    assert text.startswith(layer) and "guard of " + guarded in text, text

@method_decorator([idempotent(), transactional, transaction.atomic], name="dispatch")
class Inside(View):
    def post(self, request):
        return HttpResponse("placed")

@method_decorator(idempotent(), name="dispatch")
class InsideTwice(InDispatch):
    pass

assert served(Inside.as_view()) == []
assert served(InsideTwice.as_view()) == []
assert served(transactional(Base.as_view())) != []
""",
        tmp_path,
    )


def test_views_inside_of_djangos_middleware_may_have_decorators_that_commit(
    tmp_path: Path,
) -> None:
    middleware = '["oncekey.http.django.IdempotencyMiddleware"]'
    run(
        LAYERS + "assert served(transactional(idempotent()(ok))) == []",
        tmp_path,
        f"MIDDLEWARE, RULES = {middleware}, ()\n",
    )
