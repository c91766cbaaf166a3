"""SQS over aiobotocore: runs the programs of queue_program.py for consumers in tasks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from oncekey.queues.broker import Settled
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.queue_message import Message
from oncekey.queues.redrive import GoOn, to_the_end
from oncekey.queues.sqs.aiobotocore_calls import AiobotocoreCalls
from oncekey.queues.sqs.queue_program import QueueProgram


class AiobotocoreBroker:
    """A queue of SQS, from tasks: an `AsyncBroker`."""

    def __init__(
        self,
        client: Any,
        queue: str,
        *,
        dead_letter_queue: str | None = None,
        park_queue: str | None = None,
        max_tries: int,
    ) -> None:
        """`client` is one of aiobotocore: see `AiobotocoreCalls`."""
        self._calls = AiobotocoreCalls(client)
        self._facts: BrokerFacts | None = None
        self.program = QueueProgram(
            queue,
            dead_letter_queue=dead_letter_queue,
            park_queue=park_queue,
            max_tries=max_tries,
            clock=time.monotonic,
        )

    async def facts(self) -> BrokerFacts:
        if self._facts is None:  # `handle` of a consumer asks for each message
            self._facts = await self._calls.run(self.program.look_up())
        return self._facts

    async def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        return await self._calls.run(self.program.receive(most, wait, lease, secrets.token_hex))

    async def settle(self, settled: Sequence[Settled]) -> None:
        await self._calls.run(self.program.settle(settled))

    async def extend(self, messages: Sequence[Message], seconds: float) -> None:
        await self._calls.run(self.program.extend(messages, seconds))

    async def redrive(
        self, most: int, id: str, *, parked: bool = False, go_on: GoOn = to_the_end
    ) -> int:
        return await self._calls.run(self.program.redrive(most, id, parked, go_on))

    async def close(self) -> None:
        """Close the client, if it was opened here. Hidden messages are shown when their time
        ends."""
        self._facts = None
        await self._calls.close()
