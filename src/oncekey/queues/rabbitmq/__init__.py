"""RabbitMQ: consumers and senders with pika and aio-pika."""

from __future__ import annotations

from oncekey.queues.rabbitmq.channel_calls import RabbitRefused
from oncekey.queues.rabbitmq.rabbit_consumer import AsyncRabbitConsumer, RabbitConsumer
from oncekey.queues.rabbitmq.rabbit_sender import AsyncRabbitSender, RabbitSender

__all__ = [
    "AsyncRabbitConsumer",
    "AsyncRabbitSender",
    "RabbitConsumer",
    "RabbitRefused",
    "RabbitSender",
]
