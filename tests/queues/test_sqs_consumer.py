"""The consumer loop on SQS: what it refuses to start with, order, stop, and errors of AWS.

Against moto, an emulator; see tests/support/servers/sqs_server.py.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from tests.support.log_records import written_log
from tests.support.servers import processes
from tests.support.servers.elasticmq_server import elasticmq
from tests.support.servers.sqs_server import REGION, QueuePair, SqsServer, sqs

from oncekey import AsyncOnce, ConfigurationError, Once
from oncekey.engine.store_urls import blocking_store
from oncekey.queues.blocking import consumer as consumer_module
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.disposition import Kind
from oncekey.queues.queue_message import Message
from oncekey.queues.sqs import AsyncSQSConsumer, SQSConsumer, SqsRefused
from oncekey.testing import FaultyStore
from oncekey.testing.faulty_store import Fault

ORDER = '{"order": 17}'


@pytest.fixture
def server() -> SqsServer:
    return sqs()


@pytest.fixture(params=[sqs, elasticmq], ids=["moto", "elasticmq"])
def either(request: pytest.FixtureRequest) -> SqsServer:
    """The one emulator and the other."""
    found: SqsServer = request.param()
    return found


def client_of(queue: str) -> Any:
    """A client of the server that has this queue, by the URL of the queue."""
    at = urlsplit(queue)
    own = {"endpoint_url": f"{at.scheme}://{at.netloc}"} if at.netloc else {}
    return sqs().client(**own)


@pytest.fixture
def once() -> Iterator[Once]:
    with Once("memory://") as once:
        yield once


@pytest.fixture(autouse=True)
def _short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop waits for the end of a long poll."""
    monkeypatch.setattr(consumer_module, "RECEIVE_WAIT_S", 1.0)


def ship(message: Message) -> None:
    pass


def made(once: Once, queue: str, handler: Callable[..., Any] = ship, **options: Any) -> SQSConsumer:
    given = {"name": "shipping", "key": "json:$.order", "client": client_of(queue), **options}
    return SQSConsumer(once, handler, queue, **given)


@contextmanager
def running(consumer: SQSConsumer) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=consumer.run)
    thread.start()
    try:
        yield thread
    finally:
        consumer.stop()
        thread.join()


# --- the start ------------------------------------------------------------------------------------


def test_a_queue_without_a_dead_letter_queue_is_refused(once: Once, server: SqsServer) -> None:
    queue = server.queue()
    with pytest.raises(ConfigurationError, match="no dead-letter queue"):
        made(once, queue).run()
    with pytest.raises(ConfigurationError, match="its own dead-letter queue"):
        made(once, queue, dead_letter_queue=queue).run()
    with pytest.raises(ConfigurationError, match="both be FIFO"):
        made(once, queue, dead_letter_queue=server.queue(fifo=True)).run()
    with pytest.raises(ConfigurationError, match="could not leave it"):
        made(once, queue, dead_letter_queue=server.queue(MaximumMessageSize="1024")).run()


@pytest.mark.parametrize("form", ["url", "arn", "name"])
def test_a_queue_is_given_by_url_arn_or_name(once: Once, server: SqsServer, form: str) -> None:
    pair = server.pair()
    arn = server.attributes(pair.source)["QueueArn"]
    given = {"url": pair.source, "arn": arn, "name": arn.rpartition(":")[2]}[form]
    facts = made(once, given)._broker.facts()
    assert facts.queue == given.rpartition(":")[2].rpartition("/")[2]
    assert facts.identity is not None
    assert facts.identity.startswith(f"{arn}@")


def test_a_keep_shorter_than_the_retention_is_refused(once: Once, server: SqsServer) -> None:
    pair = server.pair(MessageRetentionPeriod="86400")
    with pytest.raises(ConfigurationError, match="keep='24h' is shorter than the 5d"):
        made(once, pair.source, keep="24h").run()


def test_a_max_receive_count_below_the_tries_is_refused(once: Once, server: SqsServer) -> None:
    with pytest.raises(ConfigurationError, match="maxReceiveCount"):
        made(once, server.pair(max_receives=5).source, max_tries=5).run()


