"""How a handler is called under an attempt, in threads and in tasks alike.

`HandlerCall` knows which arguments the handler takes and counts its tries. The drivers of
delivery_flow.py are in blocking/ and aio/.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

from oncekey.core.errors import ConfigurationError
from oncekey.queues.consumer_settings import ConsumerPlan
from oncekey.queues.delivery_flow import HandlerRaised, check_tries, raised
from oncekey.queues.queue_message import Message
from oncekey.queues.work_in_hand import Entry

# With an inbox, a message does not run again after this many deliveries for each of its tries.
DELIVERIES_PER_TRY: Final = 10
_MARK: Final = "try:"  # and the number of its attempt, as the name of a step
# So many tries leave a mark behind: an operation has no more than STEPS_MAX steps in all. From then
# on every attempt counts as a try.
MARKS_MAX: Final = 20
_OPTIONAL: Final = ("attempt", "connection")


class HandlerCall:
    """A user's handler: `handler(message)`. A parameter named `attempt` is given the attempt, one
    named `connection` that of the inbox's transaction."""

    def __init__(
        self, handler: Callable[..., Any], *, is_async: bool, in_transaction: bool
    ) -> None:
        if not callable(handler):
            raise ConfigurationError(
                f"handler must be a function, not {handler!r}; it comes before the queue"
            )
        called = _called(handler)
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise ConfigurationError("handler is a generator; give a function of the message")
        name = getattr(handler, "__name__", handler)
        if inspect.iscoroutinefunction(called) is not is_async:
            raise ConfigurationError(
                f"handler {name!r} is a plain function; an async consumer, over AsyncOnce, takes "
                "an async one"
                if is_async
                else f"handler {name!r} is async; take the async consumer, over AsyncOnce"
            )
        wanted = _wanted(handler, name)
        if "connection" in wanted and not in_transaction:
            raise ConfigurationError(
                "handler takes a connection, which only a consumer with inbox= has"
            )
        self.handler = handler
        self._wants_attempt = "attempt" in wanted
        self._wants_connection = "connection" in wanted
        self._in_transaction = in_transaction

    def __call__(self, message: Message, attempt: Any) -> Any:
        """Call the handler; gives an awaitable if it is async."""
        keywords = {}
        if self._wants_attempt:
            keywords["attempt"] = attempt
        if self._wants_connection:
            keywords["connection"] = attempt.connection
        return self.handler(message, **keywords)

    def begin(self, entry: Entry, attempt: Any, tries_before: int, plan: ConsumerPlan) -> int:
        """The number of this try; raises TooManyTries if it is one too many.

        Not every attempt is a try: a key that was claimed ahead may have been given back, or lost
        with its consumer, before its handler began. So each try but the first leaves a step behind
        (`mark_of`), and those are counted; if a single try is allowed, the first one does too. In a
        transaction a failed try leaves nothing behind, so there the broker's own count is taken. It
        also counts deliveries that found the key held or no connection free, so it is no reason to
        give a message up that has not run, unless it is very high.
        """
        entry.attempt, entry.key = attempt, attempt.key
        if self._in_transaction:
            tries = max(1, entry.message.receive_count)
            check_tries(tries, plan, DELIVERIES_PER_TRY)
            return tries
        if attempt.number <= tries_before + 1:
            tries = 1
        else:
            unmarked = 0 if plan.settings.max_tries == 1 else 1  # the first try
            marks = _marks(attempt)
            counted = [number for number in marks if number > tries_before]
            tries = 1 + unmarked + len(counted)
            if len(marks) >= MARKS_MAX:
                tries += attempt.number - 1 - max([tries_before + unmarked, *counted])
        check_tries(tries, plan)
        return tries

    def mark_of(self, attempt: Any, tries: int, plan: ConsumerPlan) -> str | None:
        """The name of the step that says that this try has begun; None if it needs none."""
        is_unmarked = tries == 1 and plan.settings.max_tries > 1
        if is_unmarked or self._in_transaction or len(_marks(attempt)) >= MARKS_MAX:
            return None
        return f"{_MARK}{attempt.number}"

    def error(self, error: Exception, tries: int, plan: ConsumerPlan) -> Exception:
        return raised(error, tries, plan)


def result_of(error: Exception, entry: Entry) -> Exception | HandlerRaised:
    """The result of an effect that ended with this error, for the flow of a delivery."""
    return HandlerRaised(error) if error is entry.raised else error


def _marks(attempt: Any) -> list[int]:
    """The numbers of the attempts that have left a mark, of earlier generations too."""
    return [number for step in attempt._grant.steps if (number := _number(step.name))]


def _number(step: str) -> int:
    """The number of the attempt that began this try; 0 for a step of the user's own."""
    number = step.removeprefix(_MARK)
    return int(number) if step.startswith(_MARK) and number.isdecimal() else 0


def _wanted(handler: Callable[..., Any], name: object) -> list[str]:
    """What the handler takes beside the message. A handler that cannot be called is refused now:
    else each message would be a dead letter."""
    try:
        signature = inspect.signature(handler)
    except ValueError:  # some functions of C do not tell
        return []
    wanted = [each for each in _OPTIONAL if each in signature.parameters]
    try:
        signature.bind(None, **dict.fromkeys(wanted))
    except TypeError as error:
        raise ConfigurationError(
            f"handler {name!r} takes {signature}; it is called with the message, then `attempt` "
            f"and `connection` by name if it has parameters of these names: {error}"
        ) from error
    return wanted


def _called(handler: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a call of the handler ends in: inside of partials, and of objects that can
    be called."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if inspect.isroutine(handler) or inspect.isclass(handler):
        return handler
    return handler if inspect.iscoroutinefunction(handler) else type(handler).__call__
