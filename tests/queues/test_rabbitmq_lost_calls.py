"""Calls of aio-pika that are in flight when RabbitMQ ends a subscription, and so the connection.

aiormq gives them a bare `Exception`, or cancels them though nobody has cancelled the task that
waits. Neither may end the consumer.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiormq
import pytest
from tests.queues.rabbit_queues import QUORUM, channel_to
from tests.support.rabbitmq_queues import rabbitmq
from tests.support.servers import Proxy, processes

from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.rabbitmq.consumers import AioPikaBroker
from oncekey.queues.rabbitmq.program import CountMessages, Program
from oncekey.queues.rabbitmq.settings import RabbitSettings


@pytest.fixture
def queue() -> str:
    name = processes.fresh_name("orders")
    with channel_to(rabbitmq().url) as channel:
        channel.queue_declare(name, durable=True, arguments=QUORUM)
    return name


@pytest.mark.parametrize("is_held", [True, False], ids=["reply held", "reply on its way"])
def test_a_call_that_is_in_flight_when_the_subscription_ends_is_unavailable(
    queue: str, is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count() -> Program[Any]:
        return (yield CountMessages(queue))

    async def main(proxy: Proxy) -> None:
        url = rabbitmq().url.replace(str(rabbitmq().port), str(proxy.port))
        broker = AioPikaBroker(RabbitSettings(url=url, queue=queue))
        await broker.receive(1, 0.01, 1.0)
        session = broker.sessions.current
        assert session is not None
        rpc = aiormq.Channel.rpc

        async def in_flight(channel: Any, frame: Any, *more: Any, **options: Any) -> Any:
            if isinstance(frame, aiormq.spec.Confirm.Select):
                if is_held:
                    proxy.hold("replies")
                await session._cancelled(frame)  # it begins to close the connection
            return await rpc(channel, frame, *more, **options)

        with monkeypatch.context() as patch:
            patch.setattr(aiormq.Channel, "rpc", in_flight)
            with pytest.raises(BrokerUnavailable, match="ended the subscription"):
                await session.run(count())
        proxy.resume()
        assert await broker.receive(1, 0.01, 1.0) == [], "it is connected again"
        await broker.close()

    with Proxy(rabbitmq().port) as proxy:
        asyncio.run(main(proxy))
