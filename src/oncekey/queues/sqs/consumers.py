"""Consumers of SQS, with boto3 for threads and with aiobotocore for event loops; their brokers, and
what runs programs of calls with either client.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from oncekey.core.errors import ConfigurationError
from oncekey.core.flow_driver import drive, drive_async
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.once import Once
from oncekey.queues.aio.consumer import AsyncConsumer
from oncekey.queues.blocking.consumer import Consumer
from oncekey.queues.broker import Settled
from oncekey.queues.broker_faults import is_fault
from oncekey.queues.consumer_settings import MAX_TRIES_DEFAULT, BrokerFacts
from oncekey.queues.message_key import KeyChoice
from oncekey.queues.queue_message import Message
from oncekey.queues.redrive import GoOn, to_the_end
from oncekey.queues.sqs.broker_calls import Call, Program, failure_of, making_client
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


class AsyncSQSConsumer(AsyncConsumer):
    """Consumes a queue of SQS with aiobotocore: `await handler(message)` runs once for each key.

    It has the options of SQSConsumer. `client` is what `create_client("sqs")` of an aiobotocore
    session gives, opened by `async with` or not.
    """

    _broker: AiobotocoreBroker

    def __init__(
        self,
        once: AsyncOnce,
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
        broker = AiobotocoreBroker(client, program)
        super().__init__(once, handler, broker, name=name, key=key, max_tries=max_tries, **options)

    async def settle(self, settled: Sequence[Settled]) -> None:
        """Delete, hide or move messages of a loop of your own, as their dispositions say."""
        await self._broker.facts()
        await self._broker.settle(settled)


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


class AiobotocoreBroker:
    """A queue of SQS, from tasks: an `AsyncBroker`."""

    def __init__(self, client: Any, program: QueueProgram) -> None:
        """`client` is one of aiobotocore: see `AiobotocoreCalls`."""
        self.program = program
        self._calls = AiobotocoreCalls(client)
        self._facts: BrokerFacts | None = None

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


# --- programs run by a client ---------------------------------------------------------------------


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
        return drive(program, lambda call: self._answer(client, call))

    def _answer(self, client: Any, call: Call) -> Any:
        try:
            return getattr(client, call.operation)(**call.arguments)
        except Exception as error:
            failure = failure_of(error)
            if not failure.is_known:
                self.close()  # the next program makes another client
            return failure

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


class AiobotocoreCalls:
    """A client that was given, or one that is opened when it is first needed."""

    def __init__(self, client: Any) -> None:
        """`client` is what `session.create_client("sqs")` of aiobotocore gives: the client that
        `async with` opened, or the context itself, which is then opened and closed here. None
        makes one with the default session."""
        entered = hasattr(client, "receive_message")
        if client is not None and not entered and not hasattr(client, "__aenter__"):
            raise ConfigurationError(
                "client must be that of aiobotocore, get_session().create_client('sqs'), not a "
                f"{type(client).__name__}"
            )
        self._given = client
        self._opened: Any = client if entered else None
        self._exit = AsyncExitStack()

    async def run(self, program: Program[T]) -> T:
        """Run a program of calls."""
        client = await self._client()
        return await drive_async(program, lambda call: self._answer(client, call))

    async def _answer(self, client: Any, call: Call) -> Any:
        try:
            return await getattr(client, call.operation)(**call.arguments)
        except BaseException as error:
            if not is_fault(error):
                raise
            failure = failure_of(error)
            if not failure.is_known and self._given is None:
                await self.close()  # the next program makes another client
            return failure

    async def close(self) -> None:
        """Close the client, if it was opened here."""
        await self._exit.aclose()
        if self._given is None or not hasattr(self._given, "receive_message"):
            self._opened = None

    async def _client(self) -> Any:
        if self._opened is None:
            context = self._given
            if context is None:
                from aiobotocore.session import get_session

                context = get_session().create_client("sqs")
            with making_client():
                self._opened = await self._exit.enter_async_context(context)
        return self._opened
