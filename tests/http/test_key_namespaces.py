"""Keys of one namespace only: `Rule(namespaces=("v2",))` refuses all others and says so."""

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
from oncekey.http.exchange import Exchange, RequestKey
from oncekey.http.message import Response
from oncekey.http.policy_document import PolicyEntry, as_data, as_html, as_markdown, policy_entries
from oncekey.http.rules import Rule, Rules

V2 = Rule(namespaces=("v2",))
BOTH = Rule(namespaces=["v2", "2026-10.eu_1"])
ANY = Rule()


def answered(rule: Rule, key: bytes) -> RequestKey | Response | None:
    return Exchange(Rules()).key_of(rule, ((b"idempotency-key", key),))


def refusal(rule: Rule, key: bytes) -> dict[str, Any]:
    response = answered(rule, key)
    assert isinstance(response, Response)
    told: dict[str, Any] = json.loads(response.body)
    assert response.status == told["status"] == 400
    return told


@pytest.mark.parametrize("key", [b"v2:a", b'"v2:a"', b"v2::", b"v2:v1:a"])
def test_keys_of_the_namespace_are_taken_as_they_are(key: bytes) -> None:
    assert answered(V2, key) == RequestKey(V2, key.decode().strip('"'))


def test_keys_that_we_make_are_taken() -> None:
    for key in (
        new_key(namespace="v2"),
        new_key(sortable=True, namespace="v2"),
        key_for("charge", {"cents": 5}, namespace="v2"),
    ):
        assert answered(V2, key.encode()) == RequestKey(V2, key)


def test_each_namespace_of_several_is_taken() -> None:
    for key in (b"v2:a", b"2026-10.eu_1:a"):
        assert answered(BOTH, key) == RequestKey(BOTH, key.decode())


@pytest.mark.parametrize(
    "key",
    [b"abc", b"v1:a", b"v2", b"v2:", b"V2:a", b"v22:a", b"v:a", b":v2:a", b"v1:v2:a", b"v2;a"],
)
def test_any_other_key_is_refused(key: bytes) -> None:
    assert refusal(V2, key)["type"].endswith("invalid-key")


def test_the_refusal_says_what_to_do_and_never_tells_the_key() -> None:
    told = refusal(BOTH, b"s3cret:s3cret")
    assert 'begin the key of a new request with "v2:" or "2026-10.eu_1:"' in told["detail"]
    assert "s3cret" not in json.dumps(told)
    assert told["retryable"] is False
    assert told["safe_new_key"] is False, "a rule of yesterday may have taken this key"
    assert refusal(V2, b"a b")["safe_new_key"] is True, "no rule ever took that one"


def test_without_the_option_any_key_is_taken() -> None:
    for key in (b"abc", b"v1:a", b"V2:a", b":"):
        assert answered(ANY, key) == RequestKey(ANY, key.decode())


def test_a_request_without_a_key_is_none_of_its_business() -> None:
    exchange = Exchange(Rules())
    assert exchange.key_of(Rule(namespaces=("v2",), required=False), ()) is None
    missing = exchange.key_of(V2, ())
    assert isinstance(missing, Response)
    assert json.loads(missing.body)["type"].endswith("missing-key")


@pytest.mark.parametrize(
    "namespaces",
    ["v2", (), [], ["V2"], [""], ["v2:"], ["a" * 17], [5], ["ä"], ["v\n"], ["v2"] * 17],
)
def test_mistakes_are_found_when_a_rule_is_made(namespaces: Any) -> None:
    with pytest.raises(ConfigurationError, match="namespaces="):
        Rule(namespaces=namespaces)


# --- the published policy ---------------------------------------------------------------------


def entry(rule: Rule) -> PolicyEntry:
    return policy_entries([(["POST"], "/charges", rule)], Policy())[0]


def test_the_policy_names_them_in_every_form() -> None:
    told = entry(BOTH)
    assert told.namespaces == ["v2", "2026-10.eu_1"]
    assert told.key_format.endswith("beginning with v2: or 2026-10.eu_1:")
    assert as_data([told])["routes"][0]["namespaces"] == ["v2", "2026-10.eu_1"]
    for page in (as_markdown([told]), as_html([told])):
        assert "beginning with v2: or 2026-10.eu_1:" in page


def test_a_policy_without_them_says_nothing_of_it() -> None:
    told = entry(ANY)
    assert told.namespaces == []
    assert "beginning" not in as_markdown([told]) + as_html([told])


# --- in an app --------------------------------------------------------------------------------


def test_a_refused_key_runs_nothing_and_claims_nothing() -> None:
    runs: list[int] = []

    async def charge(request: Request) -> JSONResponse:
        runs.append(1)
        return JSONResponse({"run": len(runs)}, 201)

    async def ask() -> list[tuple[int, Any]]:
        app = Starlette(routes=[Route("/charges", charge, methods=["POST"])])
        once = AsyncOnce("memory://")
        app.add_middleware(IdempotencyMiddleware, once=once, caller=lambda scope: "me", rules=[V2])
        transport = httpx.ASGITransport(app)
        answers = []
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            for key in ("v1:a", "v2:a", "v2:a", "a"):
                answer = await client.post("/charges", headers={"Idempotency-Key": key})
                answers.append((answer.status_code, answer.json().get("run")))
        await once.close()
        return answers

    assert asyncio.run(ask()) == [(400, None), (201, 1), (201, 1), (400, None)]
    assert len(runs) == 1
