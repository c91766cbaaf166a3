"""RabbitMQ: consumers and senders with pika and aio-pika."""

from __future__ import annotations

from oncekey.queues.rabbitmq.consumers import AsyncRabbitConsumer, RabbitConsumer
from oncekey.queues.rabbitmq.program import RabbitRefused
from oncekey.queues.rabbitmq.sender import AsyncRabbitSender, RabbitSender

__all__ = [
    "AsyncRabbitConsumer",
    "AsyncRabbitSender",
    "RabbitConsumer",
    "RabbitRefused",
    "RabbitSender",
]
