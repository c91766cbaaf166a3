"""Late work: what an ASGI app still does for a request when its response is complete.

Some of it decides whether the response is true. A FastAPI dependency commits after its `yield`, a
middleware after the app that it wraps. If that COMMIT fails, the response speaks of rows that do
not exist. So the outcome of a request waits for its late work, and an error there is an error of
the attempt (I16).

Background tasks are no such work, and a response should not wait for them. Starlette runs them in
the app's call too, before the rest of the late work. When the first one begins, the functions that
wait for it are looked at: if all of them are the framework's own, and no exit of a dependency is
pending, then nothing that follows can commit, and the outcome is stored at once.

Owns what is known of Starlette and FastAPI here; imports neither.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple, Protocol
from weakref import ref

# Where FastAPI puts the exits of the dependencies that end after the response, from 0.118 on.
_EXITS: Final = "fastapi_inner_astack"
# Packages whose code commits nothing after a response. Those that only observe requests, because
# many apps have one of them.
_HARMLESS: Final = frozenset(
    {
        "anyio",
        "asyncio",
        "contextlib",
        "fastapi",
        "oncekey",
        "starlette",
        "uvicorn",
        "ddtrace",
        "elasticapm",
        "newrelic",
        "opentelemetry",
        "sentry_sdk",
    }
)
_FASTAPI: Final = "fastapi.routing"
_OWN_TASK: Final = "starlette.middleware.base"  # this middleware runs its app in a task of its own
_COROUTINE: Final = (
    inspect.CO_COROUTINE
    | inspect.CO_ITERABLE_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_GENERATOR
)


class LateExitsError(RuntimeError):
    """A response is too long to be held until the exits of its dependencies have run."""

    def __init__(self) -> None:
        super().__init__(
            "the response is too long to be held back until the dependencies that yield have "
            "ended, and their commit might fail after it was sent. Give them "
            "Depends(..., scope='function'), which ends before the response, or guard the endpoint "
            "with transaction="
        )


def has_late_exits(scope: Any) -> bool:
    """Whether FastAPI has still to leave dependencies that yield, when the response is complete."""
    exits = scope.get(_EXITS) if isinstance(scope, dict) else None
    # The stack has no public way to ask. Only FastAPI puts something there.
    return exits is not None and bool(exits._exit_callbacks)


class Waiting(NamedTuple):
    """The functions that wait for the code that runs now, up to the one that was looked for.

    is_harmless     whether nothing that may commit is among them
    has_exits       whether one of them has still to leave dependencies
    is_reached      whether the function that was looked for is among them
    middleware      a middleware of Starlette's that runs this code in a task of its own, if the
                    search came to the beginning of the task
    """

    is_harmless: bool
    has_exits: bool
    is_reached: bool
    middleware: Any = None


def waiting_above(frame: FrameType | None, until: CodeType) -> Waiting:
    """The functions from this frame up to the one whose code is `until`."""
    return _waiting(_frames_above(frame), until)


def waiting_in(coroutine: Any) -> Waiting:
    """The functions of a suspended coroutine, of what it awaits, and so on."""
    return _waiting(_suspended_frames(coroutine), None)


def _waiting(frames: Iterable[FrameType], until: CodeType | None) -> Waiting:
    is_harmless, has_exits, middleware = True, False, None
    for frame in frames:
        if frame.f_code is until:
            return Waiting(is_harmless, has_exits, True, middleware)
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _HARMLESS:
            is_harmless = False
        elif module == _FASTAPI:
            has_exits = has_exits or has_late_exits(frame.f_locals.get("scope"))
        elif module == _OWN_TASK:
            middleware = frame.f_locals.get("self")
    return Waiting(is_harmless, has_exits, False, middleware)


def _frames_above(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of the coroutines that wait, to the beginning of their task."""
    while frame is not None and frame.f_code.co_flags & _COROUTINE:
        yield frame
        frame = frame.f_back


def _suspended_frames(awaited: Any) -> Iterator[FrameType]:
    """The frames of a suspended coroutine and of what it awaits."""
    while True:
        if inspect.iscoroutine(awaited):
            frame, awaited = awaited.cr_frame, awaited.cr_await
        elif inspect.isgenerator(awaited):
            frame, awaited = awaited.gi_frame, awaited.gi_yieldfrom
        else:
            return
        if frame is not None:
            yield frame


# --- background tasks ---------------------------------------------------------------------------


class BackgroundObserver(Protocol):
    """A run of an app that wants to know when the app's background tasks begin."""

    async def before_background(self, waiting: FrameType | None) -> None:
        """A background task is about to begin; `waiting` is the frame that waits for it."""


# The run that this code belongs to, also in tasks that the app has started. Weak, because a task
# that never ends would keep the request's body in memory.
_observer: Final[ContextVar[ref[BackgroundObserver] | None]] = ContextVar(
    "oncekey_run", default=None
)
_watched: Final[set[type]] = set()


def observe_background_tasks(run: BackgroundObserver) -> None:
    """Have this run observe the background tasks that begin in this context."""
    _observer.set(ref(run))


def watch_background_tasks() -> None:
    """Have runs observe the background tasks of Starlette, if the app has imported it."""
    background = sys.modules.get("starlette.background")
    if background is not None:
        for kind in (background.BackgroundTask, background.BackgroundTasks):
            if kind not in _watched:
                _watched.add(kind)
                _watch(kind)


def _watch(kind: Any) -> None:
    begin = kind.__call__

    @functools.wraps(begin)
    async def observed(self: Any) -> None:
        found = _observer.get()
        run = found() if found is not None else None
        if run is not None:
            await run.before_background(sys._getframe(1))
        await begin(self)

    kind.__call__ = observed
