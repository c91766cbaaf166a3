"""SQS for the kill harness: queues on the emulated server of a test run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import boto3
from aiobotocore.session import get_session

from oncekey import AsyncOnce, Once
from oncekey.queues.sqs import AsyncSQSConsumer, SQSConsumer

COUNTS = ("", "NotVisible", "Delayed")
# moto looks at every message of a queue for each one that is received.
WAITING_MAX = 50


class SqsQueues:
    """A `QueueUnderTest`; its one argument is what a client needs to reach the server."""

    def __init__(self, client: dict[str, str]) -> None:
        self._options = client
        # To make a client is slow, and it connects at its first call: forks make use of this one.
        self._client = boto3.client("sqs", **client)
        self._session = get_session()
        self._consumer: Any = None

    def send(self, queue: str, bodies: Sequence[str]) -> None:
        dead = self._client.create_queue(QueueName=f"{queue}-dead")["QueueUrl"]
        policy = {"deadLetterTargetArn": self._attributes(dead)["QueueArn"], "maxReceiveCount": 100}
        made = self._client.create_queue(
            QueueName=queue, Attributes={"RedrivePolicy": json.dumps(policy)}
        )
        for start in range(0, len(bodies), 10):
            while start > WAITING_MAX and self._waiting(made["QueueUrl"]) > WAITING_MAX:
                time.sleep(0.2)
            batch = bodies[start : start + 10]
            entries = [{"Id": str(n), "MessageBody": body} for n, body in enumerate(batch)]
            self._client.send_message_batch(QueueUrl=made["QueueUrl"], Entries=entries)

    def consumer(
        self, once: Once, queue: str, handler: Callable[..., Any], **options: Any
    ) -> SQSConsumer:
        made = SQSConsumer(once, handler, queue, client=self._client, **options)
        self._consumer = made
        return made

    def async_consumer(
        self, once: AsyncOnce, queue: str, handler: Callable[..., Any], **options: Any
    ) -> AsyncSQSConsumer:
        client = self._session.create_client("sqs", **self._options)
        made = AsyncSQSConsumer(once, handler, queue, client=client, **options)
        self._consumer = made
        return made

    def is_drained(self, queue: str) -> bool:
        """Asked twice: a message that becomes visible in the middle of a count is in none of its
        parts. The emulator is not asked while this process itself holds a message."""
        if self._consumer.in_hand:
            return False
        url = self._client.get_queue_url(QueueName=queue)["QueueUrl"]
        return self._is_empty(url) and self._is_empty(url)

    def _is_empty(self, url: str) -> bool:
        found = self._attributes(url)
        return not any(int(found[f"ApproximateNumberOfMessages{kind}"]) for kind in COUNTS)

    def _waiting(self, url: str) -> int:
        return int(self._attributes(url)["ApproximateNumberOfMessages"])

    def _attributes(self, url: str) -> dict[str, str]:
        answer = self._client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
        return dict(answer["Attributes"])
