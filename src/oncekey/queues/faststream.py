"""`IdempotencyMiddleware`: FastStream handlers that run at most once per key.

A middleware of FastStream's own kind, for the subscribers of a broker or of a router. It drives the
same flow as the consumers of this package, with these ends:

    disposition          in FastStream's terms
    -------------------- ------------------------------------------------------------------------
    REMOVE               the handler's value, or the stored one, is returned: acknowledged, and its
                         reply and publishers get it. If they wait for one that is not stored, as
                         DEAD_LETTER
    HIDE, RETRY,         waits, at most `hold_max`, then NackMessage: delivered again
    GIVE_BACK
    DEAD_LETTER, PARK    `dead_letter` is called, if there is one, then RejectMessage

A handler may also end its message itself: AckMessage is a success without a value, NackMessage a
failed try that may be repeated, and RejectMessage a failure for good.

RabbitMQ moves a rejected message to the dead-letter exchange. Kafka and the others forget it, so
there `dead_letter` is required. So is `broker_name`: only the messages of RabbitMQ tell which
broker they come from. A subscriber that acknowledges first, or by hand, is refused.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from faststream import AckPolicy, BaseMiddleware, StreamMessage
from faststream.exceptions import AckMessage, NackMessage, RejectMessage
from faststream.message import SourceType

from oncekey.core.codec import pack_value
from oncekey.core.duration import Duration, microseconds
from oncekey.core.errors import (
    ConfigurationError,
    InFlight,
    NotReplayable,
    NotStarted,
    OncekeyError,
    StoreUnavailable,
    Terminal,
)
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.port import AsyncPort
from oncekey.queues.aio.message_handler import AsyncMessageHandler
from oncekey.queues.broker_identity import async_bound_scope
from oncekey.queues.consumer_settings import (
    BACKOFF_DEFAULT,
    BACKOFF_MAX_DEFAULT,
    MAX_TRIES_DEFAULT,
    BrokerFacts,
    ConsumerPlan,
    ConsumerSettings,
    RequestChoice,
    plan_of,
)
from oncekey.queues.disposition import Disposition, Kind, dead_letter, describe
from oncekey.queues.disposition_report import report
from oncekey.queues.faststream_facts import (
    RABBIT,
    facts_of,
    function_of,
    handler_of,
    has_recipients,
    kind_of,
    message_of,
    queue_of,
)
from oncekey.queues.handler_call import HandlerCall
from oncekey.queues.message_key import KeyChoice
from oncekey.queues.queue_message import Message
from oncekey.queues.task_guard import STORE_PAUSE_S
from oncekey.queues.work_in_hand import Entry

HOLD_MAX_DEFAULT: Final = "30s"
_TOO_EARLY: Final = (AckPolicy.ACK_FIRST, AckPolicy.MANUAL)
_log = logging.getLogger("oncekey")

DeadLetterHandler = Callable[["StreamMessage[Any]", Disposition], Awaitable[object]]


class IdempotencyMiddleware:
    """Makes the middleware of each message: `Broker(middlewares=[IdempotencyMiddleware(...)])`.

    name         the consumer's name: its operation, and with the queue its scope
    key          'header:NAME', 'json:$.path', or a function of the message; its `raw` is
                 FastStream's own
    broker_name  your own name for the broker; required for any other than RabbitMQ
    dead_letter  an async function of FastStream's message and the disposition
    hold_max     for how long a message is held here before it goes back to the broker
    codec        stores what the handlers return; by default each handler's annotation says how
    options      are fields of Policy
    """

    def __init__(
        self,
        once: AsyncOnce,
        *,
        name: str,
        key: KeyChoice,
        request: RequestChoice = "body",
        max_tries: int = MAX_TRIES_DEFAULT,
        backoff: Duration = BACKOFF_DEFAULT,
        backoff_max: Duration = BACKOFF_MAX_DEFAULT,
        broker_name: str | None = None,
        hold_max: Duration = HOLD_MAX_DEFAULT,
        dead_letter: DeadLetterHandler | None = None,
        codec: Any = None,
        **options: Any,
    ) -> None:
        if not isinstance(once, AsyncOnce):
            raise ConfigurationError(
                f"IdempotencyMiddleware needs an AsyncOnce, not a {type(once).__name__}"
            )
        self.once = once
        self.dead_letter = dead_letter
        self.hold_max_s = microseconds(hold_max, name="hold_max") / 1_000_000
        self._settings = ConsumerSettings(
            name=name,
            key=key,
            request=request,
            max_tries=max_tries,
            backoff=backoff,
            backoff_max=backoff_max,
            broker_name=broker_name,
            options=options,
        )
        # What is wrong shows now.
        plan_of(self._settings, BrokerFacts(name), once, name)
        AsyncPort(once).codec_for(codec)
        self._codec = codec
        # Of each subscriber's functions, by their ids; they are kept with theirs.
        self._codecs: MutableMapping[Any, dict[int, tuple[object, Any]]] = WeakKeyDictionary()
        # A subscriber belongs to one broker, whatever node of that it is connected to.
        self._plans: MutableMapping[Any, dict[str, ConsumerPlan]] = WeakKeyDictionary()

    def __call__(self, msg: Any, /, *, context: Any) -> BaseMiddleware[Any, Any]:
        return _GuardedMessage(msg, context=context, guard=self)

    def check(self, broker: Any) -> None:
        """Raise ConfigurationError if a subscriber of this broker, or router, would lose messages,
        or what its handlers return. Call it before the broker starts:
        `app.on_startup(lambda: guard.check(broker))`."""
        for subscriber in broker.subscribers:
            self.check_subscriber(subscriber)

    def check_subscriber(self, subscriber: Any) -> None:
        name = self._settings.name
        if subscriber.ack_policy in _TOO_EARLY:
            raise ConfigurationError(
                f"consumer {name!r}: a subscriber with {subscriber.ack_policy} acknowledges its "
                "message before the outcome is stored, so it is lost with its process. Give the "
                "subscriber ack_policy=AckPolicy.REJECT_ON_ERROR or NACK_ON_ERROR"
            )
        facts = facts_of(subscriber, "", None)
        if facts.needs_name and self._settings.broker_name is None:
            raise ConfigurationError(f"consumer {name!r}: {facts.broker_doubt}")
        if self.dead_letter is None and kind_of(subscriber) != RABBIT:
            raise ConfigurationError(
                f"consumer {name!r}: this broker forgets a rejected message; give dead_letter= an "
                "async function that keeps it, for example by publishing it elsewhere"
            )
        for item in subscriber.calls:
            self.codec_of(subscriber, function_of(item.handler))

    def codec_of(self, subscriber: Any, function: Any) -> Any:
        """The codec for what the function of a handler returns. Raises ConfigurationError if that
        could not be stored."""
        if function is None:
            return self._codec
        codecs = self._codecs.setdefault(subscriber, {})
        known = codecs.get(id(function))
        if known is None:
            what = f"consumer {self._settings.name!r}"
            codec = AsyncPort(self.once).returned_codec(function, self._codec, what)
            known = codecs[id(function)] = (function, codec)
        return known[1]

    async def plan_for(self, subscriber: Any, queue: str, raw: Any = None) -> ConsumerPlan:
        """The plan for the messages of a subscriber, of which `raw` is one as its client has it."""
        plans = self._plans.setdefault(subscriber, {})
        if queue not in plans:
            facts = facts_of(subscriber, queue, raw)
            scope = await async_bound_scope(self.once, self._settings, facts)
            plans[queue] = plan_of(self._settings, facts, self.once, scope)
        return plans[queue]


class _AskedAgain(NotStarted):
    """The handler raised NackMessage, so its key must be free."""


class _Rejected(Terminal):
    """The handler raised RejectMessage."""


class _Delivery:
    """One delivery, and how it ended.

    handler   FastStream's own object of the handler, None if it cannot be found
    value     what is returned for it: the stored value, or the handler's own
    returned  what the handler has returned, if this very delivery `ran` it
    error     what the run ended with instead of a value
    """

    __slots__ = ("codec", "error", "handler", "message", "msg", "plan", "ran", "returned", "value")

    def __init__(
        self,
        msg: StreamMessage[Any],
        message: Message,
        plan: ConsumerPlan,
        handler: Any,
        codec: Any,
    ) -> None:
        self.msg = msg
        self.message = message
        self.plan = plan
        self.handler = handler
        self.codec = codec
        self.value: Any = None
        self.ran = False
        self.returned: Any = None
        self.error: Exception | None = None


class _GuardedMessage(BaseMiddleware[Any, Any]):
    """The middleware of one message."""

    def __init__(self, msg: Any, /, *, context: Any, guard: IdempotencyMiddleware) -> None:
        super().__init__(msg, context=context)
        self._guard = guard

    async def consume_scope(
        self, call_next: Callable[..., Awaitable[Any]], msg: StreamMessage[Any]
    ) -> Any:
        if msg.source_type is not SourceType.CONSUME:
            return await call_next(msg)  # the answer to a request of this process
        guard, subscriber = self._guard, self.context.get_local("handler_")
        queue = queue_of(subscriber, msg)
        plan = await self._checked_plan(subscriber, msg, queue)
        handler = handler_of(call_next)
        codec = guard.codec_of(subscriber, function_of(handler))
        delivery = _Delivery(msg, message_of(msg, queue), plan, handler, codec)

        async def run(*args: Any, **kwargs: Any) -> Any:
            try:
                result = await guard.once.run(*args, codec=codec, **kwargs)
            except Exception as error:
                delivery.error = error
                raise
            delivery.value = result.value
            return result

        async def handle(message: Message) -> Any:
            try:
                delivery.returned = await call_next(msg)
            except AckMessage:
                pass
            except NackMessage as signal:
                raise _AskedAgain(str(signal)) from signal
            except RejectMessage as signal:
                raise _Rejected(str(signal)) from signal
            delivery.ran = True
            return delivery.returned

        call = HandlerCall(handle, is_async=True, in_transaction=False)
        runs = AsyncMessageHandler(guard.once, call, plan, run=run)
        disposition = await runs.handle(Entry(delivery.message, time.monotonic()))
        if disposition.kind is Kind.REMOVE:
            disposition = self._with_value(delivery, disposition, subscriber)
        return await self._end(delivery, disposition)

    async def _checked_plan(
        self, subscriber: Any, msg: StreamMessage[Any], queue: str
    ) -> ConsumerPlan:
        """Refuse what would not be safe. The subscriber must not end its message by the error of a
        wrong set-up, or of a store that is away, so that one goes back."""
        try:
            self._guard.check_subscriber(subscriber)
            if not isinstance(msg.body, bytes):
                raise ConfigurationError(
                    "a batch has no one key; guard a subscriber that takes messages one by one"
                )
            return await self._guard.plan_for(subscriber, queue, msg.raw_message)
        except (ConfigurationError, StoreUnavailable, InFlight) as error:
            if subscriber.ack_policy in _TOO_EARLY:
                raise
            _log.error("message %s goes back: %s", msg.message_id, error)
            await asyncio.sleep(min(STORE_PAUSE_S, self._guard.hold_max_s))
            raise NackMessage from error

    def _with_value(
        self, delivery: _Delivery, disposition: Disposition, subscriber: Any
    ) -> Disposition:
        """The disposition of a message that was handled, and whose reply and publishers need the
        handler's value. If that is gone, nothing is sent in its place: an empty message would be
        taken for the result, and if the message were acknowledged without one, nobody could tell a
        result that was sent before from one that was not."""
        if delivery.ran and self._is_unstorable(delivery):
            delivery.value = delivery.returned
            if has_recipients(delivery.msg, delivery.handler, subscriber):
                _log.warning(
                    "message %s of %s: what its handler returned is sent, and could not be stored. "
                    "If the message comes again, it becomes a dead letter. %s",
                    delivery.msg.message_id,
                    delivery.message.queue,
                    describe(delivery.error) if delivery.error else "It is larger than max_bytes",
                )
            return disposition
        if delivery.error is None or not has_recipients(delivery.msg, delivery.handler, subscriber):
            return disposition
        if not isinstance(delivery.error, NotReplayable):
            # Another attempt has succeeded meanwhile. What it stored is read when this comes again.
            return Disposition(Kind.RETRY, 0.0, describe(delivery.error))
        letter = dead_letter(describe(delivery.error))
        report(self._guard.once, delivery.plan, delivery.message, letter)
        return letter

    def _is_unstorable(self, delivery: _Delivery) -> bool:
        """True if the value that the handler has returned here was not stored."""
        if delivery.error is not None:
            return isinstance(delivery.error, NotReplayable)
        # One that is too large is returned as it is; of those that are stored some are too.
        if delivery.value is not delivery.returned:
            return False
        codec = AsyncPort(self._guard.once).codec_for(delivery.codec)
        return len(pack_value(codec, delivery.value)) > delivery.plan.policy.max_bytes

    async def _end(self, delivery: _Delivery, disposition: Disposition) -> Any:
        kind = disposition.kind
        if kind is Kind.REMOVE:
            return delivery.value
        _log.warning(
            "message %s: %s, %s",
            delivery.msg.message_id,
            kind,
            disposition.reason,
            exc_info=None if isinstance(delivery.error, OncekeyError) else delivery.error,
        )
        if kind in (Kind.DEAD_LETTER, Kind.PARK):
            if self._guard.dead_letter is not None:
                try:
                    await self._guard.dead_letter(delivery.msg, disposition)
                except Exception as error:  # the user's own function: the message must stay
                    _log.warning("dead_letter= failed, the message goes back", exc_info=error)
                    await asyncio.sleep(min(STORE_PAUSE_S, self._guard.hold_max_s))
                    raise NackMessage from error
            raise RejectMessage
        seconds = STORE_PAUSE_S if kind is Kind.GIVE_BACK else disposition.seconds
        await asyncio.sleep(min(seconds, self._guard.hold_max_s))
        raise NackMessage
