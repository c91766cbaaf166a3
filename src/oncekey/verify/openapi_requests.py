"""Requests for a target from an OpenAPI document; schemathesis generates them.

A document describes which requests are valid, not which ones the API accepts: an order may have to
exist. So requests are tried, a bounded number of them, and the first accepted one is the template.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from oncekey.core.errors import ConfigurationError
from oncekey.http.missing_dependency import needs
from oncekey.verify.probe import Budget, BudgetSpent, Limits, ProbeRun
from oncekey.verify.profile import Profile
from oncekey.verify.recorded_exchange import Exchange
from oncekey.verify.target import (
    KEY_HEADER_DEFAULT,
    RequestTemplate,
    Target,
    Variant,
    new_values,
)
from oncekey.verify.target_settings import OpenAPISettings

with needs("verify-openapi"):
    import requests
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis import GenerationMode
    from schemathesis.core.errors import LoaderErrorKind

# How many generated requests are tried until the API accepts one, and a second one to compare.
OPENAPI_TRIES_MAX = 40
_REJECTED_TRIES = 5
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

    variants   the accepted request, another one with another body, and one that was rejected
    tried      the exchanges, in order; the accepted ones among them
    note       what a reader of the report should know
    """

    variants: Mapping[Variant, RequestTemplate]
    tried: tuple[Exchange, ...]
    note: str


def load_document(document: str) -> Any:
    """Return the schema of a document in a file or behind a URL. Raises OpenAPIProblem."""
    try:
        if urlsplit(document).scheme in ("http", "https"):
            return schemathesis.openapi.from_url(document)
        return schemathesis.openapi.from_path(Path(document))
    except Exception as error:
        hint = ""
        kind = getattr(error, "kind", None)
        if kind in (LoaderErrorKind.HTTP_CLIENT_ERROR, LoaderErrorKind.HTTP_FORBIDDEN):
            hint = "; it is fetched without credentials: save it, and give the file"
        raise OpenAPIProblem(
            f"{document} is not a usable OpenAPI document: {error}{hint}"
        ) from error


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


class GeneratedRequests:
    """Requests for one operation of a document."""

    def __init__(self, told: OpenAPISettings, base_path: str) -> None:
        """Read the document. Raises OpenAPIProblem.

        `base_path` stands before the paths of the document, if the API is not at its root. Without
        one it is the path of the document's own server.
        """
        if not told.document or not told.operation:
            raise OpenAPIProblem("a document and the operation in it are needed, both of them")
        self._told = told
        schema = load_document(told.document)
        self._base = (base_path or schema.base_path).rstrip("/")
        self._operation = choose_operation(schema, told.operation)
        self.key_header = key_header_of(self._operation)
        self._valid = self._sample(GenerationMode.POSITIVE)
        if not self._valid:
            raise OpenAPIProblem(f"nothing could be generated for {told.operation}")

    @property
    def first(self) -> RequestTemplate:
        """The first valid request; whether the API accepts it is not known."""
        return self._valid[0]

    async def find(
        self, target: Target, profile: Profile, limits: Limits, budget: Budget
    ) -> FoundRequests:
        """Try requests on the API until two with different bodies were accepted.

        A request that breaks the schema and is refused is the rejected one. Raises OpenAPIProblem
        if none is accepted.
        """
        search = _Search(target, profile, limits, budget)
        rejected = None
        try:
            for template in self._valid:
                if await search.is_accepted(template) and search.has_two_bodies:
                    break
            for template in await asyncio.to_thread(self._sample, GenerationMode.NEGATIVE):
                if search.accepted and await search.is_rejected(template):
                    rejected = template
                    break
        except BudgetSpent as spent:
            if not search.accepted:
                raise OpenAPIProblem(f"{search.why_none()}; {spent}") from spent
        if not search.accepted:
            raise OpenAPIProblem(search.why_none())
        variants = {Variant.MAIN: search.accepted[0]}
        if search.has_two_bodies:
            variants[Variant.OTHER_BODY] = search.accepted[-1]
        if rejected is not None:
            variants[Variant.REJECTED] = rejected
        return FoundRequests(variants, tuple(search.exchanges), self._note(search))

    def _note(self, search: _Search) -> str:
        tried, accepted = len(search.exchanges), len(search.accepted)
        note = f"{tried} generated requests were tried, {accepted} accepted"
        if self.key_header is None:
            note += "; the document does not mention a header for keys"
        return note

    def _sample(self, mode: GenerationMode) -> list[RequestTemplate]:
        """Return generated requests; those of the document's own examples first."""
        path = dict(self._told.path_parameters) or None
        strategies = [self._operation.as_strategy(mode, path_parameters=path)]
        if mode is GenerationMode.POSITIVE:
            strategies = [*self._operation.get_strategies_from_examples(), *strategies]
        cases = [case for strategy in strategies for case in _cases(strategy)]
        if mode is GenerationMode.NEGATIVE:
            cases = [case for case in cases if _is_only_body_wrong(case)]
            return list(self._templates(cases, {}))[:_REJECTED_TRIES]
        return list(dict.fromkeys(self._templates(cases, self._told.fields)))[:OPENAPI_TRIES_MAX]

    def _templates(
        self, cases: Iterable[Any], fields: Mapping[str, Any]
    ) -> Iterator[RequestTemplate]:
        not_taken = {*_NOT_TAKEN, (self.key_header or KEY_HEADER_DEFAULT).lower()}
        for case in cases:
            given_kwargs = case.as_transport_kwargs(f"http://target{self._base}")
            _set_fields(given_kwargs, fields)
            try:
                prepared = requests.Request(**given_kwargs).prepare()
                body = prepared.body or b""
                text = body if isinstance(body, str) else body.decode("utf-8")
            except (ValueError, requests.RequestException):
                continue  # a template is text
            headers = tuple(
                (name, value if isinstance(value, str) else value.decode("latin-1"))
                for name, value in prepared.headers.items()
                if name.lower() not in not_taken
            )
            path = _with_placeholders(str(prepared.path_url))
            yield RequestTemplate(str(prepared.method), path, headers, _with_placeholders(text))


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


def _with_placeholders(text: str) -> str:
    """Return a text in which the braces of placeholders are not escaped, as forms and paths do."""
    for name in new_values(""):
        text = text.replace(quote(f"{{{{{name}}}}}"), f"{{{{{name}}}}}")
    return text


def _set_fields(kwargs: dict[str, Any], fields: Mapping[str, Any]) -> None:
    """Set members of a generated body: of a JSON object, a form, or a form in parts.

    Raises OpenAPIProblem where there is nothing of the kind.
    """
    if not fields:
        return
    if isinstance(kwargs.get("json"), dict):
        kwargs["json"] = {**kwargs["json"], **fields}
    elif isinstance(kwargs.get("data"), dict):
        kwargs["data"] = {**kwargs["data"], **fields}
    elif isinstance(kwargs.get("files"), list):
        others = [part for part in kwargs["files"] if part[0] not in fields]
        texts = [(name, (None, str(value))) for name, value in fields.items()]
        kwargs["files"] = [*others, *texts]
    else:
        raise OpenAPIProblem("the fields cannot be set: the body is no JSON object and no form")


def _is_only_body_wrong(case: Any) -> bool:
    parts = case.meta.components.items()
    return [place.value for place, part in parts if part.mode.is_negative] == ["body"]
