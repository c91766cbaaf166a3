"""`OutboxPublisher`: sends the messages of an outbox from a thread.

Drives publisher_flow.py: performs its effects and sends back their results.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from oncekey.engine.clock import Clock, SystemClock
from oncekey.engine.once import Once
from oncekey.engine.port import Port
from oncekey.queues.outbox.outbox_table import outbox_store
from oncekey.queues.outbox.outgoing_message import OutgoingMessage
from oncekey.queues.outbox.publisher_base import PublisherBase
from oncekey.queues.outbox.publisher_flow import Effect, Send, Wait
from oncekey.queues.outbox.sender_calls import ThreadCalls, Unanswered
from oncekey.queues.outbox.senders import Sender, sender_of
from oncekey.stores.outbox_commands import OutboxStore

T = TypeVar("T")


class OutboxPublisher(PublisherBase):
    """Sends what an outbox has, at least once and each message under one id, from a thread.

        publisher = OutboxPublisher(once, lambda message: client.send(message.queue, message.body))
        publisher.run()

    `once` is the engine whose store has the outbox, or its URL. `publish` is a function of an
    OutgoingMessage, or a sender of a broker's package; it returns when the broker has the message
    durably, and raises if not. For the options see `PublisherSettings`. Several publishers may run
    at once, in any process. `run` blocks until `stop` is called, from any thread or signal handler,
    and closes the sender at its end. It calls the sender in a thread of its own, so that a client
    that does not return keeps no stop waiting.
    """

    def __init__(
        self,
        once: Once | str,
        publish: Callable[[OutgoingMessage], object] | Sender,
        *,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        self._sender: Sender = sender_of(publish, is_async=False)
        super().__init__(clock or SystemClock(), self._sender.batch_max, options)
        self.once = Once(once) if isinstance(once, str) else once
        self._store: OutboxStore = outbox_store(self.once, Once)
        self._wakened = threading.Event()
        self._calls: ThreadCalls | None = None  # while `run` runs

    def run(self) -> None:
        """Publish until `stop`. What is being sent then is finished, the rest is given back."""
        with self._ending():
            flow = self._begin()
            calls = ThreadCalls(self.name, self.settings.stop_timeout_s, self.stop)
            self._calls = calls
            if self._stopped:
                calls.stop()
            try:
                self._drive(flow)
            finally:
                self._leave(calls)
            if calls.interruption is not None:
                raise calls.interruption

    def _leave(self, calls: ThreadCalls) -> None:
        """Close the sender, as far as the time allows."""
        calls.stop()
        close = getattr(self._sender, "close", None)
        try:
            if close is not None:
                calls.run(close)
        except Unanswered:
            pass  # it is told below, as a message is that was being sent
        finally:
            if calls.left_behind:
                self._tell_unanswered()
            calls.end()
            self._calls = None
            self._is_running = self._stopped = False

    def publish_due(self) -> int:
        """Publish what is due now, and return how many messages that were."""
        Port(self.once).ready()
        return self._drive(self._until_empty())

    def stop(self) -> None:
        """Let `run` return when what it is sending is sent and settled, after `stop_timeout` at
        the latest."""
        self._stopped = True
        if (calls := self._calls) is not None:
            calls.stop()
        self._wakened.set()

    def wake(self) -> None:
        """Look for messages now instead of at the next poll."""
        self._wakened.set()

    def _drive(self, flow: Generator[Effect, Any, T]) -> T:
        try:
            effect = next(flow)
            while True:
                try:
                    result = self._perform(effect)
                except BaseException as error:
                    effect = flow.throw(error)
                else:
                    effect = flow.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Wait):
            self._clock.wait(self._wakened, effect.us)
            self._wakened.clear()
            return None
        if isinstance(effect, Send):
            try:
                if self._calls is not None:
                    return self._calls.run(self._sender.send, effect.messages)
                return self._sender.send(effect.messages)
            except Exception as error:
                return error
        # In the loop, so that a store that is not up yet is waited for.
        Port(self.once).ready()
        return self._store.outbox(effect)
