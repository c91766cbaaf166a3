"""A publisher that is killed by SIGKILL when RabbitMQ has confirmed its messages.

Run as a program: the URL of the store, and that of RabbitMQ.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from tests.queues.moved_clock import still_store

from oncekey import Once
from oncekey.queues.outbox import OutboxPublisher, OutgoingMessage
from oncekey.queues.rabbitmq import RabbitSender


class KilledSender(RabbitSender):
    def send(self, messages: Sequence[OutgoingMessage], /) -> list[Exception | None]:
        assert super().send(messages) == [None] * len(messages)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it was not killed")


if __name__ == "__main__":
    store, broker = sys.argv[1:]
    OutboxPublisher(Once(still_store(store)), KilledSender(broker), lease="30s").publish_due()
