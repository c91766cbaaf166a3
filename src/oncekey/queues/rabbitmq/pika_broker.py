"""A queue of RabbitMQ for threads, over pika."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Final

from oncekey.queues.broker import BrokerUnavailable, Settled
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.queue_message import Message
from oncekey.queues.rabbitmq.pika_session import PikaSession
from oncekey.queues.rabbitmq.rabbit_settings import RabbitSettings
from oncekey.queues.redrive import GoOn, to_the_end

# Messages are sent here, so nothing is asked of RabbitMQ more often by waiting for less: and a
# consumer that stops does not wait for long.
WAIT_MAX_S: Final = 0.5


class PikaBroker:
    """The port `Broker`. It opens a session when it needs one, and a new one after that has
    ended."""

    def __init__(self, settings: RabbitSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._session: PikaSession | None = None
        self._facts: BrokerFacts | None = None
        self._retry_delay: float | None = None

    def use_prefetch(self, messages: int) -> None:
        """Say how many messages RabbitMQ sends before some are settled."""
        self.settings = dataclasses.replace(self.settings, prefetch=messages)

    def facts(self) -> BrokerFacts:
        if self._facts is None:
            session = self._opened()
            session.run(session.program.prepare(declare=self.settings.declare))
            report = self.settings.ask_report(session.version)
            self._facts = self.settings.facts(session.version, report, session.cluster)
            if report is not None:
                session.program.retry_delay = self._retry_delay = report.retry_delay
        return self._facts

    def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        session = self._opened()
        if most == 0:
            return ()
        if not session.program.is_subscribed:
            session.run(session.program.subscribe(self.settings.prefetch))
        messages = session.take(most, min(wait, WAIT_MAX_S))
        if session.program.may_be_of_a_stream(messages):
            session.run(session.program.check_kind())
        return messages

    def settle(self, settled: Sequence[Settled]) -> None:
        session = self._session
        mine = [pair for pair in settled if pair[0].raw.session is session]
        if session is not None and mine:
            session.run(session.program.settle(mine))
        if len(mine) < len(settled):
            raise BrokerUnavailable("the connection to RabbitMQ was lost meanwhile")

    def extend(self, messages: Sequence[Message], seconds: float) -> None:
        """RabbitMQ has no deadline that could be extended: a message is its consumer's until the
        consumer timeout, which `facts` told."""

    def redrive(self, most: int, id: str, *, parked: bool = False, go_on: GoOn = to_the_end) -> int:
        session = self._opened()
        return session.run(session.program.redrive(most, id, parked, go_on))

    def close(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def _opened(self) -> PikaSession:
        with self._lock:
            if self._session is None or not self._session.is_open:
                self._session = None
                self._session = PikaSession(self.settings)
                self._session.program.retry_delay = self._retry_delay
            return self._session
