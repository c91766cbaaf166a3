"""A RabbitMQ node starts, is killed and leaves nothing behind. That it comes back with its queues
is shown by tests/queues/test_rabbitmq_consumer.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika
from tests.support.servers import RabbitServer, processes, require


@contextmanager
def channel_of(server: RabbitServer) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    yield connection.channel()
    if connection.is_open:
        connection.close()


def test_a_node_ends_with_its_port_mapper_and_its_data() -> None:
    with require(RabbitServer) as server:
        with channel_of(server) as channel:
            channel.queue_declare("orders", durable=True, arguments={"x-queue-type": "quorum"})
        server.wait_until_known("orders")
        assert server.ask("GET", "queues/%2F/orders")["type"] == "quorum"
        pids, folder = [server.pid, server.mapper.pid], server.directory
        server.kill()
        assert not processes.is_running(pids[0])
        assert processes.is_running(pids[1])  # the port mapper outlives a killed node
    assert not any(map(processes.is_running, pids))
    assert not folder.exists()
