"""A stop ends a consumer though its real broker answers nothing any more: it is paused, or a proxy
passes nothing on. Client libraries wait for minutes then, some of them for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.queues.fault_cases import Topics
from tests.queues.rabbit_queues import RabbitQueues
from tests.queues.running_consumer import stop_consumer, wait_until
from tests.queues.sqs_queues import SqsQueues
from tests.queues.stream_queues import StreamQueues
from tests.support import redis_stores
from tests.support.log_records import Written, written_log
from tests.support.rabbitmq_queues import rabbitmq
from tests.support.servers import processes
from tests.support.servers.kafka_server import KafkaMock
from tests.support.servers.proxy import Proxy
from tests.support.servers.sqs_server import sqs

from oncekey import AsyncOnce, Once
from oncekey.queues.queue_message import Message

ENDS_S = 60.0  # what ends by itself takes seconds; heartbeats of clients end after 120 and more
LIMITS = ("RECEIVE_LAST_S", "SETTLE_LAST_S", "LEAVE_LAST_S")
Frozen = tuple[Any, Callable[[], None], Callable[[], None]]  # queues, freeze, thaw


def _behind(stack: ExitStack, url: str, make: Callable[[str], Any]) -> Frozen:
    port = urlsplit(url).port
    assert port is not None
    proxy = stack.enter_context(Proxy(port))
    queues = make(url.replace(f":{port}", f":{proxy.port}"))
    return queues, lambda: proxy.hold("requests", "replies"), proxy.heal


def _rabbitmq(stack: ExitStack) -> Frozen:
    return _behind(stack, rabbitmq().url, RabbitQueues)


def _redis(stack: ExitStack) -> Frozen:
    return _behind(stack, redis_stores.valkey().url(), StreamQueues)


def _sqs(stack: ExitStack) -> Frozen:
    server = sqs()
    return _behind(
        stack, server.url, lambda url: SqsQueues(server.options() | {"endpoint_url": url})
    )


def _kafka(stack: ExitStack) -> Frozen:
    mock = stack.enter_context(KafkaMock(is_quick=True))
    topics = Topics(mock.client)
    # A member that a busy machine has kept from its heartbeats would have nothing left to tell.
    topics.session_ms = 60_000
    return topics, mock.pause, mock.resume


def _left_behind() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "oncekey-leave-ship"]


CASES = {"rabbitmq": _rabbitmq, "redis": _redis, "sqs": _sqs, "kafka": _kafka}


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    for module in ("blocking", "aio"):
        for limit in LIMITS:
            monkeypatch.setattr(f"oncekey.queues.{module}.consumer.{limit}", 0.5)
    with written_log("oncekey", 10) as written:
        yield written


@pytest.mark.parametrize("kind", ["threads", "tasks"])
@pytest.mark.parametrize("name", CASES)
def test_a_stop_ends_a_consumer_whose_broker_is_frozen(name: str, kind: str, log: Written) -> None:
    """One message is in hand, whose handler ends when the broker cannot be told of it any more."""
    begun, go_on, made = threading.Event(), threading.Event(), list[Any]()
    stops: list[Callable[[], object]] = []
    options: dict[str, Any] = {"name": "ship", "key": "json:$.id", "stop_timeout": "500ms"}
    queue = processes.fresh_name("frozen")

    def handle(message: Message) -> None:
        begun.set()
        assert go_on.wait(ENDS_S)

    def in_threads() -> None:
        with Once("memory://") as once:
            made.append(queues.consumer(once, queue, handle, **options))
            stops.append(made[0].stop)
            made[0].run()

    async def in_tasks() -> None:
        async def handle_async(message: Message) -> None:
            await asyncio.to_thread(handle, message)

        async with AsyncOnce("memory://") as once:
            made.append(queues.async_consumer(once, queue, handle_async, **options))
            loop = asyncio.get_running_loop()
            stops.append(lambda: stop_consumer(made[0], loop))
            await made[0].run()

    with ExitStack() as stack:
        queues, freeze, thaw = CASES[name](stack)
        stack.callback(thaw)
        queues.send(queue, ['{"id": 1}'])
        target = in_threads if kind == "threads" else lambda: asyncio.run(in_tasks())
        thread = threading.Thread(target=target, daemon=True)
        thread.start()
        wait_until(begun.is_set, "the handler runs")
        freeze()
        go_on.set()
        stops[0]()
        thread.join(ENDS_S)
        assert not thread.is_alive(), "the consumer did not end"
        thaw()
        wait_until(lambda: not _left_behind(), "the broker was left when it answered again")
    assert any("ship: the broker does not answer" in line for line in log.lines)
    assert any("ship ends: it was stopped" in line for line in log.lines)