@pytest.mark.parametrize(("receives", "warns"), [(6, True), (10, False)])
def test_a_max_receive_count_near_the_tries_is_warned_of(
    once: Once, server: SqsServer, receives: int, warns: bool
) -> None:
    consumer = made(once, server.pair(max_receives=receives).source, max_tries=5)
    with written_log("oncekey") as written:
        consumer._broker.facts()
    assert any("leaves little room" in line for line in written.lines) is warns


def test_a_lease_beyond_twelve_hours_is_refused(once: Once, server: SqsServer) -> None:
    with pytest.raises(ConfigurationError, match="43200 s"):
        made(once, server.pair().source, lease="13h").run()


def test_a_client_that_is_none_of_sqs_is_refused(once: Once) -> None:
    with pytest.raises(ConfigurationError, match=r"boto3.client\('sqs'\)"):
        made(once, "orders", client=object())


# --- errors of AWS --------------------------------------------------------------------------------


def test_a_queue_that_does_not_exist_is_a_configuration_error(once: Once) -> None:
    with pytest.raises(ConfigurationError, match="the queue does not exist"):
        made(once, "nowhere").run()


def test_missing_credentials_are_a_configuration_error(
    once: Once, server: SqsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    session = boto3.session.Session()
    client = session.client("sqs", endpoint_url=server.url, region_name=REGION)
    with pytest.raises(ConfigurationError, match="credentials"):
        made(once, "orders", client=client).run()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("AWS_DEFAULT_REGION", None),
        ("AWS_DEFAULT_REGION", "no region"),
        ("AWS_PROFILE", "of-nobody"),
        ("AWS_ENDPOINT_URL_SQS", "no-address"),
    ],
)
@pytest.mark.parametrize("is_async", [False, True], ids=["boto3", "aiobotocore"])
def test_a_client_that_cannot_be_made_as_it_is_set_up_ends_a_consumer_at_its_start(
    is_async: bool, setting: str, value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for ever for what no time cures."""
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    for name in ("AWS_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL_SQS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    if value is None:
        monkeypatch.delenv(setting)
    else:
        monkeypatch.setenv(setting, value)
    options: dict[str, Any] = {"name": "shipping", "key": "json:$.order"}

    async def ship_async(message: Message) -> None: ...

    async def in_tasks() -> None:
        async with AsyncOnce("memory://") as once:
            await AsyncSQSConsumer(once, ship_async, "orders", **options).run()

    def in_threads() -> None:
        with Once("memory://") as once:
            SQSConsumer(once, ship, "orders", **options).run()

    with pytest.raises(ConfigurationError, match="client of SQS cannot be made"):
        asyncio.run(in_tasks()) if is_async else in_threads()


def test_a_server_that_does_not_answer_is_unavailable_and_nothing_more(
    once: Once, server: SqsServer
) -> None:
    url = f"http://127.0.0.1:{processes.free_port()}"
    quick = Config(retries={"total_max_attempts": 1})
    client = server.client(endpoint_url=url, config=quick)
    with pytest.raises(BrokerUnavailable, match="Could not connect"):
        made(once, "orders", client=client)._broker.facts()


def test_a_consumer_whose_queue_is_deleted_ends_with_that_error(
    once: Once, server: SqsServer
) -> None:
    pair = server.pair()
    handled = threading.Event()

    def ship_and_tell(message: Message) -> None:
        handled.set()

    consumer = made(once, pair.source, ship_and_tell)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            consumer.run()
        except SqsRefused as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    pair.send(ORDER)
    assert handled.wait(90)
    server.client().delete_queue(QueueUrl=pair.source)
    thread.join(90)
    assert not thread.is_alive()
    assert "does not exist" in str(errors[0])


# --- the loop -------------------------------------------------------------------------------------


def test_a_group_is_handled_in_order_and_a_failed_message_holds_back_its_group(
    once: Once, either: SqsServer
) -> None:
    pair = either.pair(fifo=True)
    for number in range(12):
        group = "ab"[number % 2]
        body = f'{{"order": {number}}}'
        pair.send(body, MessageGroupId=group, MessageDeduplicationId=str(number))
    order: list[int] = []
    failed = threading.Event()
    lock = threading.Lock()

    def handle(message: Message) -> None:
        number = message.json()["order"]
        if number == 11:  # so group b does not wait for the failed message of group a
            assert failed.wait(90)
        with lock:
            if number == 4 and 11 not in order:  # the third of group a fails until b is done
                failed.set()
                raise ConnectionError("not yet")
            order.append(number)

    options = {"retry_safe": True, "backoff": "1s", "backoff_max": "1s", "max_tries": 50}
    consumer = made(once, pair.source, handle, concurrency=4, **options)
    with running(consumer):
        processes.wait_until(pair.are_empty, "the queue is empty")
    assert [number for number in order if number % 2 == 0] == [0, 2, 4, 6, 8, 10]
    assert [number for number in order if number % 2] == [1, 3, 5, 7, 9, 11]


def test_a_stop_lets_handlers_end_and_gives_back_what_has_not_begun(
    once: Once, either: SqsServer
) -> None:
    pair = either.pair()
    pair.send(*(f'{{"order": {number}}}' for number in range(5)))
    began, finish = threading.Event(), threading.Event()

    def slow(message: Message) -> None:
        began.set()
        assert finish.wait(90)

    consumer = made(once, pair.source, slow, concurrency=1, lease="1h")
    with running(consumer) as thread:
        assert began.wait(90)
        processes.wait_until(lambda: consumer.in_hand == 5, "all are in hand")
        consumer.stop()
        finish.set()
        thread.join(90)
    left = _receive_all(pair)
    # They are visible at once, though the lease was an hour, and were received once so far.
    assert len(left) == 4
    assert {raw["Attributes"]["ApproximateReceiveCount"] for raw in left} == {"2"}


def test_a_long_handler_keeps_its_message_hidden(once: Once, server: SqsServer) -> None:
    """The lease and the visibility are renewed together: longer than a lease, one receive. Where
    the machine itself made a renewal late, another receive is right."""
    pair = server.pair()
    pair.send(ORDER)
    renewed = threading.Event()

    def slow(message: Message) -> None:
        assert renewed.wait(90)

    consumer = made(once, pair.source, slow, lease="2s")
    extend, times = consumer._broker.extend, [time.monotonic()]

    def timed(messages: Any, seconds: float) -> None:
        extend(messages, seconds)
        times.append(time.monotonic())
        if len(times) > 5:
            renewed.set()

    consumer._broker.extend = timed  # type: ignore[method-assign]
    with running(consumer):
        processes.wait_until(pair.are_empty, "the queue is empty")
        times.append(time.monotonic())
    assert consumer.counts[Kind.REMOVE] >= 1
    if all(later - earlier < 2 for earlier, later in itertools.pairwise(times)):
        assert consumer.counts == {Kind.REMOVE: 1}


def test_with_the_store_down_nothing_is_removed_or_received_twice(server: SqsServer) -> None:
    pair = server.pair()
    asked, is_back = threading.Event(), threading.Event()

    def refuse(number: int, commands: Any) -> Fault | None:
        asked.set()
        return None if is_back.is_set() else Fault.REFUSE

    ran: list[str] = []
    with Once(FaultyStore(blocking_store("memory://"), refuse)) as once:
        consumer = made(once, pair.source, lambda message: ran.append(message.text))
        with running(consumer):
            pair.send(ORDER)
            assert asked.wait(90)
            assert ran == []
            assert not server.is_empty(pair.source)
            is_back.set()
            processes.wait_until(pair.are_empty, "the queue is empty")
    assert ran == [ORDER]
    assert consumer.counts == {Kind.REMOVE: 1}


def _receive_all(pair: QueuePair) -> list[dict[str, Any]]:
    answer = pair.server.client().receive_message(
        QueueUrl=pair.source, MaxNumberOfMessages=10, MessageSystemAttributeNames=["All"]
    )
    return list(answer.get("Messages", ()))
