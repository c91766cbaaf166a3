"""How a handler is called under an attempt, in threads and in tasks alike.

`HandlerCall` knows which arguments the handler takes and counts its tries. The drivers of
delivery_flow.py are in blocking/ and aio/.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from oncekey.core.errors import ConfigurationError
from oncekey.queues.consumer_settings import ConsumerPlan
from oncekey.queues.delivery_flow import check_tries, raised
from oncekey.queues.queue_message import Message
from oncekey.queues.work_in_hand import Entry

_OPTIONAL: Final = ("attempt", "connection")


class HandlerCall:
    """A user's handler: `handler(message)`. A parameter named `attempt` is given the attempt, one
    named `connection` that of the inbox's transaction."""

    def __init__(
        self, handler: Callable[..., Any], *, is_async: bool, in_transaction: bool
    ) -> None:
        if not callable(handler):
            raise ConfigurationError(f"handler must be a function, not {handler!r}")
        if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
            raise ConfigurationError("handler is a generator; give a function of the message")
        if _is_async(handler) is not is_async:
            kind, right = ("plain", "Once") if is_async else ("async", "AsyncOnce")
            raise ConfigurationError(
                f"handler {getattr(handler, '__name__', handler)!r} is {kind}; consume with {right}"
            )
        parameters = inspect.signature(handler).parameters
        wanted = [name for name in _OPTIONAL if name in parameters]
        if "connection" in wanted and not in_transaction:
            raise ConfigurationError(
                "handler takes a connection, which only a consumer with inbox= has"
            )
        self._handler = handler
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
        return self._handler(message, **keywords)

    def begin(self, entry: Entry, attempt: Any, tries_before: int, plan: ConsumerPlan) -> int:
        """The number of this try; raises TooManyTries if it is one too many. In a transaction a
        failed try leaves nothing behind, so there the broker's own count is taken."""
        entry.attempt = attempt
        tries: int = attempt.number - tries_before
        if self._in_transaction:
            tries = max(tries, entry.message.receive_count)
        check_tries(tries, plan)
        return tries

    def error(self, error: Exception, tries: int, plan: ConsumerPlan) -> Exception:
        return raised(error, tries, plan)


def _is_async(fn: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)
