"""`idempotent_task`: a Celery task that runs at most once per key, however often it is delivered.

Celery delivers a task again when its worker was lost and, on brokers with a visibility timeout,
also while it is still running or waiting for its ETA. What the guard does with each outcome:

    how the attempt ended                 in Celery's terms
    ------------------------------------- -------------------------------------------------------
    finished                              the value is returned
    replayed, for another task id         the stored value is returned: that task has a result too
    replayed, for a task id that has its  Ignore: nothing is stored, sent or counted a second time
    result already
    in flight elsewhere                   a copy is sent for later, then Ignore: the
                                          running task's result and its chord are not touched
    the task asked for a retry            the key is free again, Retry goes on
    failed before, and moved back from    the key is free again, once, and the task runs
    a dead-letter queue
    failed for good, mismatch, unknown    raised: the task fails (with acks_on_failure=False its
                                          message goes to the dead-letter exchange)
    the store did not answer              the worker waits, then sends a copy and raises Ignore

Ignore alone would lose a task whose worker dies later, for it acknowledges the message; Reject with
requeue delivers it again at once, and for ever. A copy has the same task id, and each one is sent
under a key of its own: duplicates of a message never send more than one, so copies do not multiply.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, TypeVar

from celery import Task, states
from celery._state import _get_active_apps, connect_on_app_finalize
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject, Retry
from celery.local import PromiseProxy, Proxy

from oncekey.core.errors import (
    ConfigurationError,
    InFlight,
    LeaseLost,
    NotReplayable,
    NotStarted,
    OncekeyError,
    OperationFailed,
    StoreUnavailable,
)
from oncekey.core.policy import Policy
from oncekey.engine.blocking.once import Once
from oncekey.engine.context import current_attempt
from oncekey.engine.results import Result
from oncekey.queues.disposition import describe
from oncekey.queues.redrive import REDRIVE_HEADER
from oncekey.queues.task_guard import (
    ARGUMENTS,
    STORE_PAUSE_S,
    TaskGuard,
    TaskKey,
    TaskRequest,
    TaskScope,
    put_off_s,
)

T = TypeVar("T")
# A copy waits in a worker's memory, unacknowledged: shorter than any broker's time limit for that.
PUT_OFF_MAX_S: Final = 300.0
# The operation under which a copy is sent, for the tasks of all names.
PUT_OFF_OPERATION: Final = "celery put off"
# How long a duplicate waits for another worker that sends the same copy.
PUT_OFF_WAIT: Final = "5s"
# A worker that has just stored an outcome stores its task's result a moment later.
RESULT_GRACE_S: Final = 3.0
# The visibility timeouts that these transports have if none is set.
VISIBILITY_DEFAULTS_S: Final = {"redis": 3_600.0, "rediss": 3_600.0, "sqs": 1_800.0}
_log = logging.getLogger("oncekey")
_PUT_OFF: Final = "oncekey_put_off"
_AWAITED: Final = "oncekey_awaited"


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
                codec_of=once._jobs.codec_of,
                options=options,
            )
            _check(real, guard, once.policy_for(guard.operation, options))
        except ConfigurationError as error:
            # An app that survives the error must not run the task without its guard.
            real.run = _refusal(error)
            raise
        real.run = _replacement(real.run, GuardedTask(once, real, guard))

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


def _replacement(run: Callable[..., Any], guarded: GuardedTask) -> Callable[..., Any]:
    @functools.wraps(run)
    def guarded_run(*args: Any, **kwargs: Any) -> Any:
        return guarded(*args, **kwargs)

    return guarded_run


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


def visibility_timeout_s(app: Any) -> float | None:
    """After how many seconds the broker of this app delivers an unacknowledged task again; None
    if it waits for the worker's connection to end."""
    transport = (app.conf.broker_url or "").partition("://")[0].partition("+")[0]
    given = (app.conf.broker_transport_options or {}).get("visibility_timeout")
    if transport not in VISIBILITY_DEFAULTS_S:
        return None
    return float(given) if given is not None else VISIBILITY_DEFAULTS_S[transport]


class _AskedAgain(NotStarted):
    """The task asked Celery to run it again, so its key must be free."""

    def __init__(self, signal: Exception) -> None:
        super().__init__(str(signal))
        self.signal = signal


