"""RabbitMQ: consumers and senders with pika and aio-pika."""

from __future__ import annotations

from oncekey.queues.rabbitmq.aio import AsyncRabbitConsumer
from oncekey.queues.rabbitmq.blocking import RabbitConsumer
from oncekey.queues.rabbitmq.program import RabbitRefused
from oncekey.queues.rabbitmq.sender import AsyncRabbitSender, RabbitSender

__all__ = [
    "AsyncRabbitConsumer",
    "AsyncRabbitSender",
    "RabbitConsumer",
    "RabbitRefused",
    "RabbitSender",
]
