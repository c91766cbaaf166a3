"""Requests for a target from an OpenAPI document; schemathesis generates them.

A document describes which requests are valid, not which ones the API accepts: an order may have to
exist. So requests are tried, a bounded number of them, and the first accepted one is the template.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from oncekey.core.errors import ConfigurationError
from oncekey.http.missing_dependency import needs
from oncekey.verify.probe import Budget, Limits, ProbeRun
from oncekey.verify.profile import Profile
from oncekey.verify.recorded_exchange import Exchange
from oncekey.verify.target import RequestTemplate, Target, Variant
from oncekey.verify.target_settings import OpenAPISettings

with needs("verify-openapi"):
    import requests
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis import GenerationMode

# How many generated requests are tried until the API accepts one, and a second one to compare.
OPENAPI_TRIES_MAX = 40
# Headers of the generator, of its own client and of the caller: the verifier sends its own.
_NOT_TAKEN = {
    "accept-encoding", "authorization", "connection", "content-length", "cookie", "user-agent",
    "x-schemathesis-testcaseid",
}  # fmt: skip


class OpenAPIProblem(ConfigurationError):
    """The document or the operation cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class FoundRequests:
    """What was found by trying.

    tried   the exchanges, in order; the accepted ones among them
    note    what a reader of the report should know
    """

    variants: Mapping[Variant, RequestTemplate]
    key_header: str | None
    tried: tuple[Exchange, ...]
    note: str


def load_document(document: str) -> Any:
    """Return the schema of a document in a file or behind a URL. Raises OpenAPIProblem."""
    try:
        if urlsplit(document).scheme in ("http", "https"):
            return schemathesis.openapi.from_url(document)
        return schemathesis.openapi.from_path(Path(document))
    except Exception as error:
        raise OpenAPIProblem(f"{document} is not a usable OpenAPI document: {error}") from error


def choose_operation(schema: Any, name: str) -> Any:
    """Return the operation with this operationId, or method and path. Raises OpenAPIProblem."""
    names = []
    for found in schema.get_all_operations():
        operation = found.ok()
        label = f"{operation.method.upper()} {operation.path}"
        identifier = operation.definition.raw.get("operationId", "")
        if name in (identifier, label):
            return operation
        names.append(f"{label} ({identifier})" if identifier else label)
    raise OpenAPIProblem(f"there is no operation {name!r}; there are: {', '.join(names)}")


def key_header_of(operation: Any) -> str | None:
    """Return the name of the header for keys that the document describes, if it does."""
    for parameter in operation.iter_parameters():
        if parameter.location.value == "header" and "idempotency" in parameter.name.lower():
            name: str = parameter.name
            return name
    return None


async def find_requests(
    told: OpenAPISettings, target: Target, profile: Profile, limits: Limits, budget: Budget
) -> FoundRequests:
    """Try generated requests on the API until two different ones were accepted.

    The second one is the other body. A request that breaks the schema and is refused is the
    rejected one. Raises OpenAPIProblem if none is accepted.
    """
    schema = await asyncio.to_thread(load_document, told.document)
    operation = choose_operation(schema, told.operation)
    header = key_header_of(operation)
    trial = replace(target, key_header=header or target.key_header)
    search = _Search(trial, profile, limits, budget)
    valid = await asyncio.to_thread(_sample, operation, choice, GenerationMode.POSITIVE)
    for template in valid:
        if await search.is_accepted(template) and search.has_two_bodies:
            break
    if not search.accepted:
        raise OpenAPIProblem(search.why_none())
    variants = {Variant.MAIN: search.accepted[0]}
    if search.has_two_bodies:
        variants[Variant.OTHER_BODY] = search.accepted[-1]
    invalid = await asyncio.to_thread(_sample, operation, choice, GenerationMode.NEGATIVE)
    for template in list(invalid)[:5]:
        if await search.is_rejected(template):
            variants[Variant.REJECTED] = template
            break
    note = f"{len(search.exchanges)} generated requests were tried, {len(search.accepted)} accepted"
    if header is None:
        note += f"; the document does not mention a key, so {trial.key_header} was sent"
    return FoundRequests(variants, header, tuple(search.exchanges), note)


