"""`idempotent_task`: a Taskiq task that runs at most once per key, however often it is delivered.

Taskiq's middlewares cannot keep a task from running, so the guard wraps its function. What it does
with each outcome:

    how the attempt ended             in Taskiq's terms
    --------------------------------- -----------------------------------------------------------
    finished, or replayed             the value is returned
    in flight elsewhere               waits for a part of that lease, sends the message again and
                                      raises NoResultError: the running task's result stays alone
    the task raised, the key is free  the error goes on: a retry middleware sends it again, or not
    failed for good, mismatch,        raised: the error is the task's result
    unknown, no key
    the store did not answer          waits, sends the message again, NoResultError

Taskiq has no delay that every broker knows, so the wait is in the worker, in a place of its own.

Taskiq ends the dependencies of a task after its function, and a session may commit there. So the
guard injects them itself, with Taskiq's own graph: they are opened when the attempt begins, and its
outcome is stored when they have ended. A replay opens none.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar

from taskiq import (
    AsyncTaskiqDecoratedTask,
    Context,
    TaskiqDepends,
    TaskiqMessage,
    TaskiqState,
)
from taskiq.acks import AcknowledgeType, parse_acknowledge_type
from taskiq.brokers.shared_broker import AsyncSharedBroker
from taskiq.exceptions import NoResultError
from taskiq_dependencies import DependencyGraph

from oncekey.core.errors import (
    ConfigurationError,
    InFlight,
    LeaseLost,
    NotStarted,
    StoreUnavailable,
)
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.attempts.async_attempt import AsyncAttempt
from oncekey.engine.attempts.kept_steps import late_part
from oncekey.engine.port import AsyncPort
from oncekey.queues.task_guard import (
    ARGUMENTS,
    STORE_PAUSE_S,
    TaskGuard,
    TaskKey,
    TaskRequest,
    TaskScope,
    put_off_s,
    warn_of_late_commits,
)

T = TypeVar("T", bound="AsyncTaskiqDecoratedTask[Any, Any]")
# How long a message whose task runs elsewhere waits in a worker before it is sent again.
PUT_OFF_MAX_S: Final = 30.0
_PUT_OFFS: Final = "oncekey_put_offs"
_ACK_TYPE: Final = "ack_type"
_TIME_LIMIT: Final = "timeout"  # of one run, in seconds
# The parameter by which a guarded function gets Taskiq's context of its message.
_CONTEXT: Final = "oncekey_context"


class _NotInjected(NotStarted):
    """A dependency of the task could not be opened, so the task has not begun."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def idempotent_task(
    once: AsyncOnce,
    *,
    key: TaskKey,
    operation: str | None = None,
    scope: TaskScope = "",
    request: TaskRequest = ARGUMENTS,
    codec: Any = None,
    **options: Any,
) -> Callable[[T], T]:
    """Guard an async Taskiq task; stands above `@broker.task`.

        @idempotent_task(once, key=lambda order_id: order_id)
        @broker.task
        async def ship(order_id: int): ...

    `key`, `scope` and `request` are functions of the arguments that were sent, without those that
    Taskiq injects; `options` are fields of Policy. What it depends on is opened for a run and ends
    before its outcome is stored, so a session may commit after its `yield`. Its messages are
    acknowledged when the result is saved, also where the worker's own setting is another one.
    """
    if not isinstance(once, AsyncOnce):
        raise ConfigurationError(f"idempotent_task needs an AsyncOnce, not a {type(once).__name__}")

    def decorate(task: T) -> T:
        if not isinstance(task, AsyncTaskiqDecoratedTask):
            raise ConfigurationError(
                f"idempotent_task was given {task!r}, which is no Taskiq task; put it above "
                "@broker.task, not below it"
            )
        _prepare(task)
        guard = TaskGuard(
            task.original_func,
            operation or task.task_name,
            key=key,
            scope=scope,
            request=request,
            codec=codec,
            codec_of=AsyncPort(once).codec_of,
            options=options,
        )
        once.policy_for(guard.operation, options)
        task.original_func = _guarded(once, task, guard)
        return task

    return decorate


def _prepare(task: AsyncTaskiqDecoratedTask[Any, Any]) -> None:
    name = task.task_name
    if not inspect.iscoroutinefunction(task.original_func):
        raise ConfigurationError(
            f"task {name!r} is not async; make it `async def` and call what blocks by "
            "asyncio.to_thread"
        )
    if isinstance(task.broker, AsyncSharedBroker):
        raise ConfigurationError(
            f"task {name!r} belongs to a shared broker, which receives nothing itself; guard a "
            "task of the broker that the worker runs"
        )
    given = task.labels.get(_ACK_TYPE, AcknowledgeType.WHEN_SAVED)
    if parse_acknowledge_type(given) not in (
        AcknowledgeType.WHEN_SAVED,
        AcknowledgeType.WHEN_EXECUTED,
    ):
        raise ConfigurationError(
            f"task {name!r}: with ack_type={given!r} its message can be lost with its worker; use "
            "'when_saved' or 'when_executed'"
        )
    task.labels.setdefault(_ACK_TYPE, AcknowledgeType.WHEN_SAVED.value)


