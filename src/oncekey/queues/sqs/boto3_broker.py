"""SQS over boto3: runs the programs of queue_program.py for consumers in threads."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from oncekey.queues.broker import Settled
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.queue_message import Message
from oncekey.queues.redrive import GoOn, to_the_end
from oncekey.queues.sqs.boto3_calls import Boto3Calls
from oncekey.queues.sqs.queue_program import QueueProgram
from oncekey.queues.sqs.sqs_calls import Program

T = TypeVar("T")


class Boto3Broker:
    """A queue of SQS, from threads: a `Broker`."""

    def __init__(
        self,
        client: Any,
        queue: str,
        *,
        dead_letter_queue: str | None = None,
        park_queue: str | None = None,
        max_tries: int,
    ) -> None:
        """`client` is `boto3.client("sqs")`; None makes one when it is first needed."""
        self._calls = Boto3Calls(client)
        self._facts: BrokerFacts | None = None
        self.program = QueueProgram(
            queue,
            dead_letter_queue=dead_letter_queue,
            park_queue=park_queue,
            max_tries=max_tries,
            clock=time.monotonic,
        )

    def facts(self) -> BrokerFacts:
        if self._facts is None:  # `handle` of a consumer asks for each message
            self._facts = self.run(self.program.look_up())
        return self._facts

    def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        return self.run(self.program.receive(most, wait, lease, secrets.token_hex))

    def settle(self, settled: Sequence[Settled]) -> None:
        self.run(self.program.settle(settled))

    def extend(self, messages: Sequence[Message], seconds: float) -> None:
        self.run(self.program.extend(messages, seconds))

    def redrive(self, most: int, id: str, *, parked: bool = False, go_on: GoOn = to_the_end) -> int:
        return self.run(self.program.redrive(most, id, parked, go_on))

    def close(self) -> None:
        """Close the client, if it was made here. Hidden messages are shown when their time ends."""
        self._facts = None
        self._calls.close()

    def run(self, program: Program[T]) -> T:
        """Run a program of calls."""
        return self._calls.run(program)
