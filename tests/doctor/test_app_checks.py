"""Doctor names each fault of an app, in every framework, and is silent on a good one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI
from flask import Flask
from flask import request as flask_request
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.doctor.findings import by_check, problems

from oncekey import AsyncOnce, Once, Policy
from oncekey.core.guarantees import Guarantee, Level
from oncekey.doctor.app_checks import APP_CHECKS, app_findings
from oncekey.doctor.handler_code import is_constant, mentions_attempt
from oncekey.http.asgi import IdempotencyMiddleware, attempt_of
from oncekey.http.fastapi import Idempotency
from oncekey.http.flask import Idempotency as FlaskIdempotency
from oncekey.http.flask import idempotent
from oncekey.http.rules import Rule
from oncekey.stores import sqlite
from oncekey.stores.inspection import Finding, Severity

DAY = 86_400_000_000
GOOD = Guarantee(Level.TRANSACTIONAL, "on disk")
BEST_EFFORT = Guarantee(Level.BEST_EFFORT, "synchronous=off")
REQUIRING = Policy(require="at_most_once", recover=lambda attempt: None)

Check = Callable[..., list[Finding]]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/keys.db"


@pytest.fixture
def engine(url: str) -> Callable[..., AsyncOnce]:
    """Makes engines, which open nothing before their first use."""
    return lambda policy=REQUIRING, store=url: AsyncOnce(store, policy=policy)


@pytest.fixture
def check(url: str) -> Check:
    def run(app: Any, promised: Guarantee | None = GOOD, horizon: int = DAY) -> list[Finding]:
        return list(app_findings(app, sqlite, url, promised, horizon))

    return run


async def handler(request: Request) -> Response:
    return Response()


async def handler_with_attempt(request: Request) -> Response:
    attempt = attempt_of(request.scope)
    assert attempt is not None
    return Response(attempt.child_key("charge"))


def account(scope: Any) -> str:
    return str(scope["account"])


def shop(once: AsyncOnce, *rules: Rule, caller: Any = account, charge: Any = handler) -> Starlette:
    routes = [
        Route("/charges", charge, methods=["GET", "POST"]),
        Route("/hooks", handler, methods=["POST"]),
    ]
    app = Starlette(routes=routes)
    app.add_middleware(IdempotencyMiddleware, once=once, caller=caller, rules=rules)
    return app


# --- good ones ------------------------------------------------------------------------------------


def test_doctor_is_silent_on_a_good_app(engine: Any, check: Check) -> None:
    found = check(shop(engine()))
    assert {finding.severity for finding in found} == {Severity.OK}
    assert by_check(found).keys() == {one.name for one in APP_CHECKS}


def test_without_an_app_nothing_is_called_good(check: Check) -> None:
    (found,) = check(None)
    assert found.severity is Severity.INFO
    assert "--app" in found.mend


def test_doctor_is_silent_on_good_fastapi_routes(engine: Any, check: Check) -> None:
    app = FastAPI()
    idempotency = Idempotency(engine(), caller=Depends(lambda request: request.state.account))
    idempotency.attach(app)

    @app.post("/charges")
    @idempotency.guard()
    async def charge() -> None: ...

    @app.post("/hooks")
    @idempotency.guard(guarded=False)
    async def hook() -> None: ...

    assert problems(check(app)) == {}


def test_doctor_is_silent_on_good_flask_views(url: str, check: Check) -> None:
    with Once(url, policy=REQUIRING) as once:
        app = Flask("shop")
        FlaskIdempotency(app, once=once, caller=lambda: flask_request.headers["x"], close=False)

        @app.post("/charges")
        @idempotent()
        def charge() -> str:
            return ""

        assert problems(check(app)) == {}


# --- faults ---------------------------------------------------------------------------------------


def test_an_app_without_a_guard_is_named(check: Check) -> None:
    found = check(Starlette(routes=[Route("/charges", handler, methods=["POST"])]))
    assert problems(found) == {"app.guards": "broken"}


def test_a_guarded_function_without_a_route_is_named(engine: Any, check: Check) -> None:
    app = FastAPI()
    idempotency = Idempotency(engine(), caller=account)
    idempotency.attach(app)

    @idempotency.guard()
    async def forgotten() -> None: ...

    found = check(app)
    assert problems(found) == {"app.guards": "broken"}
    assert "forgotten" in by_check(found)["app.guards"].what


def test_routes_without_a_guard_are_named_unless_they_are_meant(engine: Any, check: Check) -> None:
    found = check(shop(engine(), Rule("/charges")))
    assert problems(found) == {"app.unguarded-routes": "warning"}
    assert by_check(found)["app.unguarded-routes"].what == "not guarded: POST /hooks"
    assert problems(check(shop(engine(), Rule("/hooks", guarded=False), Rule()))) == {}


def test_a_fastapi_route_without_a_guard_is_named(engine: Any, check: Check) -> None:
    app = FastAPI()
    idempotency = Idempotency(engine(), caller=account)
    idempotency.attach(app)

    @app.post("/charges")
    @idempotency.guard()
    async def charge() -> None: ...

    @app.patch("/charges/{id}")
    async def change(id: str) -> None: ...

    found = check(app)
    assert problems(found) == {"app.unguarded-routes": "warning"}
    assert "PATCH /charges/{id}" in by_check(found)["app.unguarded-routes"].what


def test_a_caller_that_is_the_same_for_everybody_is_named(engine: Any, check: Check) -> None:
    found = check(shop(engine(), caller=lambda scope: "acct_1"))
    assert problems(found) == {"app.scope": "warning"}


def test_another_store_than_the_checked_one_is_named(
    engine: Any, check: Check, tmp_path: Path
) -> None:
    other = engine(store=f"sqlite:///{tmp_path}/other.db")
    assert problems(check(shop(other))) == {"app.store": "broken"}
    in_memory = check(shop(engine(Policy(), "memory://")))
    assert problems(in_memory) == {"app.store": "broken"}
    assert "MemoryStore" in by_check(in_memory)["app.store"].what


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"require": "fenced"}, "requires fenced and gets at most once"),
        (
            {"require": "transactional", "retry_safe": True},
            "requires transactional and gets fenced",
        ),
    ],
)
def test_a_level_that_a_route_cannot_get_is_named(
    engine: Any, check: Check, options: dict[str, Any], said: str
) -> None:
    found = check(shop(engine(), Rule(**options), charge=handler_with_attempt))
    assert by_check(found)["app.level"].severity is Severity.BROKEN
    assert f"POST /charges {said}" in by_check(found)["app.level"].what


def test_a_route_that_requires_nothing_is_named_where_the_store_gives_nothing(
    engine: Any, check: Check
) -> None:
    app = shop(engine(Policy(recover=lambda attempt: None)))
    assert by_check(check(app))["app.level"].severity is Severity.INFO
    assert problems(check(app, BEST_EFFORT)) == {"app.level": "warning"}
    assert by_check(check(app, None))["app.level"].severity is Severity.INFO


def test_retry_safe_without_child_keys_is_named(engine: Any, check: Check) -> None:
    rules = [Rule("/hooks"), Rule("/charges", retry_safe=True)]
    found = check(shop(engine(), *rules))
    assert problems(found) == {"app.retry-safe": "warning"}
    assert "POST /charges" in by_check(found)["app.retry-safe"].what
    found = check(shop(engine(), *rules, charge=handler_with_attempt))
    assert problems(found) == {}
    assert "POST /charges" in by_check(found)["app.retry-safe"].what
    assert "none" not in by_check(found)["app.retry-safe"].what


def test_retry_safe_routes_whose_handlers_cannot_be_read_are_not_called_good(
    engine: Any, check: Check
) -> None:
    class Charge(HTTPEndpoint):
        async def post(self, request: Any) -> None: ...

    rules = [Rule("/hooks"), Rule("/charges", retry_safe=True)]
    found = by_check(check(shop(engine(), *rules, charge=Charge)))
    assert found["app.retry-safe"].severity is Severity.INFO
    assert "not checked" in found["app.retry-safe"].what


def test_retry_safe_on_a_store_that_loses_fences_is_named(engine: Any, check: Check) -> None:
    engine = engine(Policy(retry_safe=True))
    found = check(shop(engine, charge=handler_with_attempt), BEST_EFFORT)
    assert by_check(found)["app.retry-safe"].severity is Severity.WARNING
    assert "can lose a fence" in by_check(found)["app.retry-safe"].what


@pytest.mark.parametrize("option", ["keep", "keep_unknown"])
def test_a_keep_below_the_retry_horizon_is_named(engine: Any, check: Check, option: str) -> None:
    options: dict[str, Any] = {option: "2h"}
    app = shop(engine(), Rule(**options))
    found = check(app)
    assert problems(found) == {"app.keep": "warning"}
    assert "POST /charges keeps" in by_check(found)["app.keep"].what
    assert problems(check(app, horizon=7_200_000_000)) == {}


def test_terms_longer_than_the_ring_are_named(engine: Any, check: Check) -> None:
    once = engine()
    once._store.terms_max = 9 * DAY
    assert problems(check(shop(once))) == {}
    once._store.terms_max = 8 * DAY
    assert problems(check(shop(once))) == {"app.retention": "broken"}


def test_a_route_that_goes_on_without_the_store_is_named(engine: Any, check: Check) -> None:
    found = check(shop(engine(), Rule("/hooks"), Rule(store_down="run")))
    assert problems(found) == {"app.store-down": "warning"}
    assert by_check(found)["app.store-down"].what == "run unprotected: POST /charges"


def test_optional_keys_and_undecided_keys_are_no_faults_but_told(engine: Any, check: Check) -> None:
    found = by_check(check(shop(engine(Policy(require="at_most_once")), Rule(required=False))))
    assert found["app.optional-keys"].severity is Severity.INFO
    assert found["app.unknown-keys"].severity is Severity.INFO


def test_registered_operations_are_checked_too(engine: Any, check: Check) -> None:
    once: AsyncOnce = engine()

    @once.operation("export", retry_safe=True, keep="1h")
    async def export(run: Any, request: Any) -> None: ...

    found = check(shop(once))
    assert problems(found) == {"app.retry-safe": "warning", "app.keep": "warning"}
    assert "operation 'export'" in by_check(found)["app.retry-safe"].what


# --- what functions look at -----------------------------------------------------------------------

ACCOUNT = "acct_1"


async def constant_coroutine(request: Any) -> str:
    return "acct_1"


def constant_by_a_variable(request: Any) -> str:
    name = "acct_1"
    return f"{name}"


def test_constant_functions_are_told_from_others() -> None:
    held = "acct_1"
    for same in (lambda scope: "x", constant_coroutine, constant_by_a_variable):
        assert is_constant(same) is True
    for other in (
        account,
        lambda scope: scope["account"],
        lambda scope: ACCOUNT,
        lambda scope: held,
        lambda *, scope: scope.get("account"),
    ):
        assert is_constant(other) is False
    assert is_constant(len) is None, "it has no code to look at"


def test_a_handler_mentions_an_attempt_by_name_or_in_a_function_of_its_own() -> None:
    def nested(request: Any) -> Any:
        return lambda run: run.step("charge", lambda key: key)

    assert mentions_attempt(handler_with_attempt) is True
    assert mentions_attempt(nested) is True
    assert mentions_attempt(lambda attempt: None) is True
    assert mentions_attempt(handler) is False
    assert mentions_attempt(len) is None


# --- commits --------------------------------------------------------------------------------------


class CommittingMiddleware:
    """Commits a session when the app that it wraps has answered."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)
        await scope["session"].commit()


