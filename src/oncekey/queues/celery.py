"""`idempotent_task`: a Celery task that runs at most once per key, however often it is delivered.

Celery delivers a task again when its worker was lost and, on brokers with a visibility timeout,
also while it is still running or waiting for its ETA. `celery_delivery` has what becomes of each
delivery; this module puts the guard where Celery cannot go around it:

    the task                        the guard is around
    ------------------------------- -------------------------------------------------------------
    of `@app.task`                  its `run`, and so around `autoretry_for`
    whose class has a `__call__`    that `__call__`, which may end a transaction after `run`
    of `@shared_task`               the same, in every app, also those to come
    that acknowledges too early     nothing: it is refused, and does not run
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NoReturn, TypeVar

from celery import Task
from celery._state import _get_active_apps, connect_on_app_finalize
from celery.local import PromiseProxy, Proxy

from oncekey.core.errors import ConfigurationError
from oncekey.core.policy import Policy
from oncekey.engine.attempts.attempt_base import current_attempt
from oncekey.engine.attempts.kept_steps import warn_of_kept_steps
from oncekey.engine.once import Once
from oncekey.engine.port import Port
from oncekey.queues.celery_delivery import GuardedTask, visibility_timeout_s
from oncekey.queues.task_guard import (
    ARGUMENTS,
    TaskGuard,
    TaskKey,
    TaskRequest,
    TaskScope,
    warn_of_late_commits,
)

T = TypeVar("T")
_log = logging.getLogger("oncekey")


def idempotent_task(
    once: Once,
    *,
    key: TaskKey,
    operation: str | None = None,
    scope: TaskScope = "",
    request: TaskRequest = ARGUMENTS,
    codec: Any = None,
    **options: Any,
) -> Callable[[T], T]:
    """Guard a Celery task; stands above `@app.task` or `@shared_task`.

        @idempotent_task(once, key=lambda order_id: order_id)
        @app.task(acks_late=True, reject_on_worker_lost=True)
        def ship(order_id): ...

    `key`, `scope` and `request` are functions of the task's arguments; `options` are fields of
    Policy. A task that acknowledges its message before it runs is refused when its app is
    finalized."""
    if not isinstance(once, Once):
        raise ConfigurationError(
            f"idempotent_task needs a Once, not a {type(once).__name__}: tasks are plain functions"
        )

    def install(real: Any) -> None:
        try:
            guard = TaskGuard(
                real.run,
                operation or real.name,
                key=key,
                scope=scope,
                request=request,
                codec=codec,
                codec_of=Port(once).codec_of,
                options=options,
            )
            _check(real, guard, once.policy_for(guard.operation, options))
        except ConfigurationError as error:
            # An app that survives the error must not run the task without its guard.
            real.run = _refusal(error)
            raise
        _put_guard(once, real, guard)

    def decorate(task: T) -> T:
        if isinstance(task, PromiseProxy):
            # The task is made, with the app's settings, when it is needed.
            task.__then__(lambda: install(task._get_current_object()))
        elif isinstance(task, Task):
            if type(task) is Proxy:
                _for_every_app(task, install)
            else:
                install(task)
        else:
            raise ConfigurationError(
                f"idempotent_task was given {task!r}, which is no Celery task; put it above "
                "@app.task, not below it"
            )
        return task

    return decorate


def _for_every_app(shared: Any, install: Callable[[Any], None]) -> None:
    """Install the guard of a shared task, of which every app has its own, also those to come. Only
    in the current app its refusal is raised; another one may never run the task."""
    current, name = shared.app, shared.name

    def install_in(app: Any) -> None:
        try:
            install(app.tasks[name])
        except ConfigurationError as error:
            if app is current:
                raise
            _log.warning("app %r will refuse to run a task: %s", app.main, error)

    def when_finalized(app: Any) -> None:
        # Its tasks are all made by then, in an order of their own.
        app.on_after_finalize.connect(lambda **_: install_in(app), weak=False)

    connect_on_app_finalize(when_finalized)
    for app in list(_get_active_apps()):
        if app.finalized:
            install_in(app)


class _OwnCall:
    """One call of a class's own `__call__`, and whether the task's `run` within it has returned."""

    has_returned = False


def _put_guard(once: Once, task: Any, guard: TaskGuard) -> None:
    """Put the guard around the task's `run`. A class of tasks may have a `__call__` of its own, and
    end a transaction there; then the guard is around that, and `run` within it is the task's."""
    warn_of_late_commits(guard.operation, (task.on_success, task.after_return))
    run, kind = task.run, type(task)
    within: ContextVar[_OwnCall | None] = ContextVar("oncekey_celery_call", default=None)

    def call(*args: Any, **kwargs: Any) -> Any:
        own = _OwnCall()
        token = within.set(own)
        try:
            return kind.__call__(task, *args, **kwargs)
        except BaseException:
            if own.has_returned:
                warn_of_kept_steps(current_attempt())
            raise
        finally:
            within.reset(token)

    has_call = kind.__call__ is not Task.__call__
    guarded = GuardedTask(once, task, guard, call if has_call else run)

    @functools.wraps(run)
    def guarded_run(*args: Any, **kwargs: Any) -> Any:
        own = within.get()
        if own is None:
            return guarded(*args, **kwargs)
        token = within.set(None)  # what the task runs of itself has a key of its own
        own.has_returned = False
        try:
            value = run(*args, **kwargs)
            own.has_returned = True
            return value
        finally:
            within.reset(token)

    task.run = guarded_run
    if has_call:
        # Python and Celery look for `__call__` in the class, which other tasks may have too.
        own = {"__call__": lambda self, *args, **kwargs: guarded(*args, **kwargs)}
        task.__class__ = type(kind.__name__, (kind,), {**own, "__module__": kind.__module__})


def _refusal(error: ConfigurationError) -> Callable[..., Any]:
    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        raise ConfigurationError(str(error)) from error

    return refused


def _check(task: Any, guard: TaskGuard, policy: Policy) -> None:
    name = guard.operation
    for option in ("acks_late", "reject_on_worker_lost"):
        if not getattr(task, option):
            raise ConfigurationError(
                f"task {name!r}: a message that is acknowledged before its task has run is lost "
                f"with its worker. Set {option}=True at @app.task, or task_{option} = True in the "
                "app's settings"
            )
    visibility = visibility_timeout_s(task.app)
    if visibility is not None and policy.times.keep < visibility * 1_000_000:
        raise ConfigurationError(
            f"task {name!r}: keep={policy.keep!r} is shorter than the broker's visibility timeout "
            f"of {visibility:g} s, after which a task is delivered again and would run again"
        )
