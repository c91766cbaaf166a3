"""Keeps what is read of a guarded request's body in Flask, whoever reads it first.

A `before_request` function may parse a form, and then no body would be left to compare. Therefore
every guarded request gets a file that keeps what others read of it, before any other function runs.
The guard reads the rest once it knows the caller: strangers have nothing kept in memory (I15). A
function that reads a body which is refused ends with the refusal.

Owns the body of a request, in its environ; wsgi_body.py reads it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Final

from flask import Response, request
from werkzeug.exceptions import BadRequest, RequestEntityTooLarge

from oncekey.core.errors import ConfigurationError
from oncekey.http import message
from oncekey.http.canonical_body import TooLarge, UnreadableBody
from oncekey.http.exchange import Exchange
from oncekey.http.request_body import Body, PartsFile
from oncekey.http.rules import Rule
from oncekey.http.wsgi_body import WSGIBody, mark_read

_BODY: Final = "oncekey.body"  # in the environ: the WSGIBody
ToFlask = Callable[[message.Response], Response]


def keep_body(exchange: Exchange, rule: Rule, to_flask: ToFlask) -> None:
    """Have the current request's body kept as it is read."""
    environ = request.environ
    body = environ[_BODY] = WSGIBody(environ, rule.max_request)
    environ["wsgi.input"] = io.BufferedReader(_KeptInput(body, exchange, rule, to_flask))
    environ["wsgi.input_terminated"] = True


def read_body(exchange: Exchange, rule: Rule) -> bytes | Body | message.Response:
    """The whole body of the current request, or its refusal."""
    body = _kept_body()
    try:
        whole = body.read()
    except (UnreadableBody, TooLarge) as error:
        return _refusal(exchange, rule, error)
    mark_read(request.environ, body.size)
    return whole


def discard_body() -> None:
    """Read the rest of a body that is not wanted, and keep nothing."""
    _kept_body().discard()


def close_body_with(response: Response) -> Response:
    """Free the body of the current request when this response was sent: until then the app's own
    functions may read it."""
    response.call_on_close(_kept_body().close)
    return response


def _kept_body() -> WSGIBody:
    body = request.environ.get(_BODY)
    if not isinstance(body, WSGIBody):
        raise ConfigurationError(
            "@idempotent must be on the view that is registered, below @app.post: this request's "
            "body was not read in time to be compared"
        )
    return body


def _refusal(exchange: Exchange, rule: Rule, error: Exception) -> message.Response:
    if isinstance(error, TooLarge):
        return exchange.too_large(rule)
    return exchange.unreadable(str(error))


class _KeptInput(PartsFile):
    """The request's input for Flask. A body that is refused raises an HTTP error of Werkzeug's."""

    def __init__(self, body: WSGIBody, exchange: Exchange, rule: Rule, to_flask: ToFlask) -> None:
        super().__init__(body)
        self._exchange = exchange
        self._rule = rule
        self._to_flask = to_flask

    def readinto(self, buffer: Any) -> int:
        try:
            return super().readinto(buffer)
        except (UnreadableBody, TooLarge) as error:
            kind = RequestEntityTooLarge if isinstance(error, TooLarge) else BadRequest
            refusal = _refusal(self._exchange, self._rule, error)
            raise kind(response=self._to_flask(refusal)) from error
