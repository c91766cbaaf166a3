"""A RabbitMQ node starts, is killed and comes back as tests rely on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika
from tests.support.servers import RabbitServer, processes, require

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@contextmanager
def channel_of(server: RabbitServer) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    yield connection.channel()
    if connection.is_open:
        connection.close()


def test_a_killed_node_has_the_messages_of_its_quorum_queue_again() -> None:
    with require(RabbitServer) as server:
        with channel_of(server) as channel:
            channel.queue_declare("kept", durable=True, arguments={"x-queue-type": "quorum"})
            channel.confirm_delivery()
            channel.basic_publish("", "kept", b"order 17", PERSISTENT)
        server.wait_until_known("kept")
        pids, folder = [server.pid, server.mapper.pid], server.directory
        server.kill()
        assert processes.is_running(pids[1])  # the port mapper outlives a killed node
        server.start()
        with channel_of(server) as channel:
            assert next(channel.consume("kept"))[2] == b"order 17"
        assert server.ask("GET", "queues/%2F/kept")["type"] == "quorum"
    assert not any(map(processes.is_running, pids))
    assert not folder.exists()
