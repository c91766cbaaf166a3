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
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar

from taskiq import AsyncTaskiqDecoratedTask, TaskiqMessage, TaskiqMiddleware
from taskiq.acks import AcknowledgeType, parse_acknowledge_type
from taskiq.brokers.shared_broker import AsyncSharedBroker
from taskiq.exceptions import NoResultError

from oncekey.core.errors import ConfigurationError, InFlight, LeaseLost, StoreUnavailable
from oncekey.engine.aio.once import AsyncOnce
from oncekey.queues.task_guard import (
    ARGUMENTS,
    STORE_PAUSE_S,
    TaskGuard,
    TaskKey,
    TaskRequest,
    TaskScope,
    put_off_s,
)

T = TypeVar("T", bound="AsyncTaskiqDecoratedTask[Any, Any]")
# How long a message whose task runs elsewhere waits in a worker before it is sent again.
PUT_OFF_MAX_S: Final = 30.0
_PUT_OFFS: Final = "oncekey_put_offs"
_ACK_TYPE: Final = "ack_type"
_TIME_LIMIT: Final = "timeout"  # of one run, in seconds
_message: contextvars.ContextVar[TaskiqMessage | None] = contextvars.ContextVar(
    "oncekey_taskiq_message", default=None
)


class IdempotencyMiddleware(TaskiqMiddleware):
    """Tells guarded tasks which message they run for. `idempotent_task` adds it to the broker."""

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        _message.set(message)
        return message


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
    Taskiq injects; `options` are fields of Policy. Its messages are acknowledged when the result is
    saved, also where the worker's own setting is another one.
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
            codec_of=once._jobs.codec_of,
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
    if not any(isinstance(each, IdempotencyMiddleware) for each in task.broker.middlewares):
        task.broker.add_middlewares(IdempotencyMiddleware())


def _guarded(
    once: AsyncOnce, task: AsyncTaskiqDecoratedTask[Any, Any], guard: TaskGuard
) -> Callable[..., Any]:
    function = task.original_func

    @functools.wraps(function)
    async def guarded_function(*args: Any, **kwargs: Any) -> Any:
        message = _message.get()
        _message.set(None)  # whatever is called from here on has no message
        is_own = message is not None and message.task_name == task.task_name
        sent = (tuple(message.args), message.kwargs) if message and is_own else (args, kwargs)

        async def body(attempt: object) -> Any:
            return await function(*args, **kwargs)

        id = message.task_id if message and is_own else None
        try:
            result = await guard.run(once.run, body, *sent, id)
        except (InFlight, LeaseLost, StoreUnavailable) as error:
            if message is None or not is_own:
                raise
            await _send_again(task, message, error)
        return result.value

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
