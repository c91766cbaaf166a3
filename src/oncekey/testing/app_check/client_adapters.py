"""Adapters of test clients: each sends a submission and returns an answer.

Clients are recognised by what they can do, so that no framework is imported here: httpx and
Starlette's TestClient by `request` and `stream`, Flask's and Werkzeug's by `open`, those of Django
and its REST framework by `generic`. A plain function is a client too: it is called with the key and
the request. The async forms of all of these return something to await; so does their adapter.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from oncekey.core.errors import ConfigurationError, InFlight, Mismatch, OncekeyError, OutcomeUnknown
from oncekey.engine.results import Result
from oncekey.queues.disposition import Disposition, Kind
from oncekey.testing.app_check.sample_request import (
    Answer,
    AnswerKind,
    SampleRequest,
    Submission,
    shortened,
)

# What a retry must get again, besides the status and the body. Others may differ: Date, a trace id.
COMPARED_HEADERS: Final = ("content-type", "location", "etag")
CONFLICT: Final = 409
UNKNOWN_CODE: Final = "outcome-unknown"

Exchange = Callable[[SampleRequest, dict[str, str]], Any]  # a response, or one to await


class PendingAnswer:
    """The answer of an async client, to be awaited once, or dropped by a caller that cannot."""

    def __init__(self, response: Awaitable[Any], read: Callable[[Any], Answer]) -> None:
        self._response = response
        self._read = read

    async def answer(self) -> Answer:
        try:
            return self._read(await self._response)
        except OncekeyError as error:
            return _refusal(error)

    def drop(self) -> None:
        close = getattr(self._response, "close", None)
        if close is not None:
            close()


Send = Callable[[Submission], Answer | PendingAnswer]

# An app can be called too, and would be taken for a function of a key and a request.
_CLIENT_OF_APPS_WITH = {
    "test_client": "app.test_client()",  # Flask
    "build_middleware_stack": "TestClient(app)",  # Starlette, FastAPI
    "get_response": "django.test.Client()",  # a handler of Django
}


def sender_of(client: Any, *, header: str, more: Mapping[str, str] | None = None) -> Send:
    """A function that sends submissions by this client; `more` are headers that replace those of
    the request."""
    exchange, read = _exchange_of(client)
    if exchange is None or read is None:
        return _function_sender(client)
    http_exchange, read_response = exchange, read

    def send(submission: Submission) -> Answer | PendingAnswer:
        request = submission.request
        if not isinstance(request, SampleRequest):
            raise ConfigurationError(
                f"an HTTP client sends a SampleRequest, not a {type(request).__name__}"
            )
        headers = request.sent_headers({**(more or {}), header: submission.key})
        response = http_exchange(request, headers)
        if isinstance(response, Awaitable):
            return PendingAnswer(response, read_response)
        return read_response(response)

    return send


def _exchange_of(client: Any) -> tuple[Exchange, Callable[[Any], Answer]] | tuple[None, None]:
    """How a client exchanges a request for a response, and how that is read."""
    if callable(getattr(client, "request", None)) and callable(getattr(client, "stream", None)):
        return _by_request(client), _read_httpx
    if callable(getattr(client, "open", None)) and hasattr(client, "application"):
        return _by_open(client), _read_werkzeug
    if callable(getattr(client, "generic", None)) and hasattr(client, "handler"):
        return _by_generic(client), _read_django
    for mark, instead in _CLIENT_OF_APPS_WITH.items():
        if hasattr(client, mark):
            raise ConfigurationError(
                f"a {type(client).__name__} is an app, and not a client of it; give {instead}"
            )
    if callable(client):
        return None, None
    raise ConfigurationError(
        f"a {type(client).__name__} is no client that is known here; give Starlette's TestClient, "
        "an httpx client, the test client of Flask or Django, or a function of a key and a request"
    )


def _by_request(client: Any) -> Exchange:
    def exchange(request: SampleRequest, headers: dict[str, str]) -> Any:
        return client.request(request.method, request.path, content=request.body, headers=headers)

    return exchange


def _by_open(client: Any) -> Exchange:
    if getattr(client, "preserve_context", False):
        # In `with app.test_client() as client` Flask keeps the context of a request open for the
        # thread of the test, and that fails for requests of other threads. So the block is left.
        client.__exit__(None, None, None)

    def exchange(request: SampleRequest, headers: dict[str, str]) -> Any:
        return client.open(
            request.path, method=request.method, data=request.body, headers=list(headers.items())
        )

    return exchange


def _by_generic(client: Any) -> Exchange:
    def exchange(request: SampleRequest, headers: dict[str, str]) -> Any:
        kinds = {n: v for n, v in headers.items() if n.lower() == "content-type"}
        others = {n: v for n, v in headers.items() if n not in kinds}
        # A copy, because the client keeps the exception of a request, and others run beside it.
        return copy.copy(client).generic(
            request.method,
            request.path,
            data=request.body,
            content_type=next(iter(kinds.values()), ""),
            headers=others,
        )

    return exchange


def _read_httpx(response: Any) -> Answer:
    return http_answer(response.status_code, response.headers, response.content)


def _read_werkzeug(response: Any) -> Answer:
    return http_answer(response.status_code, response.headers, response.data)


def _read_django(response: Any) -> Answer:
    body = b"".join(response.streaming_content) if response.streaming else response.content
    return http_answer(response.status_code, response.headers, body)


def http_answer(status: int, headers: Any, body: bytes) -> Answer:
    """What a response means. Without a known code a 409 means that the key is held."""
    compared = tuple(headers.get(name) for name in COMPARED_HEADERS)
    shown = f"{status} {shortened(body.decode('utf-8', 'replace'))}".rstrip()
    if status < 400:
        kind = AnswerKind.SUCCESS
    elif status >= 500:
        kind = AnswerKind.FAILED
    elif status != CONFLICT:
        kind = AnswerKind.REFUSED
    else:
        kind = AnswerKind.UNKNOWN if _code_of(body) == UNKNOWN_CODE else AnswerKind.IN_FLIGHT
    return Answer(kind, shown, (status, compared, body), code=status)


def _code_of(body: bytes) -> object:
    try:
        members = json.loads(body)
    except ValueError:
        return None
    return members.get("code") if isinstance(members, dict) else None


# --- plain functions ------------------------------------------------------------------------------


def _function_sender(function: Callable[[str, Any], Any]) -> Send:
    def send(submission: Submission) -> Answer | PendingAnswer:
        try:
            value = function(submission.key, submission.request)
        except OncekeyError as error:
            return _refusal(error)
        return PendingAnswer(value, _returned) if isinstance(value, Awaitable) else _returned(value)

    return send


_DISPOSITIONS: Final = {
    Kind.REMOVE: AnswerKind.SUCCESS,
    Kind.HIDE: AnswerKind.IN_FLIGHT,
    Kind.PARK: AnswerKind.UNKNOWN,
    Kind.DEAD_LETTER: AnswerKind.REFUSED,
}


def _returned(value: Any) -> Answer:
    """What a function returned. Of a consumer that is what becomes of the message; of a `run` its
    value, for whether it was replayed differs; and a response means what it means elsewhere."""
    if isinstance(value, Disposition):
        kind = _DISPOSITIONS.get(value.kind, AnswerKind.FAILED)
        shown = f"{value.kind}: {value.reason}".rstrip(": ")
        return Answer(kind, shown, value.kind, code=value.kind)
    if isinstance(value, Result):
        return Answer(AnswerKind.SUCCESS, f"returned {shortened(repr(value))}", value.value)
    if hasattr(value, "status_code") and hasattr(value, "headers"):
        return _read_response(value)
    return Answer(AnswerKind.SUCCESS, f"returned {shortened(repr(value))}", value)


def _read_response(response: Any) -> Answer:
    """What a response means, of whichever framework."""
    if hasattr(response, "streaming"):
        return _read_django(response)
    return _read_werkzeug(response) if hasattr(response, "data") else _read_httpx(response)


def _refusal(error: OncekeyError) -> Answer:
    kind = AnswerKind.FAILED
    if isinstance(error, InFlight):
        kind = AnswerKind.IN_FLIGHT
    elif isinstance(error, OutcomeUnknown):
        kind = AnswerKind.UNKNOWN
    elif isinstance(error, Mismatch):
        kind = AnswerKind.REFUSED
    name = type(error).__name__
    return Answer(kind, f"raised {name}: {shortened(str(error))}", name, code=name)
