"""Ends a request of Flask inside of its attempt: the functions that an app runs after a view.

An app may commit in an `after_request`, `teardown_request` or `teardown_appcontext` function. Flask
calls these when the view has returned, and by then a guarded view has stored its outcome. So the
guard calls them itself, before the outcome is stored (I16), and Flask's own call finds that they
have run. A function that raises ends the attempt like an error of the view. Flask then calls them
as after any error.

Owns which functions have run, in `flask.g`; which outcome is stored is up to idempotency.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from flask import Flask, Response, current_app, g
from flask.globals import app_ctx

# In `flask.g`: the response for which the `after_request` functions have run, and whether the
# teardown functions have.
_PROCESSED: Final = "_oncekey_processed"
_TORN_DOWN: Final = "_oncekey_torn_down"
# Newer versions of Flask pass their context as the first argument.
_TAKES_CONTEXT: Final = "ctx" in inspect.signature(Flask.process_response).parameters


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
