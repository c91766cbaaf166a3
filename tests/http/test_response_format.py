"""The format of responses and refusals that clients rely on, in every framework."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.http.framework_checks import CHECKS, PAGE, FrameworkApp

from oncekey import AsyncOnce, ConfigurationError
from oncekey.http.asgi import IdempotencyMiddleware
from oncekey.http.exchange import Exchange
from oncekey.http.problem import ALL_PROBLEMS, MISSING, Rendered
from oncekey.http.rules import Rule, Rules

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("kind", ["asgi", "fastapi", "wsgi", "flask"])
def test_responses_have_the_format_that_clients_expect(kind: str, check: Any) -> None:
    check(kind)


def test_responses_of_django_have_the_format_that_clients_expect() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tests.http.framework_checks", "django"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr


def test_codes_of_problems_are_stable() -> None:
    """Clients rely on them: codes may be added, but none may change."""
    assert [problem.name for problem in ALL_PROBLEMS] == [
        "invalid-key",
        "missing-key",
        "unreadable-body",
        "unknown-caller",
        "request-too-large",
        "key-reused",
        "in-flight",
        "outcome-unknown",
        "failed",
        "overtaken",
        "not-replayable",
        "not-recorded",
        "unavailable",
        "unguarded",
    ]


def test_mounted_app_links_to_its_own_page() -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    app = FrameworkApp("asgi")
    app.app = Starlette(routes=[Mount("/api/v1", app.app)])
    refused = app.request("POST", "/api/v1/pay")
    assert refused.json()["type"] == f"/api/v1{PAGE}#missing-key"
    assert "code: missing-key" in app.request("GET", f"/api/v1{PAGE}").text


def test_rendered_refusal_may_change_status_and_headers() -> None:
    exchange = Exchange(
        Rules(),
        render_refusal=lambda r: Rendered(b"no", "text/plain", 418, (("X-Code", r.code),)),
    )
    response = exchange.problem_response(MISSING, retry_after=3.2)
    assert (response.status, response.body) == (418, b"no")
    headers = dict(response.headers)
    assert (headers[b"content-type"], headers[b"x-code"]) == (b"text/plain", b"missing-key")
    assert (headers[b"retry-after"], headers[b"content-length"]) == (b"4", b"2")


@pytest.mark.parametrize(
    "render",
    [
        lambda refusal: 1 / 0,
        lambda refusal: {"no": object()},
        lambda refusal: None,
        lambda refusal: "text",
        lambda refusal: Rendered("text"),  # type: ignore[arg-type]
        lambda refusal: Rendered(b"", status=100),
        lambda refusal: Rendered(b"", headers=(("X-Why", "a\r\nSet-Cookie: b"),)),
        lambda refusal: Rendered(b"", headers=(("X-Why", "zażółć"),)),
    ],
)
def test_broken_renderer_is_logged_and_problem_details_are_sent(
    render: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "oncekey"):
        response = Exchange(Rules(), render_refusal=render).problem_response(MISSING)
    assert (response.status, json.loads(response.body)["code"]) == (400, "missing-key")
    assert "render_refusal failed on missing-key" in caplog.text


@pytest.mark.parametrize(
    "options", [{"replay_header": "Not a name"}, {"replay_header": ""}, {"render_refusal": "text"}]
)
def test_invalid_response_options_are_refused(options: dict[str, Any]) -> None:
    once = AsyncOnce("memory://")
    with pytest.raises(ConfigurationError):
        IdempotencyMiddleware(lambda *_: None, once, caller=lambda scope: "me", **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        Rule(request_headers="X-Tenant")
    with pytest.raises(ConfigurationError):
        Rule(request_headers=["Idempotency-Key"])
    asyncio.run(once.close())


def test_every_problem_code_is_in_the_reference() -> None:
    reference = (ROOT / "docs/reference/errors.md").read_text()
    for problem in ALL_PROBLEMS:
        words = ["yes" if kind else "no" for kind in (problem.retryable, problem.safe_new_key)]
        row = [f"`{problem.name}`", str(problem.status), problem.title, *words]
        assert f"| {' | '.join(row)} |" in reference, problem.name
