"""Wraps a FastAPI endpoint so that it runs only after its key was claimed.

FastAPI calls the wrapper when every dependency is solved and every value validated. The wrapper
hands the call over to the request's `RouteRequest` (route_request.py), which has it run, or
returns a stored response or a refusal instead.

The running attempt is a dependency too. Dependencies are solved before the key is claimed, so a
dependency gets a proxy of the attempt; the endpoint itself is called with the attempt.

Owns the wrapper, its extended signature, and the proxy.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator
from typing import (
    Annotated,
    Any,
    Final,
    ForwardRef,
    NamedTuple,
    cast,
    get_args,
    get_origin,
)

from fastapi import Request
from fastapi.params import Depends
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response as StarletteResponse

from oncekey.core.errors import ConfigurationError
from oncekey.engine.attempts.async_attempt import AsyncAttempt
from oncekey.engine.once import Once
from oncekey.http.asgi import attempt_of
from oncekey.http.asgi.lifespan import AppGuard
from oncekey.http.message import Response
from oncekey.http.rules import Rule

# In the scope: the function that gets the pending call; None if the endpoint runs without a key.
ON_CALL: Final = "oncekey.on_call"
_REQUEST: Final = "oncekey_request"
_CALLER: Final = "oncekey_caller"
_SESSION: Final = "oncekey_session"
_GUARD: Final = "__oncekey_guard__"


class RouteGuard(AppGuard):
    """Guards routes of an app. `blocking` is for transactions in sessions that are not async."""

    blocking: Once | None = None


class EndpointGuard(NamedTuple):
    """How one endpoint is guarded. `session` gives the connection of its transaction, if any."""

    setup: RouteGuard
    rule: Rule
    caller: Depends | Callable[[Request], Any]
    session: Depends | None = None


class PendingCall(NamedTuple):
    """A call of the endpoint that waits for its key. `run` calls the endpoint."""

    request: Request
    caller: Any
    session: Any
    run: Callable[[], Awaitable[Any]]


OnCall = Callable[[PendingCall], Awaitable[Any]]


def guard_of(endpoint: object) -> EndpointGuard | None:
    found: EndpointGuard | None = getattr(endpoint, _GUARD, None)
    return found


def wrap_endpoint(endpoint: Callable[..., Any], guard: EndpointGuard) -> Callable[..., Any]:
    """The endpoint as FastAPI is to see it."""
    if guard_of(endpoint) is not None:
        raise ConfigurationError(f"{_name(endpoint)} is guarded twice")
    if not guard.rule.guarded:
        setattr(endpoint, _GUARD, guard)
        return endpoint
    if inspect.isgeneratorfunction(endpoint) or inspect.isasyncgenfunction(endpoint):
        raise ConfigurationError(
            f"{_name(endpoint)} yields: its response begins before it runs, too late for a replay. "
            "Return a StreamingResponse, or guard(guarded=False)"
        )

    is_async = _is_async(endpoint)

    @functools.wraps(endpoint)
    async def guarded(**values: Any) -> Any:
        request: Request = values.pop(_REQUEST)
        caller, session = values.pop(_CALLER, None), values.pop(_SESSION, None)

        async def run() -> Any:
            arguments = _with_attempts(values)
            if is_async:
                return await endpoint(**arguments)
            return await run_in_threadpool(endpoint, **arguments)

        try:
            on_call: OnCall | None = request.scope[ON_CALL]
        except KeyError:
            raise ConfigurationError(
                f"{_name(endpoint)} is guarded, but its route does not know: "
                "idempotency.attach(app) before the routes of an app, and "
                "APIRouter(route_class=idempotency.route_class) for those of a router"
            ) from None
        if on_call is None:
            return await run()
        if not isinstance(guard.caller, Depends):
            caller = guard.caller(request)
            if type(caller) is not str and inspect.isawaitable(caller):
                caller = await caller
        return await on_call(PendingCall(request, caller, session, run))

    guarded.__signature__ = _extended(endpoint, guard)  # type: ignore[attr-defined]
    setattr(guarded, _GUARD, guard)
    return guarded


def _extended(endpoint: Callable[..., Any], guard: EndpointGuard) -> inspect.Signature:
    """The endpoint's signature and our own parameters. Ours come last, so that FastAPI solves the
    app's dependencies first: an app refuses a request before we do."""
    signature = inspect.signature(endpoint)
    keyword = inspect.Parameter.KEYWORD_ONLY
    if _may_take_request(endpoint):
        # By a dependency of its own: of two plain Request parameters FastAPI fills in the last
        # only. To solve a dependency takes long, so not for every endpoint.
        ours = [inspect.Parameter(_REQUEST, keyword, default=Depends(_the_request))]
    else:
        ours = [inspect.Parameter(_REQUEST, keyword, annotation=Request)]
    if isinstance(guard.caller, Depends):
        ours.append(inspect.Parameter(_CALLER, keyword, default=guard.caller))
    if guard.session is not None:
        ours.append(inspect.Parameter(_SESSION, keyword, default=guard.session))
    theirs = list(signature.parameters.values())
    is_open = bool(theirs) and theirs[-1].kind is inspect.Parameter.VAR_KEYWORD
    rest = [theirs.pop()] if is_open else []  # nothing may follow `**kwargs`
    return signature.replace(parameters=[*theirs, *ours, *rest])


