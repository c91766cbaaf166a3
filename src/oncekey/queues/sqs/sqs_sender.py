"""Senders of SQS, for the publishers of an outbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncekey.queues.outbox.outgoing_message import OutgoingMessage
from oncekey.queues.outbox.senders import SENDER_BATCH_MAX
from oncekey.queues.sqs.aiobotocore_calls import AiobotocoreCalls
from oncekey.queues.sqs.boto3_calls import Boto3Calls
from oncekey.queues.sqs.outgoing_program import OutgoingProgram


class SQSSender:
    """Sends messages of an outbox to SQS with boto3, for `OutboxPublisher`.

        publisher = OutboxPublisher(once, SQSSender())

    client   `boto3.client("sqs")`; made with the environment's settings if left out

    A message's queue is the name, the URL or the ARN of one. In a FIFO queue `order_group` is its
    MessageGroupId and its id the MessageDeduplicationId.
    """

    batch_max = SENDER_BATCH_MAX

    def __init__(self, client: Any = None) -> None:
        self._calls = Boto3Calls(client)
        self._program = OutgoingProgram()

    def send(self, messages: Sequence[OutgoingMessage], /) -> list[Exception | None]:
        """Send messages; None for each that SQS has taken, or its error."""
        return self._calls.run(self._program.send(messages))

    def close(self) -> None:
        """Close the client, if it was made here."""
        self._calls.close()


class AsyncSQSSender:
    """The same with aiobotocore, for `AsyncOutboxPublisher`. `client` is what
    `create_client("sqs")` of an aiobotocore session gives, opened by `async with` or not."""

    batch_max = SENDER_BATCH_MAX

    def __init__(self, client: Any = None) -> None:
        self._calls = AiobotocoreCalls(client)
        self._program = OutgoingProgram()

    async def send(self, messages: Sequence[OutgoingMessage], /) -> list[Exception | None]:
        """Send messages; None for each that SQS has taken, or its error."""
        return await self._calls.run(self._program.send(messages))

    async def close(self) -> None:
        """Close the client, if it was opened here."""
        await self._calls.close()
