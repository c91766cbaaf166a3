"""Consumers of RabbitMQ, with pika for threads and with aio-pika for event loops, their brokers,
and the sessions that brokers and senders open.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.once import Once
from oncekey.queues.aio.consumer import AsyncConsumer
from oncekey.queues.blocking.consumer import Consumer
from oncekey.queues.broker import BrokerUnavailable, Settled
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.message_key import KeyChoice
from oncekey.queues.missing_client import client_of
from oncekey.queues.queue_message import Message
from oncekey.queues.rabbitmq.settings import RabbitSettings, settings_of
from oncekey.queues.redrive import GoOn, to_the_end

if TYPE_CHECKING:
    from oncekey.queues.rabbitmq.aio_pika_session import AioPikaSession
    from oncekey.queues.rabbitmq.pika_session import PikaSession

# Messages are sent here, so nothing is asked of RabbitMQ more often by waiting for less: and a
# consumer that stops does not wait for long.
WAIT_MAX_S: Final = 0.5


class RabbitConsumer(Consumer):
    """Consumes a queue of RabbitMQ with pika: `handler(message)` runs once for each key.

        consumer = RabbitConsumer(
            once, ship, "orders", url="amqp://...", name="shipping", key="json:$.order"
        )
        consumer.run()                      # until consumer.stop(), from a signal handler

    queue              its name
    url                amqp://user:password@host:5672/vhost; or several, of one cluster's nodes
    dead_letter_queue  where messages go that failed for good; `QUEUE.dead`, declared if need be
    park_queue         where messages go whose outcome nobody knows; `QUEUE.parked`
    declare            declare the queue, as a quorum queue, if there is none
    management_url     http://user:password@host:15672: ask there for the queue's type and policy
    consumer_timeout   the consumer timeout of the servers, where they were not left at 30 minutes
    identity           for key="delivery": a name that tells this queue from a later one of the
                       same name

    The other options are those of every consumer (`ConsumerSettings`) and the fields of Policy.
    """

    def __init__(
        self,
        once: Once,
        handler: Callable[..., Any],
        queue: str,
        *,
        name: str,
        key: KeyChoice,
        url: str | Sequence[str],
        **options: Any,
    ) -> None:
        settings, others = settings_of(queue, url, options)
        broker = PikaBroker(settings)
        super().__init__(once, handler, broker, name=name, key=key, **others)
        broker.use_prefetch(self.settings.batch_size)


class AsyncRabbitConsumer(AsyncConsumer):
    """Consumes a queue of RabbitMQ with aio-pika: `await handler(message)` runs once for each key.

    It has the options of RabbitConsumer.
    """

    def __init__(
        self,
        once: AsyncOnce,
        handler: Callable[..., Any],
        queue: str,
        *,
        name: str,
        key: KeyChoice,
        url: str | Sequence[str],
        **options: Any,
    ) -> None:
        settings, others = settings_of(queue, url, options)
        broker = AioPikaBroker(settings)
        super().__init__(once, handler, broker, name=name, key=key, **others)
        broker.use_prefetch(self.settings.batch_size)


class PikaBroker:
    """The port `Broker`."""

    def __init__(self, settings: RabbitSettings) -> None:
        self.settings = settings
        self.sessions = PikaSessions(settings)
        self._facts: BrokerFacts | None = None

    def use_prefetch(self, messages: int) -> None:
        """Say how many messages RabbitMQ sends before some are settled."""
        self.settings = dataclasses.replace(self.settings, prefetch=messages)

    def facts(self) -> BrokerFacts:
        if self._facts is None:
            session = self.sessions.opened()
            session.run(session.program.prepare(declare=self.settings.declare))
            report = self.settings.ask_report(session.version)
            self._facts = self.settings.facts(session.version, report, session.cluster)
            if report is not None:
                session.program.retry_delay = self.sessions.retry_delay = report.retry_delay
        return self._facts

    def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        session = self.sessions.opened()
        if most == 0:
            return ()
        if not session.program.is_subscribed:
            session.run(session.program.subscribe(self.settings.prefetch))
        messages = session.take(most, min(wait, WAIT_MAX_S))
        if session.program.may_be_of_a_stream(messages):
            session.run(session.program.check_kind())
        return messages

    def settle(self, settled: Sequence[Settled]) -> None:
        session = self.sessions.current
        mine = [pair for pair in settled if pair[0].raw.session is session]
        if session is not None and mine:
            session.run(session.program.settle(mine))
        if len(mine) < len(settled):
            raise BrokerUnavailable("the connection to RabbitMQ was lost meanwhile")

    def extend(self, messages: Sequence[Message], seconds: float) -> None:
        """RabbitMQ has no deadline that could be extended: a message is its consumer's until the
        consumer timeout, which `facts` returned."""

    def redrive(self, most: int, id: str, *, parked: bool = False, go_on: GoOn = to_the_end) -> int:
        session = self.sessions.opened()
        return session.run(session.program.redrive(most, id, parked, go_on))

    def close(self) -> None:
        self.sessions.close()


class AioPikaBroker:
    """The port `AsyncBroker`."""

    def __init__(self, settings: RabbitSettings) -> None:
        self.settings = settings
        self.sessions = AioPikaSessions(settings)
        self._facts: BrokerFacts | None = None

    def use_prefetch(self, messages: int) -> None:
        """Say how many messages RabbitMQ sends before some are settled."""
        self.settings = dataclasses.replace(self.settings, prefetch=messages)

    async def facts(self) -> BrokerFacts:
        if self._facts is None:
            session = await self.sessions.opened()
            await session.run(session.program.prepare(declare=self.settings.declare))
            report = await asyncio.to_thread(self.settings.ask_report, session.version)
            self._facts = self.settings.facts(session.version, report, session.cluster)
            if report is not None:
                session.program.retry_delay = self.sessions.retry_delay = report.retry_delay
        return self._facts

    async def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        session = await self.sessions.opened()
        if most == 0:
            return ()
        if not session.program.is_subscribed:
            await session.run(session.program.subscribe(self.settings.prefetch))
        messages = await session.take(most, wait)
        if session.program.may_be_of_a_stream(messages):
            await session.run(session.program.check_kind())
        return messages

    async def settle(self, settled: Sequence[Settled]) -> None:
        session = self.sessions.current
        mine = [pair for pair in settled if pair[0].raw.session is session]
        if session is not None and mine:
            await session.run(session.program.settle(mine))
        if len(mine) < len(settled):
            raise BrokerUnavailable("the connection to RabbitMQ was lost meanwhile")

    async def extend(self, messages: Sequence[Message], seconds: float) -> None:
        """RabbitMQ has no deadline that could be extended: a message is its consumer's until the
        consumer timeout, which `facts` returned."""

    async def redrive(
        self, most: int, id: str, *, parked: bool = False, go_on: GoOn = to_the_end
    ) -> int:
        session = await self.sessions.opened()
        return await session.run(session.program.redrive(most, id, parked, go_on))

    async def close(self) -> None:
        await self.sessions.close()


# --- sessions -------------------------------------------------------------------------------------


class PikaSessions:
    """The sessions of a broker or a sender: one is opened when it is needed, and a new one after it
    has ended. `retry_delay` is for how many seconds the queue delays what it is given back."""

    def __init__(self, settings: RabbitSettings) -> None:
        with client_of("RabbitMQ", extra="rabbitmq"):
            from oncekey.queues.rabbitmq.pika_session import PikaSession
        self._kind = PikaSession
        self._settings = settings
        self._lock = threading.Lock()
        self.current: PikaSession | None = None
        self.retry_delay: float | None = None

    def opened(self) -> PikaSession:
        with self._lock:
            if self.current is None or not self.current.is_open:
                self.current = None
                self.current = self._kind(self._settings)
                self.current.program.retry_delay = self.retry_delay
            return self.current

    def close(self) -> None:
        """End the connection."""
        with self._lock:
            session, self.current = self.current, None
        if session is not None:
            session.close()


class AioPikaSessions:
    """The sessions of a broker or a sender: one is opened when it is needed, and a new one after it
    has ended. `retry_delay` is for how many seconds the queue delays what it is given back."""

    def __init__(self, settings: RabbitSettings) -> None:
        with client_of("RabbitMQ", extra="rabbitmq-async"):
            from oncekey.queues.rabbitmq.aio_pika_session import AioPikaSession
        self._kind = AioPikaSession
        self._settings = settings
        self._lock = asyncio.Lock()
        self.current: AioPikaSession | None = None
        self.retry_delay: float | None = None

    async def opened(self) -> AioPikaSession:
        async with self._lock:
            if self.current is None or not self.current.is_open:
                self.current = None
                session = self._kind(self._settings)
                await session.open()
                session.program.retry_delay = self.retry_delay
                self.current = session
            return self.current

    async def close(self) -> None:
        """End the connection."""
        session, self.current = self.current, None
        if session is not None:
            await session.close()
