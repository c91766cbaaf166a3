"""Runs programs of calls with a client of aiobotocore."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, TypeVar

from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker_faults import is_fault
from oncekey.queues.sqs.sqs_calls import Program, failure_of, making_client

T = TypeVar("T")


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
        answer: Any = None
        while True:
            try:
                call = program.send(answer)
            except StopIteration as stop:
                result: T = stop.value
                return result
            try:
                answer = await getattr(client, call.operation)(**call.arguments)
            except BaseException as error:
                if not is_fault(error):
                    raise
                answer = failure_of(error)
                if not answer.is_known and self._given is None:
                    await self.close()  # the next program makes another client

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
