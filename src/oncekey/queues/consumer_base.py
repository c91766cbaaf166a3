"""What the consumers of threads and of tasks share: settings, figures, and what is logged.

Nothing here waits. The loops are in blocking/consumer.py and aio/consumer.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from oncekey.core.duration import Duration
from oncekey.core.errors import ConfigurationError, InFlight, OncekeyError, StoreUnavailable
from oncekey.queues.broker import RECEIVE_WAIT_S, BrokerUnavailable, LoginRefused, Settled
from oncekey.queues.broker_faults import ClientFault, is_fault, reason_of
from oncekey.queues.consumer_settings import (
    BACKOFF_DEFAULT,
    BACKOFF_MAX_DEFAULT,
    CONCURRENCY_DEFAULT,
    HOLD_WARN_PART,
    MAX_TRIES_DEFAULT,
    STOP_TIMEOUT_DEFAULT,
    BrokerFacts,
    ConsumerPlan,
    ConsumerSettings,
    Policies,
    RequestChoice,
    plan_of,
)
from oncekey.queues.disposition import (
    STOPPED,
    Disposition,
    Kind,
    backoff_s,
    by_error,
    describe,
)
from oncekey.queues.handler_call import HandlerCall
from oncekey.queues.message_key import KeyChoice
from oncekey.queues.queue_message import Message
from oncekey.queues.work_in_hand import Entry, WorkInHand

PAUSE_FIRST_S: Final = 0.2  # before a store or a broker that was down is tried again
PAUSE_MAX_S: Final = 10.0
EXTENSIONS_PER_LEASE: Final = 3
# So many batches may be in hand: one in work, and one that the broker is slow to settle.
BATCHES_IN_HAND: Final = 2
# How long a stop waits for the broker, beyond `stop_timeout`: for a receive that is under way (a
# long poll ends by itself), for what is done to be settled, and for the broker to be left.
RECEIVE_LAST_S: Final = RECEIVE_WAIT_S + 2.0
SETTLE_LAST_S: Final = 5.0
LEAVE_LAST_S: Final = 5.0
STOP_MARGIN_S: Final = RECEIVE_LAST_S + SETTLE_LAST_S + LEAVE_LAST_S
# How long a message waits for another one of the same key that this consumer handles. After that
# it is hidden, like one that is in flight elsewhere.
TWIN_WAIT_S: Final = 1.0
_log = logging.getLogger("oncekey")

# What a consumer that begins waits for: servers of a fleet start in any order. Anything else, such
# as a missing queue, ends it at once, and so does a refused login; of a store those are
# ConfigurationErrors.
AWAITED_AT_START: Final = (BrokerUnavailable, StoreUnavailable, InFlight)

OnSettled = Callable[[Message, Disposition], object]


class ConsumerBase:
    """A consumer without its threads or tasks.

    counts      how many messages had each disposition so far
    on_settled  is called with each message and its disposition, after it was settled
    """

    def __init__(
        self,
        handler: Callable[..., Any],
        *,
        is_async: bool,
        name: str,
        key: KeyChoice,
        request: RequestChoice = "body",
        concurrency: int = CONCURRENCY_DEFAULT,
        batch: int | None = None,
        max_tries: int = MAX_TRIES_DEFAULT,
        backoff: Duration = BACKOFF_DEFAULT,
        backoff_max: Duration = BACKOFF_MAX_DEFAULT,
        stop_timeout: Duration = STOP_TIMEOUT_DEFAULT,
        broker_name: str | None = None,
        inbox: Any = None,
        **options: Any,
    ) -> None:
        self.settings = ConsumerSettings(
            name=name,
            key=key,
            request=request,
            concurrency=concurrency,
            batch=batch,
            max_tries=max_tries,
            backoff=backoff,
            backoff_max=backoff_max,
            stop_timeout=stop_timeout,
            broker_name=broker_name,
            options=options,
        )
        self.counts: Counter[Kind] = Counter()
        self.on_settled: OnSettled | None = None
        self._call = HandlerCall(handler, is_async=is_async, in_transaction=inbox is not None)
        self._inbox = inbox
        self._hand = WorkInHand()
        self._unsettled = 0  # how many are done, and not settled
        self._is_running = self._was_run = False
        self._error: BaseException | None = None  # what `run` raises at its end
        self._plan: ConsumerPlan | None = None
        self._least_free = 1

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def handler(self) -> Callable[..., Any]:
        """The function that handles its messages."""
        return self._call.handler

    @property
    def is_running(self) -> bool:
        """True from the beginning of `run` to its end."""
        return self._is_running

    @property
    def is_transactional(self) -> bool:
        """True if its messages are handled in transactions, by an inbox."""
        return self._inbox is not None

    @property
    def in_hand(self) -> int:
        """How many messages are taken and not settled."""
        return len(self._hand) + self._unsettled

    def _free(self) -> int:
        """How many more messages may be taken. A broker that settles more slowly than it delivers
        must not fill the memory with what is done. While others wait for a handler, none are taken
        until there is room for a good part of a batch: many small ones cost a claim each."""
        most = self.settings.batch_size
        free = max(0, min(most - len(self._hand), BATCHES_IN_HAND * most - self.in_hand))
        return free if free >= self._least_free else 0

    def _plan_for(self, facts: BrokerFacts, once: Policies, scope: str) -> ConsumerPlan:
        in_transaction = self._inbox is not None
        plan = plan_of(self.settings, facts, once, scope, in_transaction=in_transaction)
        self._plan = plan
        # Where messages have an order, those in hand may all wait for one of them.
        if self._claims_ahead(plan) and not facts.ordered:
            waiting = self.settings.batch_size - self.settings.concurrency
            self._least_free = max(1, waiting // 2)
        return plan

    def _claims_ahead(self, plan: ConsumerPlan) -> bool:
        """Whether keys are claimed before a handler is free to run. A consumer that is killed
        leaves its claimed keys unknown unless they are retry-safe, and an inbox holds a connection
        for each; those claim no more than they run."""
        return plan.policy.retry_safe and self._inbox is None

    def _begin(self) -> None:
        if self._was_run:
            raise ConfigurationError(f"consumer {self.name!r} runs once; make another one")
        self._is_running = self._was_run = True

    # --- faults and ends ------------------------------------------------------------------------

    def _tell_fault(self, error: BaseException, consequence: str) -> None:
        """Log a failure of the broker that a new connection may cure; raises any other one."""
        if not is_fault(error):
            raise error
        # What no broker of ours says in its own words may be a mistake: where it comes from helps.
        trace = None if isinstance(error, BrokerUnavailable) else error
        _log.warning(
            "consumer %s: %s; %s", self.name, reason_of(error), consequence, exc_info=trace
        )

    def _tell_unclosed(self, error: BaseException) -> None:
        """Log that the broker was not left as it should be, which ends by itself."""
        if not isinstance(error, Exception) and not is_fault(error):
            raise error
        _log.warning(
            "consumer %s: leaving the broker failed: %s; what was not settled is delivered again",
            self.name,
            reason_of(error),
        )

    def _note_failure(self, error: BaseException) -> None:
        """Keep the error of a worker or of the settler for `run`, which raises it."""
        self._error = self._error or error
        _log.error("consumer %s cannot go on: %s", self.name, reason_of(error), exc_info=error)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Log why `run` ends, whatever ends it, and raise what a worker or the settler left."""
        try:
            yield
            if self._error is not None:
                raise self._error
        except asyncio.CancelledError:
            _log.info("consumer %s ends: its task was cancelled", self.name)
            raise
        except BaseException as error:
            _log.error("consumer %s ends: %s", self.name, describe(error))
            raise
        else:
            _log.info("consumer %s ends: it was stopped", self.name)
        finally:
            self._is_running = False

    # --- messages -------------------------------------------------------------------------------

    def _interrupted(self, entry: Entry, error: BaseException) -> Disposition:
        """What becomes of a message whose handling was interrupted, or ended with an error that
        nobody expects. That one is not given back, or it would come again at once, for ever."""
        _log.error(
            "consumer %s: a handler was interrupted", self.name, exc_info=error, stacklevel=2
        )
        if not isinstance(error, Exception):
            return STOPPED
        seconds = backoff_s(entry.message.receive_count, *self.settings.backoff_s)
        return by_error(error) or Disposition(Kind.RETRY, seconds, describe(error))

    def _tell_unsettled(self) -> None:
        _log.warning(
            "consumer %s: %d handlers still run after %s; their messages stay unsettled",
            self.name,
            len(self._hand),
            self.settings.stop_timeout,
        )

    def _tell_unanswered(self) -> None:
        _log.warning(
            "consumer %s: the broker does not answer; what it was told last may come again, and "
            "%d messages that are left unsettled will",
            self.name,
            self.in_hand,
        )

    def _tell_unstarted(self, error: OncekeyError, pause: float) -> None:
        """Log that the broker or the store is waited for; raises the error if it is refused, or the
        engine is closed."""
        is_closed = isinstance(error, StoreUnavailable) and error.final
        if isinstance(error, LoginRefused) or is_closed:
            raise error
        _log.warning(
            "consumer %s cannot begin yet: %s; trying again in %.1f s",
            self.name,
            reason_of(error),
            pause,
            exc_info=error.__cause__ if isinstance(error, ClientFault) else None,
        )

    def _count(self, settled: Sequence[Settled]) -> None:
        for message, disposition in settled:
            self.counts[disposition.kind] += 1
            if self.on_settled is not None:
                try:
                    self.on_settled(message, disposition)
                except Exception:
                    _log.exception("on_settled of consumer %s failed", self.name)

    def _to_extend(self, plan: ConsumerPlan, now: float) -> list[Message]:
        """The messages whose deadline at the broker is to be extended. One that is held nearly as
        long as the broker allows is told once: soon it will be delivered a second time."""
        held = self._hand.held()
        most = plan.facts.hold_max
        if most is not None:
            for entry in held:
                if not entry.was_told and now - entry.taken_at >= most * HOLD_WARN_PART:
                    entry.was_told = True
                    _log.warning(
                        "consumer %s: message %s of %s is held for %.0f s; the broker allows "
                        "%.0f s, then it comes again, and is left alone while this handler runs",
                        self.name,
                        entry.message.delivery_id,
                        entry.message.queue,
                        now - entry.taken_at,
                        most,
                    )
        return [entry.message for entry in held]


def is_store_down(disposition: Disposition) -> bool:
    """True if the message can go on where it is when the store is back."""
    return disposition.kind is Kind.GIVE_BACK and disposition is not STOPPED


def next_pause(pause: float) -> float:
    return min(pause * 2, PAUSE_MAX_S)
