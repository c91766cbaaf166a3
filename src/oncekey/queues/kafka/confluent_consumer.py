"""Consumers of Kafka topics: `KafkaConsumer` in threads, over confluent-kafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oncekey.core.duration import Duration
from oncekey.engine.blocking.once import Once
from oncekey.queues.blocking.consumer import Consumer
from oncekey.queues.kafka.confluent_broker import ConfluentBroker
from oncekey.queues.kafka.kafka_settings import (
    ASK_TIMEOUT_DEFAULT,
    CONFLUENT,
    MAX_UNCOMMITTED_DEFAULT,
    REVOKE_TIMEOUT_DEFAULT,
    STUCK_AFTER_DEFAULT,
    Order,
    check_config,
    group_of,
    settings_of,
)
from oncekey.queues.message_key import DELIVERY, KeyChoice


class KafkaConsumer(Consumer):
    """Consumes a topic of Kafka in threads: calls `handler(message)` once for each key.

    An offset is committed only past messages whose outcome is stored, or which were written to
    another topic by all replicas. `run` blocks until `stop` is called.
    """

    def __init__(
        self,
        once: Once,
        topic: str,
        handler: Callable[..., Any],
        *,
        config: Mapping[str, Any],
        name: str,
        key: KeyChoice,
        order: Order = "partition",
        retry_topic: str | None = "",
        dead_letter_topic: str = "",
        park_topic: str = "",
        max_uncommitted: int = MAX_UNCOMMITTED_DEFAULT,
        stuck_after: Duration = STUCK_AFTER_DEFAULT,
        revoke_timeout: Duration = REVOKE_TIMEOUT_DEFAULT,
        ask_timeout: Duration = ASK_TIMEOUT_DEFAULT,
        **options: Any,
    ) -> None:
        """
        config   options of confluent-kafka's Consumer; `auto.offset.reset` must be among them, and
                 `group.id` is the consumer's name if it is not
        key      where the key of a message is: "header:NAME", "json:$.path", a function, "delivery"
        order    "partition", "key" or "none": what is handled one after the other

        The other options of this class are in `KafkaSettings`, those of every consumer in
        `ConsumerSettings`.
        """
        settings = settings_of(
            topic,
            group_of(config, name, CONFLUENT),
            order=order,
            retry_topic=retry_topic,
            dead_letter_topic=dead_letter_topic,
            park_topic=park_topic,
            max_uncommitted=max_uncommitted,
            stuck_after=stuck_after,
            revoke_timeout=revoke_timeout,
            ask_timeout=ask_timeout,
        )
        check_config(config, CONFLUENT, settings.revoke_timeout)
        broker = ConfluentBroker(settings, config, needs_identity=key == DELIVERY)
        super().__init__(once, broker, handler, name=name, key=key, **options)
