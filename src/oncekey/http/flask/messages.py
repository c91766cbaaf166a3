"""Converts Flask's requests and responses to plain data and back.

1. A body is kept as it is read, whoever reads it first. A `before_request` function may parse a
   form, and then no body would be left to compare. Therefore every guarded request gets a file that
   keeps what others read of it, before any other function runs. The guard reads the rest once it
   knows the caller: strangers have nothing kept in memory (I15). A function that reads a body which
   is refused ends with the refusal.
2. A request ends inside of its attempt. An app may commit in an `after_request`, `teardown_request`
   or `teardown_appcontext` function. Flask calls these when the view has returned, and by then a
   guarded view has stored its outcome. So the guard calls them itself, before the outcome is stored
   (I16), and Flask's own call finds that they have run. A function that raises ends the attempt
   like an error of the view. Flask then calls them as after any error.

Owns the body of a request, in its environ, and which functions have run, in `flask.g`; which
outcome is stored is up to idempotency.py.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable
from typing import Any, Final

from flask import Flask, Response, current_app, g, request
from flask.globals import app_ctx
from werkzeug.datastructures import Headers as FlaskHeaders
from werkzeug.exceptions import BadRequest, RequestEntityTooLarge

from oncekey.core.errors import ConfigurationError
from oncekey.engine.attempts.attempt import Attempt
from oncekey.engine.attempts.kept_steps import late_part, warn_of_kept_steps
from oncekey.http import message
from oncekey.http.exchange import Exchange
from oncekey.http.message import Body, PartsFile, TooLarge, UnreadableBody
from oncekey.http.rules import Rule
from oncekey.http.stored_responses import FAILURE
from oncekey.http.wsgi.messages import WSGIBody, mark_read
from oncekey.http.wsgi.request_guard import ResponseBuffer

_BODY: Final = "oncekey.body"  # in the environ: the WSGIBody
# In `flask.g`: the response for which the `after_request` functions have run, and whether the
# teardown functions have.
_PROCESSED: Final = "_oncekey_processed"
_TORN_DOWN: Final = "_oncekey_torn_down"
# Newer versions of Flask pass their context as the first argument.
_TAKES_CONTEXT: Final = "ctx" in inspect.signature(Flask.process_response).parameters


# --- bodies of requests ---------------------------------------------------------------------------


def keep_body(exchange: Exchange, rule: Rule) -> None:
    """Have the current request's body kept as it is read."""
    environ = request.environ
    body = environ[_BODY] = WSGIBody(environ, rule.max_request)
    environ["wsgi.input"] = io.BufferedReader(_KeptInput(body, exchange, rule))
    environ["wsgi.input_terminated"] = True


def read_body(exchange: Exchange, rule: Rule) -> bytes | Body | message.Response:
    """The whole body of the current request, or its refusal."""
    body = _kept_body()
    try:
        whole = body.read()
    except (UnreadableBody, TooLarge) as error:
        return exchange.refused_body(rule, error)
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


class _KeptInput(PartsFile):
    """The request's input for Flask. A body that is refused raises an HTTP error of Werkzeug's."""

    def __init__(self, body: WSGIBody, exchange: Exchange, rule: Rule) -> None:
        super().__init__(body)
        self._exchange = exchange
        self._rule = rule

    def readinto(self, buffer: Any) -> int:
        try:
            return super().readinto(buffer)
        except (UnreadableBody, TooLarge) as error:
            kind = RequestEntityTooLarge if isinstance(error, TooLarge) else BadRequest
            refusal = self._exchange.refused_body(self._rule, error)
            raise kind(response=flask_response(refusal)) from error


# --- responses ------------------------------------------------------------------------------------


def final_response(call: Callable[[], Any]) -> Response:
    """The response that Flask makes of what a view returns or raises."""
    try:
        returned = call()
    except Exception as error:
        returned = current_app.handle_user_exception(error)  # raises it if there is no handler
    return current_app.make_response(returned)


