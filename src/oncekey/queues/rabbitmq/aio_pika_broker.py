"""A queue of RabbitMQ for tasks, over aio-pika."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

from oncekey.queues.broker import BrokerUnavailable, Settled
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.queue_message import Message
from oncekey.queues.rabbitmq.aio_pika_session import AioPikaSession
from oncekey.queues.rabbitmq.rabbit_settings import RabbitSettings
from oncekey.queues.redrive import GoOn, to_the_end


class AioPikaBroker:
    """The port `AsyncBroker`. It opens a session when it needs one, and a new one after that has
    ended."""

    def __init__(self, settings: RabbitSettings) -> None:
        self.settings = settings
        self._opening = asyncio.Lock()
        self._session: AioPikaSession | None = None
        self._facts: BrokerFacts | None = None
        self._retry_delay: float | None = None

    def use_prefetch(self, messages: int) -> None:
        """Say how many messages RabbitMQ sends before some are settled."""
        self.settings = dataclasses.replace(self.settings, prefetch=messages)

    async def facts(self) -> BrokerFacts:
        if self._facts is None:
            session = await self._opened()
            await session.run(session.program.prepare(declare=self.settings.declare))
            report = await asyncio.to_thread(self.settings.ask_report, session.version)
            self._facts = self.settings.facts(session.version, report, session.cluster)
            if report is not None:
                session.program.retry_delay = self._retry_delay = report.retry_delay
        return self._facts

    async def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        session = await self._opened()
        if most == 0:
            return ()
        if not session.program.is_subscribed:
            await session.run(session.program.subscribe(self.settings.prefetch))
        messages = await session.take(most, wait)
        if session.program.may_be_of_a_stream(messages):
            await session.run(session.program.check_kind())
        return messages

    async def settle(self, settled: Sequence[Settled]) -> None:
        session = self._session
        mine = [pair for pair in settled if pair[0].raw.session is session]
        if session is not None and mine:
            await session.run(session.program.settle(mine))
        if len(mine) < len(settled):
            raise BrokerUnavailable("the connection to RabbitMQ was lost meanwhile")

    async def extend(self, messages: Sequence[Message], seconds: float) -> None:
        """RabbitMQ has no deadline that could be extended: a message is its consumer's until the
        consumer timeout, which `facts` told."""

    async def redrive(
        self, most: int, id: str, *, parked: bool = False, go_on: GoOn = to_the_end
    ) -> int:
        session = await self._opened()
        return await session.run(session.program.redrive(most, id, parked, go_on))

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _opened(self) -> AioPikaSession:
        async with self._opening:
            if self._session is None or not self._session.is_open:
                self._session = None
                session = AioPikaSession(self.settings)
                await session.open()
                session.program.retry_delay = self._retry_delay
                self._session = session
            return self._session
