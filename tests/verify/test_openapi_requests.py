"""Requests from an OpenAPI document: schemathesis generates them, the API says which it takes."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.verified_apis import served_broken
from tests.verify.json_server import Reply, serving

from oncekey.cli.output import UsageProblem
from oncekey.cli.verify_plan import VerifyOptions, plan_of
from oncekey.verify.openapi_requests import (
    FoundRequests,
    GeneratedRequests,
    OpenAPIProblem,
    choose_operation,
    key_header_of,
    load_document,
)
from oncekey.verify.probe import Budget, Limits
from oncekey.verify.probes import PROBES
from oncekey.verify.profile import IETF
from oncekey.verify.target import Caller, Target, Variant
from oncekey.verify.target_settings import OpenAPISettings, split_url

KEY = {"name": "Idempotency-Key", "in": "header", "required": True, "schema": {"type": "string"}}


def budget() -> Budget:
    return Budget(100, time.monotonic() + 600)


async def found(told: OpenAPISettings, target: Target) -> FoundRequests:
    # The document may be served by the API, on this very loop.
    generated = await asyncio.to_thread(GeneratedRequests, told, "/")
    return await generated.find(target, IETF, Limits(), budget())


def test_a_request_that_the_api_accepts_is_found_by_trying() -> None:
    async def main() -> None:
        async with served_broken("correct") as target:
            document = f"{target.origin}/openapi.json"
            told = OpenAPISettings(document, "POST /payments", fields={"seconds": 0})
            requests = await found(told, replace(target, variants={}))
        main = requests.variants[Variant.MAIN]
        assert (main.method, main.path) == ("POST", "/payments")
        assert json.loads(main.body)["seconds"] == 0
        assert requests.variants[Variant.OTHER_BODY].body != main.body
        assert Variant.REJECTED in requests.variants
        assert not {name.lower() for name, _ in main.headers} & {"authorization", "user-agent"}
        assert "accepted" in requests.note

    asyncio.run(main())


def test_fields_may_have_placeholders() -> None:
    async def main() -> None:
        async with served_broken("correct") as target:
            fields = {"order": "{{unique}}", "seconds": 0, "provider": "accepts"}
            told = OpenAPISettings(f"{target.origin}/openapi.json", "POST /payments", fields=fields)
            requests = await found(told, replace(target, variants={}))
        assert "{{unique}}" in requests.variants[Variant.MAIN].body

    asyncio.run(main())


def test_an_api_that_accepts_nothing_is_named_with_what_it_answered() -> None:
    async def main() -> None:
        async with served_broken("correct") as target:
            stranger = replace(target, variants={}, caller=Caller("nobody"))
            told = OpenAPISettings(f"{target.origin}/openapi.json", "POST /payments")
            with pytest.raises(OpenAPIProblem, match="401"):
                await found(told, stranger)

    asyncio.run(main())


def document(**operation: Any) -> dict[str, Any]:
    responses = {"201": {"description": "made"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "shop", "version": "1"},
        "paths": {"/orders": {"post": {"responses": responses, **operation}}},
    }


def write(folder: Path, content: dict[str, Any]) -> str:
    path = folder / "openapi.json"
    path.write_text(json.dumps(content))
    return str(path)


def test_an_operation_is_chosen_by_id_or_by_method_and_path(tmp_path: Path) -> None:
    schema = load_document(write(tmp_path, document(operationId="placeOrder", parameters=[KEY])))
    for name in ("placeOrder", "POST /orders"):
        assert key_header_of(choose_operation(schema, name)) == "Idempotency-Key"
    with pytest.raises(OpenAPIProblem, match=r"there are: POST /orders \(placeOrder\)"):
        choose_operation(schema, "charge")


def test_an_operation_without_a_key_has_no_key_header(tmp_path: Path) -> None:
    schema = load_document(write(tmp_path, document()))
    assert key_header_of(choose_operation(schema, "POST /orders")) is None


def test_a_file_that_is_no_openapi_document_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OpenAPIProblem, match="not a usable OpenAPI document"):
        load_document(write(tmp_path, {"a": 1}))
    with pytest.raises(OpenAPIProblem, match="not a usable OpenAPI document"):
        load_document(str(tmp_path / "missing.json"))


def test_a_document_behind_credentials_is_to_be_saved() -> None:
    with (
        serving(lambda received: Reply(401, {})) as url,
        pytest.raises(OpenAPIProblem, match="without credentials: save it, and give the file"),
    ):
        load_document(f"{url}/openapi.json")


ORDER = {
    "type": "object",
    "required": ["order", "cents"],
    "properties": {"order": {"type": "string"}, "cents": {"type": "integer"}},
}


def generated(folder: Path, base_path: str = "/", **content: Any) -> GeneratedRequests:
    """The requests of a document whose body has this media type and schema."""
    media = content.pop("media", "application/json")
    body = {"content": {media: {"schema": content.pop("schema", ORDER)}}, "required": True}
    told = OpenAPISettings(
        write(folder, {**document(requestBody=body), **content}),
        "POST /orders",
        fields={"order": "{{unique}}"},
    )
    return GeneratedRequests(told, base_path)


@pytest.mark.parametrize(
    ("media", "text"),
    [
        ("application/json", '"order": "{{unique}}"'),
        ("application/x-www-form-urlencoded", "order={{unique}}"),
        ("multipart/form-data", 'name="order"\r\n\r\n{{unique}}'),
    ],
)
def test_fields_are_set_in_every_kind_of_form(tmp_path: Path, media: str, text: str) -> None:
    body = generated(tmp_path, media=media).first.body
    assert text in body
    assert body.count("order") == 1


def test_fields_of_a_body_without_members_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OpenAPIProblem, match="no JSON object and no form"):
        generated(tmp_path, media="text/plain", schema={"type": "string"})


@pytest.mark.parametrize(
    ("given", "path"), [("", "/v1/orders"), ("/", "/orders"), ("/shop/", "/shop/orders")]
)
def test_a_url_without_a_path_means_the_server_of_the_document(
    tmp_path: Path, given: str, path: str
) -> None:
    servers = [{"url": "https://api.example.org/v1"}]
    assert generated(tmp_path, given, servers=servers).first.path == path


def test_a_search_without_requests_left_ends_with_what_it_has(tmp_path: Path) -> None:
    async def search(requests: int, status: int) -> FoundRequests:
        with serving(lambda received: Reply(status, {})) as url:
            origin, _ = split_url(url)
            spent = Budget(requests, time.monotonic() + 600)
            return await found_by.find(Target(origin, {}), IETF, Limits(), spent)

    found_by = generated(tmp_path)
    assert list(asyncio.run(search(1, 201)).variants) == [Variant.MAIN]
    with pytest.raises(OpenAPIProblem, match=r"none of 1 generated requests .*--max-requests"):
        asyncio.run(search(1, 404))


@pytest.mark.parametrize(
    ("text", "value"), [("a=1", 1), ("a=x", "x"), ('a={"b": 2}', {"b": 2}), ("a=", "")]
)
def test_a_field_of_the_command_line_has_a_json_value_or_a_text(
    tmp_path: Path, text: str, value: Any
) -> None:
    described = {"application/json": {"schema": {"type": "object"}}}
    path = write(
        tmp_path, document(parameters=[KEY], requestBody={"content": described, "required": True})
    )
    options = VerifyOptions(
        url="http://127.0.0.1:1", openapi=path, operation="POST /orders", fields=(text,)
    )
    assert plan_of(options, PROBES).settings.openapi.fields == {"a": value}


@pytest.mark.parametrize("text", ["a", "=1", ""])
def test_a_field_of_the_command_line_without_a_name_or_value_is_refused(text: str) -> None:
    options = VerifyOptions(url="http://127.0.0.1:1", openapi="none", fields=(text,))
    with pytest.raises(UsageProblem, match="NAME=VALUE"):
        plan_of(options, PROBES)
