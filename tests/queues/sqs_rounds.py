"""SQS consumers one round at a time: receive, handle, settle. The same for sync and async ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from aiobotocore.session import get_session
from tests.support.servers.sqs_server import QueuePair

from oncekey import AsyncOnce, Once
from oncekey.queues.disposition import Disposition
from oncekey.queues.queue_message import Message
from oncekey.queues.sqs import AsyncSQSConsumer, SQSConsumer

T = TypeVar("T")
Handler = Callable[[Message], Any]
OPTIONS: dict[str, Any] = {"name": "shipping", "key": "json:$.order", "backoff": "1s"}
LEASE_S = 30.0


class Rounds(Protocol):
    """A consumer that works in rounds. `wait` is how long a round waits for a message."""

    def round(self, wait: float = 0) -> list[Disposition]: ...
    def handle(self, message: Message) -> Disposition: ...
    def receive(self, wait: float = 0, lease: float = LEASE_S) -> Sequence[Message]: ...
    def settle(self, settled: Sequence[tuple[Message, Disposition]]) -> None: ...
    def redrive(self, most: int, id: str) -> int: ...
    def close(self) -> None: ...


class SyncRounds:
    def __init__(self, pair: QueuePair, store: str, handler: Handler, **options: Any) -> None:
        self.once = Once(store)
        self.consumer = SQSConsumer(
            self.once, handler, pair.source, client=pair.server.client(), **{**OPTIONS, **options}
        )
        self.broker = self.consumer._broker
        self.broker.facts()

    def round(self, wait: float = 0) -> list[Disposition]:
        settled = [(one, self.handle(one)) for one in self.receive(wait)]
        self.settle(settled)
        return [disposition for _, disposition in settled]

    def handle(self, message: Message) -> Disposition:
        return self.consumer.handle(message)

    def receive(self, wait: float = 0, lease: float = LEASE_S) -> Sequence[Message]:
        return self.broker.receive(10, wait, lease)

    def settle(self, settled: Sequence[tuple[Message, Disposition]]) -> None:
        self.broker.settle(settled)

    def redrive(self, most: int, id: str) -> int:
        return self.broker.redrive(most, id)

    def close(self) -> None:
        self.once.close()


class AsyncRounds:
    def __init__(self, pair: QueuePair, store: str, handler: Handler, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._pair = pair
        self._store = store
        self._options = {**OPTIONS, **options}

        async def awaited(message: Message) -> Any:
            return handler(message)

        self._handler = awaited
        self._runner.run(self._open())

    async def _open(self) -> None:
        client = get_session().create_client("sqs", **self._pair.server.options())
        self.once = AsyncOnce(self._store)
        self.consumer = AsyncSQSConsumer(
            self.once, self._handler, self._pair.source, client=client, **self._options
        )
        self.broker = self.consumer._broker
        await self.broker.facts()

    def round(self, wait: float = 0) -> list[Disposition]:
        settled = [(one, self.handle(one)) for one in self.receive(wait)]
        self.settle(settled)
        return [disposition for _, disposition in settled]

    def handle(self, message: Message) -> Disposition:
        return self._run(self.consumer.handle(message))

    def receive(self, wait: float = 0, lease: float = LEASE_S) -> Sequence[Message]:
        return self._run(self.broker.receive(10, wait, lease))

    def settle(self, settled: Sequence[tuple[Message, Disposition]]) -> None:
        self._run(self.broker.settle(settled))

    def redrive(self, most: int, id: str) -> int:
        return self._run(self.broker.redrive(most, id))

    def close(self) -> None:
        self._run(self.broker.close())
        self._run(self.once.close())
        self._runner.close()

    def _run(self, call: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await call

        return self._runner.run(awaited())


ROUNDS: dict[str, type[SyncRounds] | type[AsyncRounds]] = {"sync": SyncRounds, "async": AsyncRounds}
