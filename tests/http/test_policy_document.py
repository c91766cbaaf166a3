"""The published policy has the content of the app's rules, in every format."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from oncekey import AsyncOnce, ConfigurationError, Policy
from oncekey.cli.command_group import cli, run
from oncekey.http.asgi import IdempotencyMiddleware
from oncekey.http.inspection.policy_discovery import find_policy
from oncekey.http.inspection.policy_document import as_data, as_html, as_markdown, policy_entries
from oncekey.http.problem import ALL_PROBLEMS
from oncekey.http.rules import Rule

RULES = [
    Rule("/hooks/*", guarded=False),
    Rule("/shop/orders/{id}", methods=["PUT"], required=False, keep="2d", ignore=["sent_at"]),
    Rule("/shop/*", strict=True, retry_safe=True, wait="2s", max_request=5_000),
]


async def handler(request: Request) -> Response:
    raise AssertionError


def shop() -> Starlette:
    inner = [
        Route("/orders", handler, methods=["GET", "POST"]),
        Route("/orders/{id}", handler, methods=["PUT", "DELETE"]),
    ]
    routes = [Mount("/shop", routes=inner), Route("/hooks/x", handler, methods=["POST"])]
    app = Starlette(routes=routes)
    once = AsyncOnce("memory://", policy=Policy(keep="24h"))
    app.add_middleware(IdempotencyMiddleware, once=once, caller=lambda scope: "me", rules=RULES)
    return app


app = shop()


def test_policy_lists_guarded_routes_only() -> None:
    found = find_policy(app)
    entries = policy_entries(found.routes, found.policy)
    assert [(entry.methods, entry.path) for entry in entries] == [
        (["POST"], "/shop/orders"),
        (["PUT"], "/shop/orders/{id}"),
    ]
    orders, order = entries
    assert (orders.required, orders.kept_for_seconds, orders.waits) == (True, 86_400, "2s")
    assert "or the same without quotes" not in orders.key_format
    assert "carried out again" in orders.failures
    assert (order.required, order.kept_for_seconds) == (False, 172_800)
    assert "except sent_at" in order.compared
    assert orders.request_bytes_max == 5_000


def test_policy_of_an_app_without_a_route_table_lists_its_rules() -> None:
    async def plain_app(scope: object, receive: object, send: object) -> None:
        raise AssertionError

    guarded = IdempotencyMiddleware(
        plain_app, AsyncOnce("memory://"), caller=lambda scope: "me", rules=RULES
    )
    found = find_policy(guarded)
    entries = policy_entries(found.routes, found.policy)
    assert [entry.path for entry in entries] == ["/shop/orders/{id}", "/shop/*"]
    with pytest.raises(ConfigurationError, match="found no"):
        find_policy(plain_app)


def test_policy_lists_decorated_views() -> None:
    from fastapi import APIRouter, FastAPI
    from flask import Flask

    from oncekey import Once
    from oncekey.http.fastapi import Idempotency
    from oncekey.http.flask import Idempotency as FlaskIdempotency
    from oncekey.http.flask import idempotent

    guard = Idempotency(
        AsyncOnce("memory://", policy=Policy(keep="3d")), caller=lambda request: "me"
    )
    router = APIRouter(prefix="/v1", route_class=guard.route_class)

    @router.post("/orders/{id}")
    @guard.guard(required=False)
    async def order(id: int) -> int:
        return id

    api = FastAPI()
    api.include_router(router, prefix="/api")
    found = find_policy(api)
    assert [(one.methods, one.path) for one in found.routes] == [(["POST"], "/api/v1/orders/{id}")]
    assert policy_entries(found.routes, found.policy)[0].kept_for == "3d"

    site = Flask("site")
    FlaskIdempotency(site, once=Once("memory://"), caller=lambda: "me")

    @site.post("/pay/<int:number>")
    @idempotent(keep="5d")
    def pay(number: int) -> str:
        return "paid"

    entries = policy_entries(*find_policy(site)[:2])
    assert [(one.methods, one.path, one.kept_for) for one in entries] == [
        (["POST"], "/pay/{number}", "5d")
    ]


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_every_problem_has_an_anchor_on_the_page() -> None:
    found = find_policy(app)
    page = as_html(policy_entries(found.routes, found.policy), "A & <b>")
    parser = _Anchors()
    parser.feed(page)
    assert parser.open == []
    assert parser.ids == [problem.name for problem in ALL_PROBLEMS]
    assert "A &amp; &lt;b&gt;" in page


def test_all_formats_have_the_same_content() -> None:
    found = find_policy(app)
    entries = policy_entries(found.routes, found.policy)
    data = as_data(entries)
    assert json.loads(json.dumps(data)) == data
    for text in (as_markdown(entries), as_html(entries)):
        for word in ("/shop/orders/{id}", "2d", "sent_at", "409", "X-Idempotency-Replayed"):
            assert word in text
        assert "/hooks" not in text


def test_policy_command_writes_every_format() -> None:
    name = f"{__name__}:app"
    runner = CliRunner()
    plain = runner.invoke(cli, ["policy", name])
    assert plain.exit_code == 0, plain.output
    assert re.match(r"# Idempotency policy\n", plain.stdout)
    as_json = runner.invoke(cli, ["policy", name, "--json"])
    assert [one["path"] for one in json.loads(as_json.stdout)["routes"]] == [
        "/shop/orders",
        "/shop/orders/{id}",
    ]
    page = runner.invoke(cli, ["policy", name, "--format", "html", "--title", "Ours"])
    assert "<title>Ours</title>" in page.stdout


@pytest.mark.parametrize("name", ["shop", "no_such_module:app", f"{__name__}:nothing"])
def test_policy_command_reports_a_wrong_app_name(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["policy", name]) == 2
    output = capsys.readouterr().err
    assert name in output
    assert output.count("\n") == 1
