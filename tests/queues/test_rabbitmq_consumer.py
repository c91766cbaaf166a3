"""Consumers of RabbitMQ: duplicates, dead letters, redrives, timeouts, lost connections."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.queues.rabbit_brokers import PATIENCE_S, broker_of, consuming
from tests.queues.rabbit_queues import QUORUM, channel_to, delayed, publish, waiting
from tests.support.rabbitmq_queues import rabbitmq
from tests.support.servers import Proxy, RabbitServer, processes, require

from oncekey import Terminal
from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker import BrokerUnavailable, LoginRefused
from oncekey.queues.disposition import Disposition, Kind
from oncekey.queues.queue_message import Message
from oncekey.queues.rabbitmq.consumers import AioPikaBroker
from oncekey.queues.rabbitmq.program import Program, Publish
from oncekey.queues.rabbitmq.settings import RabbitSettings


@pytest.fixture(params=("sync", "async"))
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def channel() -> Iterator[Any]:
    with channel_to(rabbitmq().url) as made:
        yield made


@pytest.fixture
def queue(channel: Any) -> str:
    name = processes.fresh_name("orders")
    channel.queue_declare(name, durable=True, arguments=QUORUM)
    return name


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'keys.db'}"


class Handler:
    """Notes the orders it is called with; it can be held, and fails as long as `error` is set."""

    def __init__(self, *, held: bool = False, error: Exception | None = None) -> None:
        self.orders: list[Any] = []
        self.error = error
        self.gate = threading.Event()
        if not held:
            self.gate.set()

    def __call__(self, message: Message) -> None:
        self.orders.append(message.json()["order"])
        assert self.gate.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error


def order(number: object) -> str:
    return json.dumps({"order": number})


def wait_for(consumer: Any, kind: Kind, count: int) -> None:
    processes.wait_until(
        lambda: consumer.counts[kind] >= count, f"{count} times {kind}, not {consumer.counts}"
    )


def test_a_duplicate_of_what_runs_elsewhere_waits_and_is_not_handled(
    kind: str, channel: Any, queue: str, store: str
) -> None:
    options = {"url": rabbitmq().url, "lease": "1s", "retry_safe": True}
    handler, other = Handler(held=True), Handler()
    with consuming(kind, store, handler, queue, **options) as first:
        publish(channel, queue, order(17), message_id="a")
        processes.wait_until(lambda: handler.orders == [17], "the handler runs")
        with consuming(kind, store, other, queue, **options) as second:
            # Both consumers are sent messages in turn, so one of these is the second's.
            publish(channel, queue, order(17), message_id="b")
            publish(channel, queue, order(17), message_id="c")
            processes.wait_until(
                lambda: first.counts[Kind.HIDE] + second.counts[Kind.HIDE] >= 2, "both are hidden"
            )
            assert delayed(channel, queue) >= 1
            assert first.counts[Kind.REMOVE] + second.counts[Kind.REMOVE] == 0
            handler.gate.set()
            processes.wait_until(
                lambda: first.counts[Kind.REMOVE] + second.counts[Kind.REMOVE] == 3,
                "all three are removed",
            )
    assert handler.orders + other.orders == [17]
    assert delayed(channel, queue) + waiting(channel, queue) == 0


def test_a_terminal_failure_is_a_dead_letter_and_runs_once_more_when_redriven(
    kind: str, channel: Any, queue: str, store: str
) -> None:
    handler = Handler(error=Terminal("the card is stolen"))
    with consuming(kind, store, handler, queue, url=rabbitmq().url) as consumer:
        publish(channel, queue, order(17))
        wait_for(consumer, Kind.DEAD_LETTER, 1)
        method, properties, body = channel.basic_get(f"{queue}.dead", auto_ack=True)
        assert method is not None
        assert properties.headers["oncekey-error"] == "Terminal: the card is stolen"
        # An ordinary duplicate of a failed message does not run.
        publish(channel, queue, order(17))
        wait_for(consumer, Kind.DEAD_LETTER, 2)
        assert handler.orders == [17]
        # Moved back, as a shovel does it, and delivered twice: it runs once more.
        handler.error = None
        for _ in range(2):
            channel.basic_publish("", queue, body, properties)
        wait_for(consumer, Kind.REMOVE, 2)
    assert handler.orders == [17, 17]


def test_oncekey_redrive_opens_a_failed_key_once(
    kind: str, channel: Any, queue: str, store: str
) -> None:
    handler = Handler(error=ValueError("out of stock"))
    options = {"url": rabbitmq().url, "retry_safe": True, "max_tries": 2, "backoff": "100ms"}
    with consuming(kind, store, handler, queue, **options) as consumer:
        publish(channel, queue, order(17))
        wait_for(consumer, Kind.DEAD_LETTER, 1)
        assert handler.orders == [17, 17]
        handler.error = None
        with broker_of(kind, rabbitmq().url, queue) as broker:
            broker.facts()
            assert broker.redrive(10, "monday") == 1
        wait_for(consumer, Kind.REMOVE, 1)
    assert handler.orders == [17, 17, 17]
    assert waiting(channel, f"{queue}.dead") == 0


def killed_after_the_copy(steps: Program[None]) -> Program[None]:
    """The program as it is for a consumer that dies when its copy is confirmed, before the ack."""
    result = None
    while True:
        call = steps.send(result)
        result = yield call
        if isinstance(call, Publish):
            raise BrokerUnavailable("the consumer dies here")


def test_a_crash_between_the_copy_and_the_ack_leaves_a_harmless_duplicate(
    kind: str, channel: Any, queue: str, store: str
) -> None:
    publish(channel, queue, order(17))
    with broker_of(kind, rabbitmq().url, queue) as broker:
        (message,) = broker.receive()
        session = broker.broker.sessions.current
        retry = (message, Disposition(Kind.RETRY, 0.1))
        with pytest.raises(BrokerUnavailable, match="dies here"):
            broker._call(session.run, killed_after_the_copy(session.program.settle([retry])))
    handler = Handler()
    with consuming(kind, store, handler, queue, url=rabbitmq().url, lease="1s") as consumer:
        wait_for(consumer, Kind.REMOVE, 2)
    assert handler.orders == [17]


def test_a_handler_that_outlasts_the_consumer_timeout_runs_once(
    kind: str, channel: Any, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = processes.fresh_name("orders")
    channel.queue_declare(queue, durable=True, arguments=QUORUM | {"x-consumer-timeout": 1_000})
    node, handler = rabbitmq(), Handler(held=True)
    options = {"url": node.url, "management_url": node.management_url, "lease": "1s"}
    with (
        caplog.at_level(logging.WARNING, "oncekey"),
        consuming(kind, store, handler, queue, retry_safe=True, **options) as consumer,
    ):
        publish(channel, queue, order(17))
        # RabbitMQ takes the message away and sends it again, and it meets its own attempt.
        wait_for(consumer, Kind.HIDE, 1)
        assert "the broker allows 1 s" in caplog.text
        handler.gate.set()
        # The delivery that was taken away settles nothing; the delayed one finds the outcome.
        wait_for(consumer, Kind.REMOVE, 2)
    assert handler.orders == [17]
    assert waiting(channel, queue) == 0


def test_a_lost_connection_is_opened_again(kind: str, channel: Any, queue: str, store: str) -> None:
    handler = Handler()
    with Proxy(rabbitmq().port) as proxy:
        url = f"amqp://guest:guest@127.0.0.1:{proxy.port}/"
        with consuming(kind, store, handler, queue, url=url, lease="1s") as consumer:
            publish(channel, queue, order(1))
            wait_for(consumer, Kind.REMOVE, 1)
            proxy.cut()  # while nothing is in hand
            handler.gate.clear()
            publish(channel, queue, order(2))
            processes.wait_until(lambda: handler.orders == [1, 2], "the handler runs")
            proxy.cut()  # while a handler runs
            handler.gate.set()  # its outcome is stored, and its message comes again
            publish(channel, queue, order(3))
            processes.wait_until(lambda: len(handler.orders) == 3, "the third message is handled")
            wait_for(consumer, Kind.REMOVE, 4)
    assert handler.orders == [1, 2, 3]
    assert delayed(channel, queue) + waiting(channel, queue) == 0


def test_a_lost_connection_of_aio_pika_leaves_no_task_behind(queue: str) -> None:
    async def lose_connections() -> int:
        """How many tasks are left after some connections were lost, beside this one."""
        with Proxy(rabbitmq().port) as proxy:
            url = rabbitmq().url.replace(str(rabbitmq().port), str(proxy.port))
            broker = AioPikaBroker(RabbitSettings(url=url, queue=queue))
            await broker.facts()
            for _ in range(3):
                await broker.receive(1, 0.01, 1.0)
                proxy.cut()
                with pytest.raises(BrokerUnavailable):
                    await broker.receive(1, PATIENCE_S, 1.0)
            await broker.receive(1, 0.01, 1.0)
            await broker.close()
        return len(asyncio.all_tasks()) - 1

    assert asyncio.run(lose_connections()) == 0


def test_a_queue_that_is_removed_and_declared_again_is_consumed_again(
    channel: Any, queue: str, store: str
) -> None:
    handler = Handler()
    with consuming("sync", store, handler, queue, url=rabbitmq().url) as consumer:
        publish(channel, queue, order(1))
        wait_for(consumer, Kind.REMOVE, 1)
        channel.queue_delete(queue)
        channel.queue_declare(queue, durable=True, arguments=QUORUM)
        publish(channel, queue, order(2))
        wait_for(consumer, Kind.REMOVE, 2)
    assert handler.orders == [1, 2]


def test_a_killed_node_loses_nothing_of_a_quorum_queue(store: str) -> None:
    with require(RabbitServer) as node:
        with channel_to(node.url) as channel:
            channel.queue_declare("orders", durable=True, arguments=QUORUM)
            for number in range(200):
                publish(channel, "orders", order(number))
        node.wait_until_known("orders")
        begun = threading.Event()
        effects: list[int] = []

        def handler(message: Message) -> None:
            effects.append(message.json()["order"])
            if len(effects) == 50:
                begun.set()

        with consuming("sync", store, handler, "orders", url=node.url, lease="2s", batch=8) as one:
            assert begun.wait(PATIENCE_S)
            node.kill()
            assert processes.is_running(node.mapper.pid)  # the port mapper outlives a killed node
            node.start()
            pids, folder = (node.pid, node.mapper.pid), node.directory
            processes.wait_until(lambda: len(effects) >= 200 and not one.in_hand, "all are done")
            with channel_to(node.url) as channel:
                processes.wait_until(
                    lambda: not delayed(channel, "orders") + waiting(channel, "orders"),
                    "the queue is empty",
                )
    assert sorted(effects) == list(range(200))
    assert not any(map(processes.is_running, pids))
    assert not folder.exists()


# --- what is refused at the start -----------------------------------------------------------------


def until_ended(consumer: Any) -> None:
    # One that is stopped at once may not have begun.
    processes.wait_until(lambda: consumer._was_run and not consumer._is_running, "it has ended", 90)


def refused(queue: str, store: str, **options: Any) -> str:
    node = rabbitmq()
    with (
        pytest.raises(ConfigurationError) as caught,
        consuming("sync", store, Handler(), queue, url=node.url, **options) as consumer,
    ):
        until_ended(consumer)
    return str(caught.value)


def test_a_delivery_key_needs_an_identity_and_a_message_id(
    channel: Any, queue: str, store: str
) -> None:
    assert "created later" in refused(queue, store, key="delivery")
    handler = Handler()
    options = {"key": "delivery", "identity": "orders of 2026", "url": rabbitmq().url}
    with consuming("sync", store, handler, queue, **options) as consumer:
        publish(channel, queue, order(1), message_id="a")
        wait_for(consumer, Kind.REMOVE, 1)
        publish(channel, queue, order(1), message_id="a")
        publish(channel, queue, order(1))
        wait_for(consumer, Kind.REMOVE, 2)
        wait_for(consumer, Kind.DEAD_LETTER, 1)
    assert handler.orders == [1]


def test_limits_of_the_queue_that_contradict_the_settings_are_refused(
    channel: Any, store: str
) -> None:
    queue = processes.fresh_name("orders")
    limits = {"x-message-ttl": 600_000, "x-delivery-limit": 3, "x-consumer-timeout": 60_000}
    channel.queue_declare(queue, durable=True, arguments=QUORUM | limits)
    api = {"management_url": rabbitmq().management_url}
    assert "before max_tries=5" in refused(queue, store, **api)
    assert "keep='5m' is shorter" in refused(queue, store, keep="5m", max_tries=2, **api)
    assert "lease='2m' is longer" in refused(queue, store, lease="2m", max_tries=2, **api)


def test_a_queue_that_drops_messages_is_warned_of(
    queue: str, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    node = rabbitmq()
    api = node.management_url
    with (
        caplog.at_level(logging.WARNING, "oncekey"),
        broker_of("sync", node.url, queue, management_url=api) as broker,
    ):
        broker.facts()
    assert "RabbitMQ drops a message whose consumers died 21 times" in caplog.text


def test_settings_are_checked_when_they_are_given() -> None:
    amqp = "amqp://127.0.0.1"
    wrong: list[dict[str, Any]] = [{"url": "http://127.0.0.1"}, {"url": []}]
    for options in [*wrong, {"url": amqp, "management": ""}]:
        with (
            pytest.raises(ConfigurationError),
            consuming("sync", "memory://", Handler(), "orders", **options),
        ):
            pass


@pytest.mark.parametrize("option", ["dead_letter_queue", "park_queue"])
def test_a_queue_that_would_get_its_own_dead_letters_is_refused(option: str) -> None:
    """Each would come back as a redrive, and its handler would run without an end."""
    options = {"url": "amqp://127.0.0.1", option: "orders"}
    with (
        pytest.raises(ConfigurationError, match="must be other queues than 'orders'"),
        consuming("sync", "memory://", Handler(), "orders", **options),
    ):
        pass


def test_a_stream_is_refused_and_a_queue_with_messages_of_one_is_not(
    kind: str, channel: Any, queue: str, store: str
) -> None:
    """A consumer of a stream would skip what was published before it started."""
    stream = processes.fresh_name("stream")
    channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
    url, handler = rabbitmq().url, Handler()
    with (  # noqa: PT012  (the error is that of `run`, which ends with the block)
        pytest.raises(ConfigurationError, match="is a stream"),
        consuming(kind, store, handler, stream, url=url) as consumer,
    ):
        connected(consumer)
        publish(channel, stream, order(1))
        processes.wait_until(lambda: not consumer._is_running, "the consumer ends")
    assert handler.orders == []
    with consuming(kind, store, handler, queue, url=url) as consumer:
        publish(channel, queue, order(2), {"x-stream-offset": 7})  # as a shovel copies it
        wait_for(consumer, Kind.REMOVE, 1)
    assert handler.orders == [2]


def connected(consumer: Any) -> None:
    """Wait until a consumer has its subscription."""

    def is_subscribed() -> bool:
        session = consumer.broker.sessions.current
        return session is not None and session.program.is_subscribed

    processes.wait_until(is_subscribed, "the consumer is subscribed")


@pytest.mark.parametrize("wrong", ["user", "host"])
def test_a_refused_login_ends_a_consumer_at_once(
    kind: str, queue: str, store: str, wrong: str
) -> None:
    right = rabbitmq().url
    url = right.replace("guest:guest", "guest:wrong")
    if wrong == "host":
        url = right.rpartition("/")[0] + "/there-is-no-such-host"
    with pytest.raises(LoginRefused), consuming(kind, store, print, queue, url=url) as consumer:
        until_ended(consumer)
