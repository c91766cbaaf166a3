"""RabbitMQ: consumers with pika and aio-pika."""

from __future__ import annotations

from oncekey.queues.rabbitmq.channel_calls import RabbitRefused
from oncekey.queues.rabbitmq.rabbit_consumer import AsyncRabbitConsumer, RabbitConsumer

__all__ = ["AsyncRabbitConsumer", "RabbitConsumer", "RabbitRefused"]
