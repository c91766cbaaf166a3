"""Converts Django's requests and responses to plain data and back.

Owns the reading of a request's body, and what makes a response final: its content is rendered, or
its stream is read. Knows Django REST framework by its attributes only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from django.core.exceptions import RequestDataTooBig
from django.http import HttpResponse
from django.http.request import RawPostDataException, UnreadablePostError
from django.urls import Resolver404, resolve

from oncekey.core.errors import ConfigurationError
from oncekey.http.message import (
    Headers,
    Request,
    RequestHeaders,
    Response,
    TooLarge,
    UnreadableBody,
    encoded_headers,
    text_headers,
)
from oncekey.http.rules import Rule
from oncekey.http.unhandled_requests import UNSTORED
from oncekey.http.wsgi import messages as wsgi_messages
from oncekey.http.wsgi.messages import CUT_SHORT, declared_length
from oncekey.http.wsgi.request_guard import ResponseBuffer


def django_request(request: Any) -> Any:
    """Django's own request, also for a request of the REST framework."""
    return getattr(request, "_request", request)


def paths_of(request: Any) -> tuple[str, ...]:
    """The paths that URL patterns may take the path for: those of the REST framework take
    `/refunds.json` for `/refunds`."""
    path: str = request.path_info
    head, dot, suffix = path.rstrip("/\n").rpartition(".")
    if dot and "/" not in suffix and "rest_framework" in sys.modules:
        return path, head
    return (path,)


def is_unrouted(request: Any, status: int) -> bool:
    """Whether no view has run: no URL pattern matched, or the view's class lacks the method."""
    match = getattr(request, "resolver_match", None)
    if status == HTTPStatus.NOT_FOUND and match is None:
        try:
            resolve(request.path_info, getattr(request, "urlconf", None))
        except Resolver404:
            return True
    if status == HTTPStatus.METHOD_NOT_ALLOWED and match is not None:
        view_class = getattr(match.func, "view_class", None) or getattr(match.func, "cls", None)
        actions = getattr(match.func, "actions", None)
        name = request.method.lower()
        if actions is not None:
            return name not in actions
        return view_class is not None and (
            name not in view_class.http_method_names or not hasattr(view_class, name)
        )
    return False


def headers_of(request: Any) -> RequestHeaders:
    return wsgi_messages.headers_of(django_request(request).META)


def body_of(request: Any, rule: Rule, headers: RequestHeaders) -> bytes:
    """Read the whole body. Raises UnreadableBody, and TooLarge if it is longer than the rule or
    Django allows."""
    base = django_request(request)
    length = declared_length(base.META)
    if length is not None and length > rule.max_request:
        raise TooLarge
    if "wsgi.input" in base.META and b"transfer-encoding" in headers:
        # Django would give every view an empty body, so that all such requests would be equal.
        raise UnreadableBody("Send a Content-Length: behind WSGI Django reads no chunked bodies.")
    try:
        body: bytes = base.body
    except RequestDataTooBig:
        raise TooLarge from None
    except UnreadablePostError:
        raise UnreadableBody(CUT_SHORT) from None
    except RawPostDataException:
        raise ConfigurationError(
            "this request's body was parsed before it could be compared: by CsrfViewMiddleware, "
            "unless the view is exempt, or by a permission that looks at request.data. Read "
            "request.body in a middleware before that, or use IdempotencyMiddleware"
        ) from None
    if length is not None and len(body) < length:
        raise UnreadableBody(CUT_SHORT)
    if len(body) > rule.max_request:
        raise TooLarge
    return body


def request_of(request: Any, headers: RequestHeaders, body: bytes) -> Request:
    base = django_request(request)
    path = quote(base.path.encode("utf-8")).encode("ascii")
    query = base.META.get("QUERY_STRING", "").encode("latin-1", "replace")
    match = getattr(base, "resolver_match", None)  # None before the URL was resolved
    template, name = ("/" + match.route, match.view_name) if match is not None else ("", "")
    return Request(base.method, path, query, headers, body, template, name)


@contextmanager
def unstored_marks(request: Any) -> Iterator[list[int]]:
    """The marks that `leave_unstored` puts on a request meanwhile."""
    base = django_request(request)
    marked = getattr(base, "scope", base.META)  # the scope of ASGI, or the environ
    outer = marked.get(UNSTORED)
    marks: list[int] = []
    marked[UNSTORED] = marks
    try:
        yield marks
    finally:
        marked[UNSTORED] = outer


class DjangoResponse(ResponseBuffer):
    """The final response of a view. A streamed response has been read."""

    def __init__(self, final: Any) -> None:
        super().__init__()
        self.final = rendered(final)
        self.status = final.status_code
        self.headers = encoded_headers(self.final.items())
        if self.final.streaming:
            self.fill(_parts(self.final))
        else:
            self.add(self.final.content)

    def to_send(self, more_headers: Headers) -> Any:
        """The response with more headers."""
        if self.final.streaming:
            self.final.streaming_content = self
        else:
            self.close()
        for name, value in text_headers(more_headers):
            self.final[name] = value
        return self.final


def rendered(response: Any) -> Any:
    """The response with its content rendered."""
    if hasattr(response, "render") and not getattr(response, "is_rendered", True):
        response = response.render()
    return response


def _parts(response: Any) -> Any:
    if getattr(response, "is_async", False):
        raise ConfigurationError(
            "a guarded view answered with an asynchronous stream; give a plain iterator, or a "
            "whole response"
        )
    return response.streaming_content


def django_response(response: Response) -> HttpResponse:
    """A refusal or a replay as a response of Django."""
    made = HttpResponse(response.body, status=response.status)
    del made["Content-Type"]  # no default headers
    for name, value in text_headers(response.headers):
        made[name] = value
    return made