class InjectedFunction:
    """A task's function, and the arguments of it that Taskiq injects."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        graph = DependencyGraph(function)
        injected = {
            needed.param_name
            for user, all_needed in graph.dependencies.items()
            if user.dependency is function
            for needed in all_needed
        }
        self.signature = _with_context(inspect.signature(function, eval_str=True), injected)
        self._graph: DependencyGraph | None = None

    async def call(
        self,
        attempt: AsyncAttempt,
        context: Context,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Open what the function depends on, call it, and end what was opened."""
        if self._graph is None:
            # Made anew for the first message, as Taskiq does: everything is defined by now.
            self._graph = DependencyGraph(self.function)
        broker = context.broker
        known = {
            **broker.custom_dependency_context,
            Context: context,
            TaskiqState: broker.state,
        }
        opened = self._graph.async_ctx(known, broker.dependency_overrides or None)
        has_begun = False
        try:
            injected = await opened.resolve_kwargs()
            has_begun = True
            value = await self.function(*args, **{**injected, **kwargs})
        except BaseException as error:
            await opened.close(type(error), error, error.__traceback__)
            if has_begun or not isinstance(error, Exception):
                raise
            raise _NotInjected(error) from error
        with late_part(attempt):
            await opened.close(None, None, None)
        return value


def _with_context(signature: inspect.Signature, injected: set[str]) -> inspect.Signature:
    """A function's signature for Taskiq, which is to inject the context alone."""
    context = inspect.Parameter(
        _CONTEXT, inspect.Parameter.KEYWORD_ONLY, default=TaskiqDepends(Context)
    )
    kept = [each for each in signature.parameters.values() if each.name not in injected]
    has_rest = bool(kept) and kept[-1].kind is inspect.Parameter.VAR_KEYWORD
    kept.insert(len(kept) - has_rest, context)
    return signature.replace(parameters=kept)


def _guarded(
    once: AsyncOnce, task: AsyncTaskiqDecoratedTask[Any, Any], guard: TaskGuard
) -> Callable[..., Any]:
    injected = InjectedFunction(task.original_func)
    is_checked = False

    @functools.wraps(injected.function)
    async def guarded_function(*args: Any, **kwargs: Any) -> Any:
        context: Context | None = kwargs.pop(_CONTEXT, None)
        if context is None:  # it was called as a function, with whatever it depends on
            result = await guard.run(
                once.run, lambda attempt: injected.function(*args, **kwargs), args, kwargs, None
            )
            return result.value
        message = context.message
        nonlocal is_checked
        if not is_checked:  # middlewares may be added after the task
            is_checked = True
            hooks = (
                getattr(each, name)
                for each in task.broker.middlewares
                for name in ("post_execute", "post_save")
            )
            warn_of_late_commits(guard.operation, hooks)

        async def body(attempt: AsyncAttempt) -> Any:
            return await injected.call(attempt, context, args, kwargs)

        try:
            sent = tuple(message.args), message.kwargs
            result = await guard.run(once.run, body, *sent, message.task_id)
        except _NotInjected as failure:
            raise failure.error from None
        except (InFlight, LeaseLost, StoreUnavailable) as error:
            await _send_again(task, message, error)
        return result.value

    guarded_function.__signature__ = injected.signature  # type: ignore[attr-defined]
    return guarded_function


async def _send_again(
    task: AsyncTaskiqDecoratedTask[Any, Any], message: TaskiqMessage, error: Exception
) -> NoReturn:
    """Wait, send the message once more, and end this delivery without a result. If sending fails
    the error is not NoResultError, so it becomes the task's result and does not go unseen."""
    number = int(message.labels.get(_PUT_OFFS, 0))
    left = error.retry_after if isinstance(error, InFlight) else 0.0
    is_away = isinstance(error, StoreUnavailable)
    pause = STORE_PAUSE_S if is_away else put_off_s(number, left, PUT_OFF_MAX_S)
    limit = message.labels.get(_TIME_LIMIT)
    # A task that runs into its own time limit here would fail, and its message would be gone.
    await asyncio.sleep(pause if limit is None else min(pause, float(limit) / 2))
    message.labels[_PUT_OFFS] = str(number + 1)
    await task.broker.kick(task.broker.formatter.dumps(message))
    raise NoResultError from error
