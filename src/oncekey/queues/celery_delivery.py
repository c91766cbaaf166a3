"""One delivery of a guarded Celery task: what becomes of it, in Celery's terms.

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

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from celery import states
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject, Retry

from oncekey.core.errors import (
    InFlight,
    LeaseLost,
    NotReplayable,
    NotStarted,
    OncekeyError,
    OperationFailed,
    StoreUnavailable,
)
from oncekey.engine.attempts.attempt_base import current_attempt
from oncekey.engine.once import Once
from oncekey.engine.results import Result
from oncekey.queues.disposition import describe
from oncekey.queues.redrive import REDRIVE_HEADER
from oncekey.queues.task_guard import STORE_PAUSE_S, TaskGuard, put_off_s

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
_PUT_OFF: Final = "oncekey_put_off"
_AWAITED: Final = "oncekey_awaited"


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
    """A task's `run`, or `__call__`, under its guard. It stands around autoretry_for, which wraps
    `run` too."""

    def __init__(self, once: Once, task: Any, guard: TaskGuard, run: Callable[..., Any]) -> None:
        self._once = once
        self._task = task
        self._guard = guard
        self._run = run
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
