"""A copy whose twin in the same consumer ends while the copy is on its way."""

from __future__ import annotations

from typing import Any

import pytest
from tests.queues.running_consumer import Handled, running, send, wait_until

from oncekey.queues.aio.message_handler import AsyncMessageHandler
from oncekey.queues.blocking.message_handler import MessageHandler
from oncekey.queues.disposition import Disposition, Kind
from oncekey.queues.memory_broker import MemoryBroker

IN_FLIGHT = Disposition(Kind.HIDE, 3600.0)


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_copy_whose_twin_ended_a_moment_ago_is_not_hidden(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key was in flight, and there is no twin any more: that one was done in between."""
    queue, handler, told = MemoryBroker(), Handled(), []
    handle, handle_async = MessageHandler.handle, AsyncMessageHandler.handle

    def first_in_flight(self: MessageHandler, entry: Any) -> Disposition:
        told.append(entry)
        return IN_FLIGHT if len(told) == 1 else handle(self, entry)

    async def first_in_flight_async(self: AsyncMessageHandler, entry: Any) -> Disposition:
        told.append(entry)
        return IN_FLIGHT if len(told) == 1 else await handle_async(self, entry)

    monkeypatch.setattr(MessageHandler, "handle", first_in_flight)
    monkeypatch.setattr(AsyncMessageHandler, "handle", first_in_flight_async)
    send(queue, 1)
    with running(kind, queue) as made:
        made.start(handler, retry_safe=True, lease="1h")
        wait_until(lambda: not len(queue), "the queue is empty")
    assert handler.ids == [1]
