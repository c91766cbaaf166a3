"""Tells whether a response was made before any handler ran: by a router or by validation.

Such a response says nothing about the operation, so its key is free again: a client that corrects
its request, or comes back when the route is deployed, is served. Each framework lets this be seen
in a way of its own. Only what is certain counts: a handler that did something and then answered
404 or 422 must never run again, so whatever is not known here is stored.

Owns what is known of each framework; imports none of them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from types import FrameType
from typing import Any, Final

UNSTORED: Final = "oncekey.unstored"  # in a scope or environ: where an app says so itself
_FIRST_REFUSAL: Final = 400
_HANDLERS: Final = "starlette.exception_handlers"
# Where Starlette and FastAPI refuse a request by themselves.
_REFUSING: Final = frozenset(
    {
        ("starlette.routing", "not_found"),
        ("starlette.routing", "handle"),
        ("fastapi.routing", "handle"),
        ("starlette.endpoints", "method_not_allowed"),
        ("fastapi.routing", "app"),
    }
)
_DEPENDENCIES: Final = ("fastapi.dependencies.utils", "solve_dependencies")
_BETWEEN: Final = frozenset({"starlette", "fastapi", "anyio", "contextlib", "oncekey"})


def leave_unstored(scope: Any) -> None:
    """Say that the response which follows is no outcome, whatever its status: its key is free
    again. For refusals that come before a handler ran. Takes an ASGI scope, a WSGI environ, or an
    object that has one, such as a Starlette request."""
    _say(scope, 0)


def is_unstored(said: Iterable[int], status: int) -> bool:
    """Whether a response ends no key, after what was said about it."""
    return any(status >= least for least in said)


def _refused(scope: Any) -> None:
    """No handler has run. An error page that answers with success may have been one itself."""
    _say(scope, _FIRST_REFUSAL)


def _say(scope: Any, least_status: int) -> None:
    for name in ("scope", "environ"):
        scope = getattr(scope, name, scope)
    said: list[int] | None = scope.get(UNSTORED)
    if said is not None:
        said.append(least_status)  # a list, since layers in between may have copied the scope


# --- Starlette and FastAPI ----------------------------------------------------------------------


class WatchedScope(dict[str, Any]):
    """A scope that tells what Starlette's and FastAPI's exception handlers are asked to answer."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name == _HANDLERS and isinstance(value, tuple):
            value = tuple(_WatchedHandlers(each, self) for each in value)
        super().__setitem__(name, value)


class _WatchedHandlers:
    """An app's exception handlers, by class or by status, as Starlette looks them up."""

    def __init__(self, handlers: MutableMapping[Any, Any], scope: WatchedScope) -> None:
        self._handlers = handlers
        self._scope = scope

    def __contains__(self, kind: Any) -> bool:
        return kind in self._handlers

    def __getitem__(self, kind: Any) -> Callable[..., Any]:
        return self._watched(self._handlers[kind])

    def get(self, kind: Any, default: Any = None) -> Any:
        return self[kind] if kind in self._handlers else default

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handlers, name)

    def _watched(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        def note(error: BaseException) -> None:
            if is_refused_before_handler(error):
                _refused(self._scope)

        def plain(request: Any, error: Exception) -> Any:
            note(error)
            return handler(request, error)

        async def awaited(request: Any, error: Exception) -> Any:
            note(error)
            return await handler(request, error)

        called = getattr(handler, "__call__", None)  # noqa: B004, an object may be awaited too
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(called)
        return awaited if is_async else plain


def is_refused_before_handler(error: BaseException) -> bool:
    """Whether the router or FastAPI itself raised it, or a dependency, and no endpoint had run."""
    last = ("", "")
    for frame in _frames(error):
        module = str(frame.f_globals.get("__name__", ""))
        last = (module, frame.f_code.co_name)
        if last == _DEPENDENCIES:
            return True
        if module.partition(".")[0] not in _BETWEEN:
            return False  # some code of the app's: it may have done anything
    return last in _REFUSING


def _frames(error: BaseException) -> Iterator[FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


# --- Litestar, Quart and Flask ------------------------------------------------------------------


def watch_frameworks(layers: Iterable[Any]) -> None:
    """Let the frameworks among an app's layers tell of requests that reached no handler."""
    for one in layers:
        layer = getattr(one, "__self__", one)  # `app.wsgi_app` is a method
        modules = {kind.__module__.partition(".")[0] for kind in type(layer).__mro__}
        if "litestar" in modules and isinstance(getattr(layer, "after_exception", None), list):
            layer.after_exception.append(_litestar_raised)
        elif "quart" in modules and hasattr(layer, "url_map"):
            finished = sys.modules["quart.signals"].request_finished
            finished.connect(_quart_finished, sender=layer, weak=False)
        elif "flask" in modules and hasattr(layer, "url_map"):
            finished = sys.modules["flask.signals"].request_finished
            finished.connect(_flask_finished, sender=layer, weak=False)


async def _litestar_raised(error: Exception, scope: Any) -> None:
    """Nothing but Litestar's own code between the app and what was raised: routing, or the
    reading and validation of a handler's arguments."""
    modules = [str(frame.f_globals.get("__name__", "")) for frame in _frames(error)]
    is_own = all(module.partition(".")[0] in ("litestar", "msgspec") for module in modules)
    before = ("litestar._asgi", "litestar._kwargs", "litestar._signature")
    if is_own and modules and modules[-1].startswith(before):
        _refused(scope)


async def _quart_finished(app: Any, **_: Any) -> None:
    _note_unrouted(sys.modules["quart"].request)


def _flask_finished(app: Any, **_: Any) -> None:
    _note_unrouted(sys.modules["flask"].request)


def _note_unrouted(request: Any) -> None:
    """Whether a request of Flask's or Quart's led to no view."""
    error = getattr(request, "routing_exception", None) if request else None
    if error is not None and getattr(error, "code", None) in (404, 405):
        _refused(request)
