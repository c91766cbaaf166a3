"""Senders of RabbitMQ, for the publishers of an outbox: they publish with the same sessions that
consumers have, and consume nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.outbox.outgoing_message import OutgoingMessage
from oncekey.queues.outbox.senders import SENDER_BATCH_MAX, prepared
from oncekey.queues.rabbitmq.consumers import AioPikaSessions, PikaSessions
from oncekey.queues.rabbitmq.message import Letter, outgoing_letter
from oncekey.queues.rabbitmq.program import RabbitRefused, publish
from oncekey.queues.rabbitmq.settings import RabbitSettings

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
        self._sessions = PikaSessions(self._settings)

    def send(self, messages: Sequence[OutgoingMessage], /) -> list[Exception | None]:
        """Publish messages; None for each that was confirmed, or its error."""
        letters, results = self._prepared(messages)
        reasons = self._sessions.opened().run(publish(list(letters.values())))
        for (position, letter), reason in zip(letters.items(), reasons, strict=True):
            if reason is not None:
                results[position] = self._refused(letter, reason)
        return results

    def close(self) -> None:
        """End the connection."""
        self._sessions.close()


class AsyncRabbitSender(_SenderBase):
    """The same with aio-pika, for `AsyncOutboxPublisher`."""

    def __init__(self, url: str | Sequence[str], *, exchange: str = "") -> None:
        super().__init__(url, exchange=exchange)
        self._sessions = AioPikaSessions(self._settings)

    async def send(self, messages: Sequence[OutgoingMessage], /) -> list[Exception | None]:
        """Publish messages; None for each that was confirmed, or its error."""
        letters, results = self._prepared(messages)
        reasons = await self._publish(list(letters.values()))
        for (position, letter), reason in zip(letters.items(), reasons, strict=True):
            if reason is not None:
                results[position] = self._refused(letter, reason)
        return results

    async def _publish(self, letters: list[Letter]) -> list[str | None]:
        session = await self._sessions.opened()
        try:
            return await session.run(publish(letters))
        except BrokerUnavailable:
            if len(letters) < 2:
                raise
        # One of them may have ended the connection, which it will not do alone.
        return [(await self._publish([letter]))[0] for letter in letters]

    async def close(self) -> None:
        """End the connection."""
        await self._sessions.close()
