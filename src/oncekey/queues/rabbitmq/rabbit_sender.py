"""Senders of RabbitMQ, for the publishers of an outbox: they publish with the same sessions that
consumers have, and consume nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.missing_client import client_of
from oncekey.queues.outbox.outgoing_message import OutgoingMessage
from oncekey.queues.outbox.senders import SENDER_BATCH_MAX, prepared
from oncekey.queues.rabbitmq.amqp_message import Letter, outgoing_letter
from oncekey.queues.rabbitmq.channel_calls import RabbitRefused, publish
from oncekey.queues.rabbitmq.rabbit_settings import RabbitSettings

if TYPE_CHECKING:
    from oncekey.queues.rabbitmq.aio_pika_session import AioPikaSession
    from oncekey.queues.rabbitmq.pika_session import PikaSession

# A session is that of a queue. Nothing is declared or consumed under this name.
_NO_QUEUE: Final = "-"


class _SenderBase:
    """What both senders share: settings, and messages as letters."""

    batch_max = SENDER_BATCH_MAX

    def __init__(self, url: str | Sequence[str], *, exchange: str = "") -> None:
        self._settings = RabbitSettings(url=url, queue=_NO_QUEUE)
        self._exchange = exchange

    def _prepared(
        self, messages: Sequence[OutgoingMessage]
    ) -> tuple[dict[int, Letter], list[Exception | None]]:
        return prepared(messages, lambda message: outgoing_letter(message, self._exchange))

    def _refused(self, letter: Letter, reason: str) -> RabbitRefused:
        where = f"queue {letter.queue!r}"
        if self._exchange:
            where = f"exchange {self._exchange!r} with the routing key {letter.queue!r}"
        return RabbitRefused(f"RabbitMQ did not take a message for {where}: {reason}")


class RabbitSender(_SenderBase):
    """Sends messages of an outbox to RabbitMQ with pika, for `OutboxPublisher`.

        publisher = OutboxPublisher(once, RabbitSender("amqp://..."))

    url        amqp://user:password@host:5672/vhost; or several, of one cluster's nodes
    exchange   publish to this exchange, and a message's queue is the routing key; without it a
               message goes to the queue of that name

    Messages are persistent. Each counts as sent when RabbitMQ has confirmed it, and as refused if
    there is no queue for it.
    """

    def __init__(self, url: str | Sequence[str], *, exchange: str = "") -> None:
        super().__init__(url, exchange=exchange)
        with client_of("RabbitMQ", extra="rabbitmq"):
            from oncekey.queues.rabbitmq import pika_session
        self._kind = pika_session.PikaSession
        self._lock = threading.Lock()
        self._session: PikaSession | None = None

    def send(self, messages: Sequence[OutgoingMessage], /) -> list[Exception | None]:
        """Publish messages; None for each that was confirmed, or its error."""
        letters, results = self._prepared(messages)
        reasons = self._opened().run(publish(list(letters.values())))
        for (position, letter), reason in zip(letters.items(), reasons, strict=True):
            if reason is not None:
                results[position] = self._refused(letter, reason)
        return results

    def close(self) -> None:
        """End the connection."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def _opened(self) -> PikaSession:
        with self._lock:
            if self._session is None or not self._session.is_open:
                self._session = None
                self._session = self._kind(self._settings)
            return self._session


class AsyncRabbitSender(_SenderBase):
    """The same with aio-pika, for `AsyncOutboxPublisher`."""

    def __init__(self, url: str | Sequence[str], *, exchange: str = "") -> None:
        super().__init__(url, exchange=exchange)
        with client_of("RabbitMQ", extra="rabbitmq-async"):
            from oncekey.queues.rabbitmq import aio_pika_session
        self._kind = aio_pika_session.AioPikaSession
        self._opening = asyncio.Lock()
        self._session: AioPikaSession | None = None

    async def send(self, messages: Sequence[OutgoingMessage], /) -> list[Exception | None]:
        """Publish messages; None for each that was confirmed, or its error."""
        letters, results = self._prepared(messages)
        reasons = await self._publish(list(letters.values()))
        for (position, letter), reason in zip(letters.items(), reasons, strict=True):
            if reason is not None:
                results[position] = self._refused(letter, reason)
        return results

    async def _publish(self, letters: list[Letter]) -> list[str | None]:
        session = await self._opened()
        try:
            return await session.run(publish(letters))
        except BrokerUnavailable:
            if len(letters) < 2:
                raise
        # One of them may have ended the connection, which it will not do alone.
        return [(await self._publish([letter]))[0] for letter in letters]

    async def close(self) -> None:
        """End the connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _opened(self) -> AioPikaSession:
        async with self._opening:
            if self._session is None or not self._session.is_open:
                self._session = None
                session = self._kind(self._settings)
                await session.open()
                self._session = session
            return self._session