@pytest.mark.parametrize("is_dispatch", [False, True])
def test_doctor_names_a_middleware_outside_of_the_guard_that_commits(
    engine: Any, check: Check, is_dispatch: bool
) -> None:
    async def in_transaction(request: Request, call_next: Any) -> Any:
        with request.state.session.begin():
            return await call_next(request)

    app = shop(engine())
    if is_dispatch:
        app.add_middleware(BaseHTTPMiddleware, dispatch=in_transaction)
    else:
        app.add_middleware(CommittingMiddleware)
    warned = by_check(check(app))["app.late-commits"]
    assert warned.severity is Severity.WARNING
    assert ("in_transaction" if is_dispatch else "CommittingMiddleware") in warned.what


def test_doctor_names_any_committing_middleware_around_guarded_routes(
    engine: Any, check: Check
) -> None:
    app = FastAPI()
    app.add_middleware(CommittingMiddleware)
    idempotency = Idempotency(engine(), caller=Depends(lambda request: request.state.account))
    idempotency.attach(app)

    @app.post("/charges")
    @idempotency.guard()
    async def charge() -> None: ...

    assert by_check(check(app))["app.late-commits"].severity is Severity.WARNING


def test_a_committing_middleware_inside_of_ours_is_good(engine: Any, check: Check) -> None:
    app = Starlette(routes=[Route("/charges", handler, methods=["POST"])])
    app.add_middleware(CommittingMiddleware)
    app.add_middleware(IdempotencyMiddleware, once=engine(), caller=account)
    assert by_check(check(app))["app.late-commits"].severity is Severity.OK


@pytest.mark.parametrize("scope", ["request", "function"])
def test_doctor_tells_which_responses_wait_for_background_tasks(
    engine: Any, check: Check, scope: Any
) -> None:
    def session() -> Iterator[None]:
        yield

    app = FastAPI()
    idempotency = Idempotency(engine(), caller=Depends(lambda request: request.state.account))
    idempotency.attach(app)
    depends: Any = Depends(session, scope=scope)

    @app.post("/charges")
    @idempotency.guard()
    async def charge(tasks: BackgroundTasks, db: Any = depends) -> None: ...

    found = by_check(check(app))["app.late-commits"]
    assert found.severity is (Severity.INFO if scope == "request" else Severity.OK)
    assert scope == "function" or "/charges" in found.what
