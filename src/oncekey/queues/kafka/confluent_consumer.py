"""`KafkaConsumer`: consumes a topic of Kafka in threads, over confluent-kafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oncekey.engine.once import Once
from oncekey.queues.blocking.consumer import Consumer
from oncekey.queues.kafka.confluent_broker import ConfluentBroker
from oncekey.queues.kafka.kafka_settings import CONFLUENT, settings_of
from oncekey.queues.message_key import DELIVERY, KeyChoice


class KafkaConsumer(Consumer):
    """Consumes a topic of Kafka in threads: calls `handler(message)` once for each key.

    An offset is committed only past messages whose outcome is stored, or which were written to
    another topic by all replicas. `run` blocks until `stop` is called.
    """

    def __init__(
        self,
        once: Once,
        handler: Callable[..., Any],
        topic: str,
        *,
        name: str,
        key: KeyChoice,
        config: Mapping[str, Any],
        **options: Any,
    ) -> None:
        """
        config   options of confluent-kafka's Consumer; `auto.offset.reset` must be among them
        key      where the key of a message is: "header:NAME", "json:$.path", a function, "delivery"

        The options of this class are the fields of `KafkaSettings`: `order`, the topics that it
        writes to, and its limits. Those of every consumer are in `ConsumerSettings`.
        """
        settings = settings_of(topic, config, name, CONFLUENT, options)
        broker = ConfluentBroker(settings, config, needs_identity=key == DELIVERY)
        super().__init__(once, handler, broker, name=name, key=key, **options)
