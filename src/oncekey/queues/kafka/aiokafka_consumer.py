"""`AsyncKafkaConsumer`: consumes a topic of Kafka in an event loop, over aiokafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oncekey.engine.async_once import AsyncOnce
from oncekey.queues.aio.consumer import AsyncConsumer
from oncekey.queues.kafka.aiokafka_broker import AiokafkaBroker
from oncekey.queues.kafka.kafka_settings import AIOKAFKA, settings_of
from oncekey.queues.message_key import DELIVERY, KeyChoice


class AsyncKafkaConsumer(AsyncConsumer):
    """Consumes a topic of Kafka in an event loop: see `KafkaConsumer`."""

    def __init__(
        self,
        once: AsyncOnce,
        handler: Callable[..., Any],
        topic: str,
        *,
        name: str,
        key: KeyChoice,
        config: Mapping[str, Any],
        **options: Any,
    ) -> None:
        """
        config   options of AIOKafkaConsumer; `auto_offset_reset` must be among them
        key      where the key of a message is: "header:NAME", "json:$.path", a function, "delivery"

        The options of this class are the fields of `KafkaSettings`: `order`, the topics that it
        writes to, and its limits. Those of every consumer are in `ConsumerSettings`.
        """
        settings = settings_of(topic, config, name, AIOKAFKA, options)
        broker = AiokafkaBroker(settings, config, needs_identity=key == DELIVERY)
        super().__init__(once, handler, broker, name=name, key=key, **options)