class FlaskResponse(ResponseBuffer):
    """The response of a view. A streamed response has been read."""

    def __init__(self, flask_response: Response) -> None:
        super().__init__()
        self._response = flask_response
        self._stored: message.Response | None = None  # as it was before the request's end
        self.status = flask_response.status_code
        self.headers = _header_lines(flask_response)
        is_streamed = flask_response.is_streamed or flask_response.direct_passthrough
        if not is_streamed:
            self.add(flask_response.get_data())
            return
        source: Any = flask_response.response
        parts = source if flask_response.direct_passthrough else flask_response.iter_encoded()
        self.fill(parts, source)
        flask_response.direct_passthrough = False
        flask_response.response = self

    def end_request(self, attempt: Attempt, body_max: int) -> None:
        """Run the app's functions for the end of a request. They fail by an error, or by a response
        that one of them makes of it."""
        if self.status >= FAILURE:
            self._end_request(body_max)  # the view has failed before them
            return
        with late_part(attempt):
            self._end_request(body_max)
        if self.response(body_max).status >= FAILURE:
            warn_of_kept_steps(attempt)

    def _end_request(self, body_max: int) -> None:
        """They are run for a replay too, so the view's own response is stored; but if they change
        its status, theirs is the outcome."""
        try:
            self._stored = self.response(body_max)
            self._response = end_request(self._response, is_read=not self.is_cut)
            if self._response.status_code != self.status:
                body = self._response.get_data()
                is_long = len(body) > body_max
                self._stored = message.Response(
                    self._response.status_code,
                    _header_lines(self._response),
                    b"" if is_long else body,
                    is_long,
                )
        except BaseException:
            self.close()
            raise

    def response(self, body_max: int) -> message.Response:
        return self._stored or super().response(body_max)

    def to_send(self, more_headers: message.Headers) -> Response:
        """The response with more headers."""
        if self._response.response is not self:
            self.close()
        for name, value in message.text_headers(more_headers):
            self._response.headers[name] = value
        return self._response


def _header_lines(response: Response) -> message.Headers:
    return message.encoded_headers(response.get_wsgi_headers(request.environ))


def flask_response(response: message.Response) -> Response:
    """A refusal or a replay as a response of Flask."""
    made: Response = current_app.response_class(response.body, response.status)
    made.headers = FlaskHeaders(message.text_headers(response.headers))  # without default headers
    return made


# --- the end of a request -------------------------------------------------------------------------


def watch_request_ends(app: Flask) -> None:
    """Have Flask leave out, at the end of a request, what `end_request` has done."""
    _leave_out(app, "process_response", lambda response: g.get(_PROCESSED) is response)
    _leave_out(app, "do_teardown_request", lambda error: _TORN_DOWN in g)
    _leave_out(app, "do_teardown_appcontext", lambda error: _TORN_DOWN in g)


def _leave_out(app: Flask, name: str, is_done: Callable[[Any], bool]) -> None:
    method = getattr(app, name)

    def call(*arguments: Any) -> Any:
        last = arguments[-1] if arguments else None
        return last if is_done(last) else method(*arguments)

    setattr(app, name, call)


def end_request(response: Response, *, is_read: bool) -> Response:
    """Call the functions that the app runs after a view, and return the response that they made of
    the view's. While a streamed response is not read to its end (`is_read`), its context may still
    be in use, so that the teardown functions are left to Flask."""
    processed: Response = _call(current_app.process_response, response)
    if is_read:
        _call(current_app.do_teardown_request, None)
        _call(current_app.do_teardown_appcontext, None)
        setattr(g, _TORN_DOWN, True)
    setattr(g, _PROCESSED, processed)
    return processed


def _call(method: Callable[..., Any], argument: Any) -> Any:
    if _TAKES_CONTEXT:
        return method(app_ctx._get_current_object(), argument)  # type: ignore[attr-defined]
    return method(argument)