def _may_take_request(endpoint: Callable[..., Any]) -> bool:
    """Whether an endpoint has a parameter of its own that FastAPI fills with the request; True if
    that cannot be found out yet."""
    try:
        from fastapi.dependencies.utils import get_typed_signature

        parameters = get_typed_signature(endpoint).parameters.values()
    except Exception:  # FastAPI will say what is wrong with it
        return True
    for parameter in parameters:
        hint = parameter.annotation
        if get_origin(hint) is Annotated:
            hint = get_args(hint)[0]
        if isinstance(hint, (str, ForwardRef)):
            return True
        if isinstance(hint, type) and issubclass(hint, Request):
            return True
    return False


def check_late_commits(path: str, route_dependencies: Any, guard: EndpointGuard) -> None:
    """Raise ConfigurationError if an endpoint in a transaction has another dependency that ends
    after the response. The session's dependency must end after the commit, which stores the
    outcome, and so would the other one: a commit in its end that fails would come too late."""
    if guard.session is None:
        return
    for each in late_dependencies(route_dependencies, without=guard.session.dependency):
        raise ConfigurationError(
            f"{path} is guarded with transaction=, and its dependency {_name(each)} yields: it "
            "would end, and might commit, after the outcome is stored. Give it "
            "Depends(..., scope='function'), which FastAPI has from 0.121 on"
        )


def late_dependencies(dependant: Any, *, without: Any = None) -> Iterator[Callable[..., Any]]:
    """The dependencies that yield and end after the response, from what FastAPI knows of a route;
    but for one of them and what that one depends on."""
    for each in dependant.dependencies:
        call = each.call
        if call is None or call is without:
            continue
        is_generator = inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call)
        if is_generator and getattr(each, "scope", None) != "function":
            yield call
        yield from late_dependencies(each, without=without)


def as_starlette(response: Response) -> StarletteResponse:
    """A response that an endpoint can return."""
    made = StarletteResponse(response.body, response.status)
    made.raw_headers = list(response.headers)
    return made


async def _the_request(request: Request) -> Request:
    return request  # async, because FastAPI runs a sync dependency in a worker thread


def _is_async(endpoint: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(endpoint) or inspect.iscoroutinefunction(
        getattr(endpoint, "__call__", None)  # noqa: B004, an object that is called like a function
    )


def _name(endpoint: Callable[..., Any]) -> str:
    return getattr(endpoint, "__name__", repr(endpoint))


# --- the attempt as a dependency ------------------------------------------------------------------


class _AttemptProxy:
    """Stands for the attempt of a request. It has the attempt's members as soon as that runs."""

    def __init__(self, request: Request, *, optional: bool = False) -> None:
        self._request = request
        self._optional = optional

    def resolve(self) -> AsyncAttempt | None:
        attempt = attempt_of(self._request)
        if attempt is None and not self._optional:
            raise ConfigurationError(
                "no attempt is running: this request has no key, or the endpoint was not reached "
                "yet. Where keys are optional take an OptionalAttempt"
            )
        return attempt

    def __getattr__(self, name: str) -> Any:
        return getattr(self.resolve(), name)


def _current(request: Request) -> AsyncAttempt:
    return cast(AsyncAttempt, _AttemptProxy(request))


def _optional(request: Request) -> AsyncAttempt | None:
    return cast(AsyncAttempt, _AttemptProxy(request, optional=True))


# The attempt an endpoint runs in: for steps, child keys and the fence.
CurrentAttempt = Annotated[AsyncAttempt, Depends(_current)]
# The same where a key is optional: None without one. For the endpoint's own signature only.
OptionalAttempt = Annotated[AsyncAttempt | None, Depends(_optional)]


def _with_attempts(values: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an endpoint, each proxy replaced by its attempt."""
    return {
        name: value.resolve() if isinstance(value, _AttemptProxy) else value
        for name, value in values.items()
    }
