"""SQS over boto3: runs the programs of queue_program.py with a client of the sync engine.

A client of boto3 may be used by several threads at once, so nothing is locked here.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker import Settled
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.queue_message import Message
from oncekey.queues.sqs.queue_program import QueueProgram
from oncekey.queues.sqs.sqs_calls import Program, failure_of

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
        if client is not None and not hasattr(client, "receive_message"):
            raise ConfigurationError(
                f"client must be boto3.client('sqs'), not a {type(client).__name__}"
            )
        self._given = client
        self._made: Any = None
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

    def redrive(self, most: int, id: str) -> int:
        return self.run(self.program.redrive(most, id))

    def close(self) -> None:
        """Close the client, if it was made here. Hidden messages are shown when their time ends."""
        self._facts = None
        if self._made is not None:
            self._made.close()
            self._made = None

    def run(self, program: Program[T]) -> T:
        """Run a program of calls."""
        from botocore.exceptions import BotoCoreError, ClientError

        client = self._client()
        answer: Any = None
        while True:
            try:
                call = program.send(answer)
            except StopIteration as stop:
                result: T = stop.value
                return result
            try:
                answer = getattr(client, call.operation)(**call.arguments)
            except (BotoCoreError, ClientError) as error:
                answer = failure_of(error)

    def _client(self) -> Any:
        if self._given is not None:
            return self._given
        if self._made is None:
            import boto3

            self._made = boto3.client("sqs")
        return self._made
