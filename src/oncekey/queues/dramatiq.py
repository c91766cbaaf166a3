"""`idempotent_actor`: a Dramatiq actor that runs at most once per key, however often it comes.

Dramatiq logs errors of its middlewares' hooks and goes on, so a guard in a hook would fail open.
This one wraps the actor's function. What it does with each outcome:

    how the attempt ended             in Dramatiq's terms
    --------------------------------- -----------------------------------------------------------
    finished, or replayed             the value is returned
    in flight elsewhere               Retry later, which does not count against max_retries
    the actor raised, the key is free the error goes on: Retries sends the message again, or not
    failed for good, mismatch,        an error that Retries does not retry: the message goes to the
    unknown, no key                   dead-letter queue
    the store did not answer          the worker waits, then Retry, which does not count either
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar

from dramatiq import Actor, RateLimitExceeded, Retry
from dramatiq.middleware import CurrentMessage, Retries

from oncekey.core.errors import (
    ConfigurationError,
    InFlight,
    InvalidKey,
    LeaseLost,
    Mismatch,
    NotReplayable,
    NotStarted,
    OncekeyError,
    OperationFailed,
    OutcomeUnknown,
    StoreUnavailable,
    Terminal,
)
from oncekey.engine.once import Once
from oncekey.engine.port import Port
from oncekey.queues.redrive import REDRIVE_HEADER
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

A = TypeVar("A", bound="Actor[Any, Any]")
# A delayed message waits in a worker's memory, so no longer than this at a time.
PUT_OFF_MAX_S: Final = 300.0
_PUT_OFFS: Final = "oncekey_put_offs"
_FINAL: Final = (OperationFailed, Mismatch, OutcomeUnknown, NotReplayable, InvalidKey)


class _PutOff(Retry):
    """Another worker holds the key, or the store is away: try later, and do not count it."""


class _AskedAgain(NotStarted):
    """The actor asked to be run again, so its key must be free."""

    def __init__(self, signal: Exception) -> None:
        super().__init__(str(signal))
        self.signal = signal


def idempotent_actor(
    once: Once,
    *,
    key: TaskKey,
    operation: str | None = None,
    scope: TaskScope = "",
    request: TaskRequest = ARGUMENTS,
    codec: Any = None,
    **options: Any,
) -> Callable[[A], A]:
    """Guard a Dramatiq actor; stands above `@dramatiq.actor`.

        @idempotent_actor(once, key=lambda order_id: order_id)
        @dramatiq.actor(max_retries=5)
        def ship(order_id): ...

    `key`, `scope` and `request` are functions of the actor's arguments; `options` are fields of
    Policy. Without `retry_safe=True` an error of the actor is final: Dramatiq does not retry it.
    """
    if not isinstance(once, Once):
        raise ConfigurationError(
            f"idempotent_actor needs a Once, not a {type(once).__name__}: actors are run in threads"
        )

    def decorate(actor: A) -> A:
        if not isinstance(actor, Actor):
            raise ConfigurationError(
                f"idempotent_actor was given {actor!r}, which is no actor; put it above "
                "@dramatiq.actor, not below it"
            )
        guard = TaskGuard(
            actor.fn,
            operation or actor.actor_name,
            key=key,
            scope=scope,
            request=request,
            codec=codec,
            codec_of=Port(once).codec_of,
            options=options,
        )
        policy = once.policy_for(guard.operation, options)
        _prepare(actor)
        guarded = GuardedActor(once, actor, guard, retry_safe=policy.retry_safe)
        function = actor.fn

        @functools.wraps(function)
        def guarded_function(*args: Any, **kwargs: Any) -> Any:
            return guarded(*args, **kwargs)

        actor.fn = guarded_function
        return actor

    return decorate


def _prepare(actor: Actor[Any, Any]) -> None:
    """Have Dramatiq retry what may be retried, and nothing else."""
    broker = actor.broker
    if type(actor).__call__ is not Actor.__call__:
        raise ConfigurationError(
            f"actor {actor.actor_name!r}: {type(actor).__qualname__}.__call__ runs around the "
            "guard. If it commits after the actor, the outcome is stored already. Make a decorator "
            "of it, and put that below @dramatiq.actor"
        )
    if not any(isinstance(each, Retries) for each in broker.middleware):
        raise ConfigurationError(
            f"actor {actor.actor_name!r}: without the middleware Retries a message whose actor "
            "raised counts as done; add it to the broker"
        )
    if not any(isinstance(each, CurrentMessage) for each in broker.middleware):
        broker.add_middleware(CurrentMessage())
    throws = actor.options.get("throws") or ()
    actor.options["throws"] = (*(throws if isinstance(throws, tuple) else (throws,)), *_FINAL)
    retry_when = actor.options.get("retry_when")
    if retry_when is not None:
        actor.options["retry_when"] = lambda retries, error: (
            isinstance(error, _PutOff) or retry_when(retries, error)
        )


class GuardedActor:
    """An actor's function under its guard."""

    def __init__(
        self, once: Once, actor: Actor[Any, Any], guard: TaskGuard, *, retry_safe: bool
    ) -> None:
        self._once = once
        self._actor = actor
        self._guard = guard
        self._function = actor.fn
        self._retry_safe = retry_safe
        self._is_checked = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        message = self._message_of(args, kwargs)
        if message is not None and not self._is_checked:  # middlewares may be added after actors
            self._is_checked = True
            hooks = (each.after_process_message for each in self._actor.broker.middleware)
            warn_of_late_commits(self._guard.operation, hooks)
        id = message.message_id if message is not None else None
        try:
            if message is not None and message.options.get(REDRIVE_HEADER):
                redrive = str(message.options[REDRIVE_HEADER])
                self._guard.open_redriven(self._once, args, kwargs, id, redrive)
            return self._run(args, kwargs, id)
        except _AskedAgain as again:
            raise again.signal from None
        except OncekeyError as error:
            if message is None:  # called directly: the caller gets the error itself
                raise
            if isinstance(error, StoreUnavailable):
                time.sleep(STORE_PAUSE_S)
                _put_off(message, 0.0, error)
            if isinstance(error, InFlight):
                _put_off(message, error.retry_after, error)
            if isinstance(error, LeaseLost):
                _put_off(message, 0.0, error)
            raise
        except Exception as error:
            if message is None or not self._is_final(error):
                raise
            raise OperationFailed(
                f"the actor failed with {type(error).__name__}: {error}. It is not run again",
                error_type=type(error).__name__,
                error_message=str(error),
            ) from error

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], id: str | None) -> Any:
        def body(attempt: object) -> Any:
            try:
                return self._function(*args, **kwargs)
            except (Retry, RateLimitExceeded) as signal:
                raise _AskedAgain(signal) from signal

        return self._guard.run(self._once.run, body, args, kwargs, id).value

    def _is_final(self, error: Exception) -> bool:
        """True if this error of the actor was stored as the key's outcome."""
        if isinstance(error, Terminal):
            return True
        return not self._retry_safe and not isinstance(error, NotStarted)

    def _message_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The message that this call is for; None if the actor was called as a function, perhaps
        by another actor, whose message is then the current one."""
        message = CurrentMessage.get_current_message()
        if message is None or message.actor_name != self._actor.actor_name:
            return None
        is_own = tuple(message.args) == args and message.kwargs == kwargs
        return message if is_own else None


def _put_off(message: Any, seconds: float, error: Exception) -> NoReturn:
    # Retries adds one to this count when it sends the message again.
    message.options["retries"] = message.options.get("retries", 0) - 1
    number = message.options.get(_PUT_OFFS, 0)
    message.options[_PUT_OFFS] = number + 1
    delay = put_off_s(number, seconds, PUT_OFF_MAX_S)
    raise _PutOff(str(error), delay=int(delay * 1_000)) from error
