"""SQS for threads, over boto3: `SQSConsumer`, its broker, and what runs programs of calls."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from oncekey.core.errors import ConfigurationError
from oncekey.engine.once import Once
from oncekey.queues.blocking.consumer import Consumer
from oncekey.queues.broker import Settled
from oncekey.queues.consumer_settings import MAX_TRIES_DEFAULT, BrokerFacts
from oncekey.queues.message_key import KeyChoice
from oncekey.queues.queue_message import Message
from oncekey.queues.redrive import GoOn, to_the_end
from oncekey.queues.sqs.broker_calls import Program, failure_of, making_client
from oncekey.queues.sqs.program import QueueProgram

T = TypeVar("T")


class SQSConsumer(Consumer):
    """Consumes a queue of SQS with boto3: `handler(message)` runs once for each key.

        consumer = SQSConsumer(once, ship, "orders", name="shipping", key="json:$.order")
        consumer.run()                      # until consumer.stop(), from a signal handler

    queue               its URL, its ARN or its name
    client              `boto3.client("sqs")`; made with the environment's settings if left out
    dead_letter_queue   where messages go that failed for good; by default the one that the queue's
                        redrive policy names
    park_queue          where messages go whose outcome nobody knows; by default the dead-letter
                        queue too

    The other options are those of every consumer (`ConsumerSettings`) and the fields of Policy.
    For a loop of your own, `handle(message_of(raw, queue))` and `settle` do the two halves.
    """

    _broker: Boto3Broker

    def __init__(
        self,
        once: Once,
        handler: Callable[..., Any],
        queue: str,
        *,
        name: str,
        key: KeyChoice,
        client: Any = None,
        dead_letter_queue: str | None = None,
        park_queue: str | None = None,
        max_tries: int = MAX_TRIES_DEFAULT,
        **options: Any,
    ) -> None:
        program = QueueProgram(queue, dead_letter_queue, park_queue, max_tries=max_tries)
        broker = Boto3Broker(client, program)
        super().__init__(once, handler, broker, name=name, key=key, max_tries=max_tries, **options)

    def settle(self, settled: Sequence[Settled]) -> None:
        """Delete, hide or move messages of a loop of your own, as their dispositions say."""
        self._broker.facts()
        self._broker.settle(settled)


class Boto3Broker:
    """A queue of SQS, from threads: a `Broker`."""

    def __init__(self, client: Any, program: QueueProgram) -> None:
        """`client` is `boto3.client("sqs")`; None makes one when it is first needed."""
        self.program = program
        self._calls = Boto3Calls(client)
        self._facts: BrokerFacts | None = None

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


class Boto3Calls:
    """A client that was given, or one that is made when it is first needed."""

    def __init__(self, client: Any) -> None:
        """`client` is `boto3.client("sqs")`, or None."""
        if client is not None and not hasattr(client, "receive_message"):
            raise ConfigurationError(
                f"client must be boto3.client('sqs'), not a {type(client).__name__}"
            )
        self._given = client
        self._made: Any = None

    def run(self, program: Program[T]) -> T:
        """Run a program of calls."""
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
            except Exception as error:
                answer = failure_of(error)
                if not answer.is_known:
                    self.close()  # the next program makes another client

    def close(self) -> None:
        """Close the client, if it was made here."""
        made, self._made = self._made, None
        if made is not None:
            made.close()

    def _client(self) -> Any:
        if self._given is not None:
            return self._given
        made = self._made
        if made is None:
            import boto3

            with making_client():
                made = self._made = boto3.client("sqs")
        return made