class _Search:
    """Sends candidates and remembers what became of them."""

    def __init__(self, target: Target, profile: Profile, limits: Limits, budget: Budget) -> None:
        self._target = target
        self._given = profile, limits, budget
        self.accepted: list[RequestTemplate] = []
        self.exchanges: list[Exchange] = []

    @property
    def has_two_bodies(self) -> bool:
        return len({template.body for template in self.accepted}) > 1

    async def is_accepted(self, template: RequestTemplate) -> bool:
        """Send it; keep it if it succeeds, and is not the same as the one before."""
        if template in self.accepted:
            return False
        if self.accepted and template.path != self.accepted[0].path:
            return False  # another path is not another body
        exchange = await self._send(template)
        if exchange.is_success:
            self.accepted.append(template)
        return exchange.is_success

    async def is_rejected(self, template: RequestTemplate) -> bool:
        exchange = await self._send(template)
        status = exchange.status or 0
        return 400 <= status < 500 and status not in (401, 403, 408, 429)

    async def _send(self, template: RequestTemplate) -> Exchange:
        target = replace(self._target, variants={Variant.MAIN: template})
        run = ProbeRun(target, *self._given)
        exchange = await run.send((await run.operation()).request(), "generated request")
        self.exchanges.append(exchange)
        return exchange

    def why_none(self) -> str:
        outcomes = sorted({exchange.outcome() for exchange in self.exchanges})
        return (
            f"none of {len(self.exchanges)} generated requests was accepted "
            f"(they ended with: {', '.join(outcomes)}); give the caller's headers, or values that "
            "the document cannot know, as path parameters and fields"
        )


def _sample(operation: Any, told: OpenAPISettings, mode: GenerationMode) -> list[RequestTemplate]:
    """Return generated requests; those of the document's own examples first."""
    given_path = dict(told.path_parameters) or None
    strategies = [operation.as_strategy(mode, path_parameters=given_path)]
    if mode is GenerationMode.POSITIVE:
        strategies = [*operation.get_strategies_from_examples(), *strategies]
    cases = [case for strategy in strategies for case in _cases(strategy)]
    if mode is GenerationMode.NEGATIVE:
        cases = [case for case in cases if _is_only_body_wrong(case)]
        told = replace(told, fields={})
    templates = dict.fromkeys(_templates(cases, told))
    return list(templates)[:OPENAPI_TRIES_MAX]


def _cases(strategy: Any) -> list[Any]:
    cases = []

    @settings(
        max_examples=OPENAPI_TRIES_MAX,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def collect(case: Any) -> None:
        cases.append(case)

    collect()
    return cases


def _is_only_body_wrong(case: Any) -> bool:
    parts = case.meta.components.items()
    return [place.value for place, part in parts if part.mode.is_negative] == ["body"]


def _templates(cases: Iterable[Any], told: OpenAPISettings) -> Iterator[RequestTemplate]:
    for case in cases:
        given_kwargs = case.as_transport_kwargs("http://target")
        if told.fields and isinstance(given_kwargs.get("json"), dict):
            given_kwargs["json"] = {**given_kwargs["json"], **told.fields}
        try:
            prepared = requests.Request(**given_kwargs).prepare()
            body = prepared.body or b""
            text = body if isinstance(body, str) else body.decode("utf-8")
        except (ValueError, requests.RequestException):
            continue  # a template is text
        header = (key_header_of(case.operation) or "idempotency-key").lower()
        headers = tuple(
            (name, value if isinstance(value, str) else value.decode("latin-1"))
            for name, value in prepared.headers.items()
            if name.lower() not in {*_NOT_TAKEN, header}
        )
        yield RequestTemplate(str(prepared.method), str(prepared.path_url), headers, text)


def parse_field(text: str) -> tuple[str, Any]:
    """Return name and value of "name=value"; the value is JSON, or else a text."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise OpenAPIProblem(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
