"""Detects responses that were made before any handler ran: by a router or by validation.

Such a response says nothing about the operation, so it is not stored and its key is free again: a
client that corrects its request, or retries after the route was deployed, is served. Each framework
shows this in a different way, and only certain cases count: a handler that did something and then
responded with 404 or 422 must never run again, so any other response is stored.

Owns what is known of each framework; imports none of them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any, Final

UNSTORED: Final = "oncekey.unstored"  # in a scope or environ: a list of the marks below
_FIRST_ERROR_STATUS: Final = 400
_HANDLERS: Final = "starlette.exception_handlers"
# The functions of Starlette and FastAPI that reject a request themselves.
_REJECTING: Final = frozenset(
    {
        ("starlette.routing", "not_found"),
        ("starlette.routing", "handle"),
        ("fastapi.routing", "handle"),
        ("starlette.endpoints", "method_not_allowed"),
        ("starlette.middleware.body_limit", "__call__"),
        ("fastapi.routing", "app"),
    }
)
# FastAPI reads and parses a body in its own `app`; it calls the endpoint from another function.
_READING_BODY: Final = (("fastapi.routing", "app"), "starlette.requests")
_DEPENDENCIES: Final = ("fastapi.dependencies.utils", "solve_dependencies")
_LITESTAR_BEFORE: Final = ("litestar._asgi", "litestar._kwargs", "litestar._signature")
_LITESTAR_ROUTES: Final = ("litestar.routes",)
_LITESTAR_PARSING: Final = ("litestar._kwargs.extractors", "litestar._kwargs.kwargs_model")
_LITESTAR_PACKAGES: Final = frozenset({"litestar", "msgspec", "multipart"})
# What the REST framework's own views call, before they do anything, to parse and to validate.
_REST_VIEWS: Final = (("rest_framework.mixins", "create"), ("rest_framework.mixins", "update"))
_REST_VALIDATION: Final = (
    ("rest_framework.serializers", "is_valid"),
    ("rest_framework.request", "data"),
)
_REST_PACKAGES: Final = frozenset({"rest_framework", "django", "oncekey", "functools"})
_FRAMEWORK_PACKAGES: Final = frozenset({"starlette", "fastapi", "anyio", "contextlib", "oncekey"})


def leave_unstored(scope: Any) -> None:
    """Mark the request so that its response is not stored, whatever its status: its key is free
    again. For rejections by a layer that runs before the handler. Takes an ASGI scope, a WSGI
    environ, or an object that has one, such as a Starlette request."""
    _mark(scope, 0)


def is_unstored(marks: Iterable[int], status: int) -> bool:
    """Whether a response is not to be stored, by the marks on its request."""
    return any(status >= lowest_status for lowest_status in marks)


def _mark_unhandled(scope: Any) -> None:
    """Mark a request that no handler has seen, so that an error response to it is not stored. A
    success is stored: an error page that responds with one may be a handler itself."""
    _mark(scope, _FIRST_ERROR_STATUS)


def _mark(scope: Any, lowest_status: int) -> None:
    """Responses to this request with this status or a higher one are not stored."""
    for name in ("scope", "environ"):
        scope = getattr(scope, name, scope)
    marks: list[int] | None = scope.get(UNSTORED)
    if marks is not None:
        marks.append(lowest_status)  # a list, because layers in between may have copied the scope


# --- Starlette and FastAPI ----------------------------------------------------------------------


_set_item = dict.__setitem__  # without a look-up for each item that a framework sets


class WatchedScope(dict[str, Any]):
    """A scope that observes which errors Starlette's and FastAPI's exception handlers get."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name == _HANDLERS and isinstance(value, tuple):
            value = tuple([_WatchedHandlers(each, self) for each in value])
        _set_item(self, name, value)


class _WatchedHandlers:
    """An app's exception handlers by class or status, wrapped when Starlette looks them up."""

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
        def check(error: BaseException) -> None:
            if is_raised_before_handler(error):
                _mark_unhandled(self._scope)

        def handle_sync(request: Any, error: Exception) -> Any:
            check(error)
            return handler(request, error)

        async def handle_async(request: Any, error: Exception) -> Any:
            check(error)
            return await handler(request, error)

        method = getattr(handler, "__call__", None)  # noqa: B004, of an object that is async
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(method)
        return handle_async if is_async else handle_sync


def is_raised_before_handler(error: BaseException) -> bool:
    """Whether a router, FastAPI itself or a dependency raised it, before the endpoint ran."""
    last = ("", "")
    for function in _functions(error):
        if function == _DEPENDENCIES or (last, function[0]) == _READING_BODY:
            return True
        if function[0].partition(".")[0] not in _FRAMEWORK_PACKAGES:
            return False  # code of the app, which may have done anything
        last = function
    return last in _REJECTING


def _functions(error: BaseException) -> Iterator[tuple[str, str]]:
    """The functions that an error came through, by module and name, the innermost last."""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        yield str(frame.f_globals.get("__name__", "")), frame.f_code.co_name
        trace = trace.tb_next


# --- Django REST framework ----------------------------------------------------------------------


def is_raised_by_rest_validation(error: BaseException) -> bool:
    """Whether a view of the REST framework's own, such as that of CreateModelMixin, could not parse
    or validate its request. A method of the app's that does so may have done anything before."""
    functions = _functions(error)
    for function in functions:
        if function in _REST_VIEWS:
            return next(functions, None) in _REST_VALIDATION
        if function[0].partition(".")[0] not in _REST_PACKAGES:
            return False
    return False


# --- Litestar, Quart and Flask ------------------------------------------------------------------


def watch_frameworks(layers: Iterable[Any]) -> None:
    """Hook into the frameworks among an app's layers, to mark requests that reach no handler."""
    for layer in layers:
        layer = getattr(layer, "__self__", layer)  # noqa: PLW2901, `app.wsgi_app` is a method
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
    """Mark the request if only code of Litestar's own raised the error: in routing, or when it
    read, parsed and validated the arguments of a handler. An error about malformed JSON is raised
    where handlers are called, because of one that was raised in parsing."""
    modules = _litestar_modules(error)
    if not modules:
        return
    parsing = modules
    if modules[-1].startswith(_LITESTAR_ROUTES) and error.__cause__ is not None:
        parsing = _litestar_modules(error.__cause__)
    if modules[-1].startswith(_LITESTAR_BEFORE) or any(
        module.startswith(_LITESTAR_PARSING) for module in parsing
    ):
        _mark_unhandled(scope)


def _litestar_modules(error: BaseException) -> list[str]:
    """The modules that an error came through; none if code of the app was among them."""
    modules = [module for module, _ in _functions(error)]
    is_own = all(module.partition(".")[0] in _LITESTAR_PACKAGES for module in modules)
    return modules if is_own else []


async def _quart_finished(app: Any, **_: Any) -> None:
    _mark_unrouted(sys.modules["quart"].request)


def _flask_finished(app: Any, **_: Any) -> None:
    _mark_unrouted(sys.modules["flask"].request)


def _mark_unrouted(request: Any) -> None:
    """Mark a request of Flask or Quart that no route matched."""
    error = getattr(request, "routing_exception", None) if request else None
    if error is not None and getattr(error, "code", None) in (404, 405):
        _mark_unhandled(request)