class GuardedTask:
    """A task's `run` under its guard. It stands around autoretry_for, which wraps `run` too."""

    def __init__(self, once: Once, task: Any, guard: TaskGuard) -> None:
        self._once = once
        self._task = task
        self._guard = guard
        self._run = task.run
        visibility = visibility_timeout_s(task.app)
        # Half of it, so that the broker does not deliver a waiting copy a second time.
        self._longest = min(PUT_OFF_MAX_S, visibility / 2 if visibility else PUT_OFF_MAX_S)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        request = self._task.request
        try:
            if request.called_directly or request.is_eager or current_attempt() is not None:
                # There is no message: the caller gets the value or the error itself. A task that
                # calls itself finds its own message's request here, but is not that message.
                return self._attempt(args, kwargs, request.id).value
            return self._worker_call(request, args, kwargs)
        except _AskedAgain as again:
            raise again.signal from None

    def _attempt(self, args: tuple[Any, ...], kwargs: dict[str, Any], id: str) -> Result[Any]:
        def body(attempt: object) -> Any:
            try:
                return self._run(*args, **kwargs)
            except Retry as signal:
                raise _AskedAgain(signal) from signal
            except Reject as signal:
                if signal.requeue:
                    raise _AskedAgain(signal) from signal
                raise

        result: Result[Any] = self._guard.run(self._once.run, body, args, kwargs, id)
        return result

    def _worker_call(self, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scope = self._guard.scope_of(args, kwargs)
        try:
            redrive = _redrive_id(request.headers or {})
            if redrive:
                self._guard.open_redriven(self._once, args, kwargs, request.id, redrive)
            result = self._attempt(args, kwargs, request.id)
        except InFlight as error:
            self._put_off(request, scope, error.retry_after, "it runs elsewhere")
        except LeaseLost:
            self._put_off(request, scope, 0.0, "it was overtaken")
        except StoreUnavailable as error:
            self._give_back(request, error)
        except (OperationFailed, NotReplayable) as error:
            self._end_like_the_first_run(request, scope, error)
            raise
        if result.replayed and not _ignores_result(self._task, request):
            self._skip_or_await(request, scope, result.value)
        return result.value

    def _end_like_the_first_run(self, request: Any, scope: str, error: OncekeyError) -> None:
        """Raise Ignore or Reject for a task whose failure is told already. Returns if it is not."""
        kind = error.error_type if isinstance(error, OperationFailed) else ""
        if kind == Ignore.__name__:
            raise Ignore("the first run has ended by Ignore") from error
        if kind == Reject.__name__:
            raise Reject("the first run has ended by Reject") from error
        if self._has_result(request, scope):
            if not self._task.acks_on_failure_or_timeout:
                # The worker may have died between the result and the dead letter.
                raise Reject("its failure is known already") from error
            raise Ignore("its failure is known already") from error

    def _skip_or_await(self, request: Any, scope: str, value: Any) -> None:
        """Raise Ignore for a task that has its result already, or is about to get it from the
        worker that ran it. Returns if that worker must have died in between."""
        if self._has_result(request, scope):
            if request.chord and _counts_parts_by_id(self._task.backend):
                # The worker may have died between the result and the chord.
                self._task.backend.on_chord_part_return(request, states.SUCCESS, value)
            raise Ignore("it has run, and its result is stored")
        if _came_before(request) and not request.get(_AWAITED):
            self._put_off(request, scope, RESULT_GRACE_S, "its result is about to be stored", True)

    def _has_result(self, request: Any, scope: str) -> bool:
        """True if the result backend has the end of this very task. It may also be that of a task
        that was sent twice under one id, so no flag of the delivery is asked first."""
        backend = self._task.backend
        if not backend.persistent or isinstance(backend, DisabledBackend):
            return False
        try:
            state: str = backend.get_state(request.id)
        except Exception as error:  # whatever the backend's client raises
            why = f"its result cannot be read ({describe(error)})"
            self._put_off(request, scope, RESULT_GRACE_S, why)
        return state in (states.SUCCESS, states.FAILURE)

    def _put_off(
        self, request: Any, scope: str, seconds: float, why: str, awaited: bool = False
    ) -> NoReturn:
        """Send the task once more, for later, and end this delivery of it without a trace."""
        number = int(request.get(_PUT_OFF) or 0)
        delay = put_off_s(number, seconds, self._longest)
        # A task id may be any text, a key may not.
        named = f"{self._guard.operation}:{request.id}:{request.retries}:{number}"
        key = hashlib.blake2b(named.encode(), digest_size=16).hexdigest()

        def send(attempt: object) -> None:
            self._send_copy(request, delay, number + 1, awaited)

        try:
            # Duplicates of this delivery find the key finished and send nothing.
            self._once.run(
                PUT_OFF_OPERATION,
                key,
                send,
                scope=scope,
                retry_safe=True,
                wait=PUT_OFF_WAIT,
            )
        except StoreUnavailable as error:
            self._give_back(request, error)
        except Exception as error:  # the broker's, or another worker still sends that copy
            raise Reject(error, requeue=True) from error
        raise Ignore(f"{why}; it comes again in {delay:g} s")

    def _give_back(self, request: Any, error: StoreUnavailable) -> NoReturn:
        """Wait, then put the task at the end of its queue: nothing is lost, and the queue is not
        emptied into the workers' memory while the store is away."""
        time.sleep(min(STORE_PAUSE_S, self._longest))
        try:
            self._send_copy(request, None, int(request.get(_PUT_OFF) or 0), False)
        except Exception as failure:  # whatever the broker's client raises
            raise Reject(failure, requeue=True) from failure
        raise Ignore(f"it comes again: {error}")

    def _send_copy(self, request: Any, delay: float | None, number: int, awaited: bool) -> None:
        headers = {**(request.headers or {}), _PUT_OFF: number}
        if awaited:
            headers[_AWAITED] = 1
        copy = self._task.signature_from_request(
            request, countdown=delay, retries=request.retries, headers=headers
        )
        copy.apply_async(add_to_parent=False)


def _redrive_id(headers: Mapping[str, Any]) -> str:
    """The id of a task that was moved back from a dead-letter queue, "" for any other: that of the
    header, or RabbitMQ's own account of how the message became a dead letter."""
    given = headers.get(REDRIVE_HEADER)
    if given:
        return str(given)
    deaths = headers.get("x-death") or []
    for death in deaths:
        if death.get("reason") in ("rejected", "delivery_limit"):
            return f"x-death {death.get('queue')} {death.get('count')} {death.get('time')}"
    return ""


def _came_before(request: Any) -> bool:
    """True if this delivery of a task need not be its first: its result may be stored already."""
    delivered = request.delivery_info or {}
    return bool(delivered.get("redelivered") or request.retries or request.get(_PUT_OFF))


def _ignores_result(task: Any, request: Any) -> bool:
    is_disabled = isinstance(task.backend, DisabledBackend)
    return bool(is_disabled or task.ignore_result or request.ignore_result)


def _counts_parts_by_id(backend: Any) -> bool:
    """True if the result backend counts a chord's part once, however often it is told: Redis'."""
    return any(base.__module__ == "celery.backends.redis" for base in type(backend).__mro__)
