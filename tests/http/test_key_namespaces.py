"""`Rule(namespaces=("v2",))` refuses keys of other namespaces, and the policy names them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from oncekey import AsyncOnce, ConfigurationError, Policy
from oncekey.core.derived_keys import key_for
from oncekey.engine.new_key import new_key
from oncekey.http.asgi import IdempotencyMiddleware
from oncekey.http.exchange import Exchange
from oncekey.http.inspection.policy_document import (
    PolicyEntry,
    as_data,
    as_html,
    as_markdown,
    policy_entries,
)
from oncekey.http.message import Response
from oncekey.http.rules import Rule, Rules

V2 = Rule(namespaces=("v2",))
BOTH = Rule(namespaces=["v2", "2026-10.eu_1"])
ANY = Rule()


def key_of(rule: Rule, key: bytes) -> str | Response | None:
    return Exchange(Rules()).key_of(rule, {b"idempotency-key": [key]})


def refusal(rule: Rule, key: bytes) -> dict[str, Any]:
    response = key_of(rule, key)
    assert isinstance(response, Response)
    problem: dict[str, Any] = json.loads(response.body)
    assert response.status == problem["status"] == 400
    return problem


@pytest.mark.parametrize("key", [b"v2:a", b'"v2:a"', b"v2::", b"v2:v1:a"])
def test_key_of_the_namespace_is_accepted_unchanged(key: bytes) -> None:
    assert key_of(V2, key) == key.decode().strip('"')


def test_keys_of_new_key_and_key_for_are_accepted() -> None:
    for key in (
        new_key(namespace="v2"),
        new_key(sortable=True, namespace="v2"),
        key_for("charge", {"cents": 5}, namespace="v2"),
    ):
        assert key_of(V2, key.encode()) == key


def test_each_of_several_namespaces_is_accepted() -> None:
    for key in (b"v2:a", b"2026-10.eu_1:a"):
        assert key_of(BOTH, key) == key.decode()


@pytest.mark.parametrize(
    "key",
    [b"abc", b"v1:a", b"v2", b"v2:", b"V2:a", b"v22:a", b"v:a", b":v2:a", b"v1:v2:a", b"v2;a"],
)
def test_key_outside_of_the_namespaces_is_refused(key: bytes) -> None:
    assert refusal(V2, key)["type"].endswith("invalid-key")


def test_refusal_names_the_namespaces_and_not_the_key() -> None:
    problem = refusal(BOTH, b"s3cret:s3cret")
    assert 'begin the key of a new request with "v2:" or "2026-10.eu_1:"' in problem["detail"]
    assert "s3cret" not in json.dumps(problem)
    assert problem["retryable"] is False
    assert problem["safe_new_key"] is False, "an earlier rule may have accepted this key"
    assert refusal(V2, b"a b")["safe_new_key"] is True, "no rule ever accepted that one"


def test_rule_without_namespaces_accepts_any_key() -> None:
    for key in (b"abc", b"v1:a", b"V2:a", b":"):
        assert key_of(ANY, key) == key.decode()


def test_namespaces_do_not_change_requests_without_a_key() -> None:
    exchange = Exchange(Rules())
    assert exchange.key_of(Rule(namespaces=("v2",), required=False), {}) is None
    missing = exchange.key_of(V2, {})
    assert isinstance(missing, Response)
    assert json.loads(missing.body)["type"].endswith("missing-key")


@pytest.mark.parametrize(
    "namespaces",
    ["v2", (), [], ["V2"], [""], ["v2:"], ["a" * 17], [5], ["ä"], ["v\n"], ["v2"] * 17],
)
def test_rule_refuses_invalid_namespaces(namespaces: Any) -> None:
    with pytest.raises(ConfigurationError, match="namespaces="):
        Rule(namespaces=namespaces)


# --- the published policy ---------------------------------------------------------------------


def entry(rule: Rule) -> PolicyEntry:
    return policy_entries([(["POST"], "/charges", rule)], Policy())[0]


def test_policy_names_the_namespaces_in_every_format() -> None:
    policy_entry = entry(BOTH)
    assert policy_entry.namespaces == ["v2", "2026-10.eu_1"]
    assert policy_entry.key_format.endswith("beginning with v2: or 2026-10.eu_1:")
    assert as_data([policy_entry])["routes"][0]["namespaces"] == ["v2", "2026-10.eu_1"]
    for page in (as_markdown([policy_entry]), as_html([policy_entry])):
        assert "beginning with v2: or 2026-10.eu_1:" in page


def test_policy_without_namespaces_does_not_mention_them() -> None:
    policy_entry = entry(ANY)
    assert policy_entry.namespaces == []
    assert "beginning" not in as_markdown([policy_entry]) + as_html([policy_entry])


# --- in an app --------------------------------------------------------------------------------


def test_refused_key_runs_and_claims_nothing() -> None:
    runs: list[int] = []

    async def charge(request: Request) -> JSONResponse:
        runs.append(1)
        return JSONResponse({"run": len(runs)}, 201)

    async def send_all() -> list[tuple[int, Any]]:
        app = Starlette(routes=[Route("/charges", charge, methods=["POST"])])
        once = AsyncOnce("memory://")
        app.add_middleware(IdempotencyMiddleware, once=once, caller=lambda scope: "me", rules=[V2])
        transport = httpx.ASGITransport(app)
        responses = []
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            for key in ("v1:a", "v2:a", "v2:a", "a"):
                response = await client.post("/charges", headers={"Idempotency-Key": key})
                responses.append((response.status_code, response.json().get("run")))
        await once.close()
        return responses

    assert asyncio.run(send_all()) == [(400, None), (201, 1), (201, 1), (400, None)]
    assert len(runs) == 1
