"""`AsyncOutboxPublisher`: sends the messages of an outbox from a task.

Drives publisher_flow.py: performs its effects and sends back their results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.clock import Clock, SystemClock
from oncekey.engine.port import AsyncPort
from oncekey.queues.broker_faults import answered
from oncekey.queues.outbox.outbox_table import outbox_store
from oncekey.queues.outbox.outgoing_message import OutgoingMessage
from oncekey.queues.outbox.publisher_base import PublisherBase
from oncekey.queues.outbox.publisher_flow import Effect, Send, Wait
from oncekey.queues.outbox.sender_calls import TaskCalls, Unanswered
from oncekey.queues.outbox.senders import AsyncSender, sender_of
from oncekey.stores.outbox_commands import AsyncOutboxStore

T = TypeVar("T")


class AsyncOutboxPublisher(PublisherBase):
    """The same as OutboxPublisher, for asyncio: `once` is an AsyncOnce or a URL, `publish` an async
    function or sender. Cancelling `run` settles what was sent."""

    def __init__(
        self,
        once: AsyncOnce | str,
        publish: Callable[[OutgoingMessage], Awaitable[object]] | AsyncSender,
        *,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        self._sender: AsyncSender = sender_of(publish, is_async=True)
        super().__init__(clock or SystemClock(), self._sender.batch_max, options)
        self.once = AsyncOnce(once) if isinstance(once, str) else once
        self._store: AsyncOutboxStore = outbox_store(self.once, AsyncOnce)
        self._wakened = asyncio.Event()
        self._calls: TaskCalls | None = None  # while `run` runs

    async def run(self) -> None:
        """Publish until `stop`. What is being sent then is finished, the rest is given back."""
        with self._ending():
            flow = self._begin()
            calls = self._calls = TaskCalls(self.settings.stop_timeout_s)
            if self._stopped:
                calls.stop()
            try:
                await self._drive(flow)
            finally:
                await self._leave(calls)

    async def _leave(self, calls: TaskCalls) -> None:
        """Close the sender, as far as the time allows."""
        calls.stop()
        close = getattr(self._sender, "close", None)
        try:
            if close is not None:
                await calls.run(close(), cancel=False)
        except Unanswered:
            pass  # it is told below, as a message is that was being sent
        finally:
            if calls.left_behind:
                self._tell_unanswered()
            self._calls = None
            self._is_running = self._stopped = False

    async def publish_due(self) -> int:
        """Publish what is due now, and return how many messages that were."""
        await AsyncPort(self.once).ready()
        return await self._drive(self._until_empty())

    def stop(self) -> None:
        """Let `run` return when what it is sending is sent and settled, after `stop_timeout` at
        the latest."""
        self._stopped = True
        if self._calls is not None:
            self._calls.stop()
        self._wakened.set()

    def wake(self) -> None:
        """Look for messages now instead of at the next poll."""
        self._wakened.set()

    async def _drive(self, flow: Generator[Effect, Any, T]) -> T:
        try:
            effect = next(flow)
            while True:
                try:
                    result = await self._perform(effect)
                except GeneratorExit:
                    raise  # the event loop is shutting down: nothing can be awaited any more
                except BaseException as error:
                    effect = flow.throw(error)
                else:
                    effect = flow.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value

    async def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Wait):
            timer = self._clock.later(effect.us, self._wakened.set)
            try:
                await self._wakened.wait()
            finally:
                timer.cancel()
            self._wakened.clear()
            return None
        if isinstance(effect, Send):
            sending = self._sender.send(effect.messages)
            try:
                if self._calls is not None:
                    return await self._calls.run(sending)
                return await answered(sending)
            except Exception as error:
                return error
        await AsyncPort(
            self.once
        ).ready()  # in the loop, so that a store that is not up yet is waited for
        return await self._store.outbox(effect)
