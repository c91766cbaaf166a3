"""What is done with one delivery of a message, from its key to its disposition.

A flow, like those in core/: a generator that yields effects and is sent their results, failures
included, so that threads, tasks and tests drive the same code. It never calls the handler itself.

1.  The key is read. A message without one is a dead letter: nothing runs unguarded.
2.  A message that was moved back from a dead-letter queue may open its failed key again.
3.  The handler runs under the key, or its outcome is replayed.
4.  If that ended with an error that is not clear by itself, the record is looked at.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from oncekey.core.commands import Seen
from oncekey.core.errors import InvalidKey, KeyChanged, StoreUnavailable, Terminal
from oncekey.queues.consumer_settings import ConsumerPlan
from oncekey.queues.disposition import (
    REMOVE,
    Disposition,
    backoff_s,
    by_error,
    by_record,
    dead_letter,
    describe,
    give_back,
)
from oncekey.queues.queue_message import Message
from oncekey.queues.redrive import redrive_of


class LookAtKey(NamedTuple):
    """Read the record of the key; the result is `Seen`, or StoreUnavailable."""

    key: str


class FreeKey(NamedTuple):
    """Free a failed key, as it was seen; the result is None, KeyChanged or StoreUnavailable."""

    seen: Seen
    why: str


class RunHandler(NamedTuple):
    """Run the handler under the key; the result is None, the error it ended with, or HandlerRaised
    if that is the handler's own."""

    key: str
    request: Any
    tries_before: int


class HandlerRaised(NamedTuple):
    """The handler itself raised this error. Whatever its type, it says nothing about the message's
    key: a handler may use keys of its own, and get an InFlight or a StoreUnavailable for those."""

    error: Exception


DeliveryEffect = LookAtKey | FreeKey | RunHandler


class TooManyTries(Terminal):
    """The handler has failed, or its process died, as often as `max_tries` allows."""


class TransactionAborted(Exception):
    """The handler went on after an error of the database, so that its inbox could not commit, nor
    store a failure in the same transaction."""


def delivery(message: Message, plan: ConsumerPlan) -> Generator[DeliveryEffect, Any, Disposition]:
    """Handle one delivery of a message."""
    try:
        key, request = plan.key_of(message), plan.request_of(message)
    except InvalidKey as error:
        return dead_letter(describe(error))
    except Exception as error:  # the user's own function
        return dead_letter(f"its key cannot be read: {describe(error)}")
    tries_before = 0
    redrive = redrive_of(message)
    if redrive is not None:
        seen = yield LookAtKey(key)
        if isinstance(seen, StoreUnavailable):
            return give_back(seen)
        tries_before = redrive.tries_before(seen.record)
        if seen.record is not None and redrive.opens(seen.record, seen.now):
            tries_before = seen.record.attempt
            freed = yield FreeKey(seen, redrive.why(seen.record))
            if isinstance(freed, StoreUnavailable):
                return give_back(freed)
            # KeyChanged: another delivery of it was faster, and the claim finds out what it did.
            assert freed is None or isinstance(freed, KeyChanged)
    ended = yield RunHandler(key, request, tries_before)
    if ended is None:
        return REMOVE
    if isinstance(ended, HandlerRaised):
        ended = ended.error
    elif (clear := by_error(ended)) is not None:
        return clear
    if isinstance(ended, TransactionAborted) and message.receive_count >= plan.settings.max_tries:
        return dead_letter(describe(ended))
    seen = yield LookAtKey(key)
    if isinstance(seen, StoreUnavailable):
        return give_back(seen)
    tries = (seen.record.attempt - tries_before) if seen.record is not None else 0
    tries = max(tries, message.receive_count if tries <= 0 else 0, 1)
    return by_record(seen, ended, backoff_s(tries, *plan.settings.backoff_s))


def check_tries(tries: int, plan: ConsumerPlan, factor: int = 1) -> None:
    """Called before the handler: raises TooManyTries if it must not run once more. It comes to this
    if earlier attempts did not live to say that they failed, so the message may be what kills its
    consumers. `factor` is how many of the counted tries may be none."""
    if tries > plan.settings.max_tries * factor:
        raise TooManyTries(
            f"{tries - 1} tries ended without an outcome, max_tries is {plan.settings.max_tries}; "
            "this message may be what ends its consumers"
        )


def raised(error: Exception, tries: int, plan: ConsumerPlan) -> Exception:
    """The error to raise for a handler's own: the last try stores it for good."""
    if tries < plan.settings.max_tries or isinstance(error, Terminal):
        return error
    last = TooManyTries(f"failed {tries} times, last with {describe(error)}")
    last.__cause__ = error
    return last
