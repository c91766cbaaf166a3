"""SQS over aiobotocore: runs the programs of queue_program.py with a client of the async engine."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker import Settled
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.queue_message import Message
from oncekey.queues.sqs.queue_program import QueueProgram
from oncekey.queues.sqs.sqs_calls import Program, failure_of

T = TypeVar("T")


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
            self._facts = await self._run(self.program.look_up())
        return self._facts

    async def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        return await self._run(self.program.receive(most, wait, lease, secrets.token_hex))

    async def settle(self, settled: Sequence[Settled]) -> None:
        await self._run(self.program.settle(settled))

    async def extend(self, messages: Sequence[Message], seconds: float) -> None:
        await self._run(self.program.extend(messages, seconds))

    async def redrive(self, most: int, id: str) -> int:
        return await self._run(self.program.redrive(most, id))

    async def close(self) -> None:
        """Close the client, if it was opened here. Hidden messages are shown when their time
        ends."""
        self._facts = None
        await self._exit.aclose()
        if self._given is None or not hasattr(self._given, "receive_message"):
            self._opened = None

    async def _run(self, program: Program[T]) -> T:
        from botocore.exceptions import BotoCoreError, ClientError

        client = await self._client()
        answer: Any = None
        while True:
            try:
                call = program.send(answer)
            except StopIteration as stop:
                result: T = stop.value
                return result
            try:
                answer = await getattr(client, call.operation)(**call.arguments)
            except (BotoCoreError, ClientError) as error:
                answer = failure_of(error)

    async def _client(self) -> Any:
        if self._opened is None:
            context = self._given
            if context is None:
                from aiobotocore.session import get_session

                context = get_session().create_client("sqs")
            self._opened = await self._exit.enter_async_context(context)
        return self._opened
