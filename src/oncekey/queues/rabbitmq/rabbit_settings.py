"""The settings of a broker of RabbitMQ, checked, for both clients."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from oncekey.core.duration import Duration, microseconds
from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker_identity import identity_of
from oncekey.queues.consumer_settings import BATCH_DEFAULT, BrokerFacts
from oncekey.queues.rabbitmq.rabbit_facts import (
    QueueReport,
    Version,
    ask_management,
    cluster_doubt,
    facts_of,
    parse_report,
    virtual_host,
    warnings_of,
)
from oncekey.queues.rabbitmq.topology import QueueNames, names_of

CONNECT_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 10.0  # for RabbitMQ to take leave of a session
PUBLISH_TIMEOUT_S: Final = 30.0  # for RabbitMQ to confirm a copy
_SECOND: Final = 1_000_000
_log = logging.getLogger("oncekey")


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitSettings:
    """Where the queue is, and what is known of it beforehand: see `RabbitConsumer`."""

    url: str | Sequence[str]
    queue: str
    dead_letter_queue: str | None = None
    park_queue: str | None = None
    declare: bool = False
    management_url: str | None = None
    consumer_timeout: Duration | None = None
    identity: str | None = None
    prefetch: int = BATCH_DEFAULT

    def __post_init__(self) -> None:
        if not isinstance(self.queue, str) or not self.queue:
            raise ConfigurationError("queue= must be the name of a queue")
        if self.queue in (self.names.dead_letters, self.names.parked):
            # A dead letter that comes back is a redrive: its handler would run again for ever.
            raise ConfigurationError(
                f"dead_letter_queue and park_queue must be other queues than {self.queue!r}, "
                "which is consumed"
            )
        for url in self.urls:
            if urlsplit(url).scheme not in ("amqp", "amqps"):
                raise ConfigurationError("url= must be such as amqp://user:password@host:5672/")
        if not self.urls:
            raise ConfigurationError("url= is empty")
        if self.consumer_timeout is not None:
            microseconds(self.consumer_timeout, name="consumer_timeout")

    @property
    def urls(self) -> list[str]:
        """The addresses of the nodes."""
        return [self.url] if isinstance(self.url, str) else list(self.url)

    def shuffled(self) -> list[str]:
        """The addresses in the order in which a session tries them, so that the consumers of a
        lost node do not all go to the same one."""
        return random.sample(self.urls, len(self.urls))

    @property
    def names(self) -> QueueNames:
        return names_of(self.queue, self.dead_letter_queue, self.park_queue)

    def ask_report(self, version: Version) -> QueueReport | None:
        """What the management API tells, if its address was given. Blocks."""
        if self.management_url is None:
            return None
        answer = ask_management(self.management_url, virtual_host(self.urls[0]), self.queue)
        return parse_report(answer, version)

    def facts(
        self, version: Version, report: QueueReport | None, cluster: str | None = None
    ) -> BrokerFacts:
        """What the loop has to know; warns of what may lose messages."""
        if report is not None:
            for warning in warnings_of(self.queue, report):
                _log.warning("RabbitMQ: %s", warning)
        timeout = self.consumer_timeout
        doubt, needs_name = cluster_doubt(cluster, len(self.urls))
        facts = facts_of(
            self.queue,
            version,
            report,
            identity=self.identity,
            broker=identity_of("rabbitmq", vhost=virtual_host(self.urls[0]), cluster=cluster),
            consumer_timeout=(
                None
                if timeout is None
                else microseconds(timeout, name="consumer_timeout") / _SECOND
            ),
        )
        return facts._replace(broker_doubt=doubt, needs_name=needs_name)
