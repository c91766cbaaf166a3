"""SQS messages that AWS Lambda gives to a function: which are reported, and what becomes of others.

The events are made from what moto, an emulator, has received; no Lambda runs here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.support.servers.sqs_server import REGION, QueuePair, SqsServer, sqs

from oncekey import ConfigurationError, EventKind, Once, Terminal
from oncekey.engine.store_urls import blocking_store
from oncekey.queues.queue_message import Message
from oncekey.queues.sqs import BatchNotDone, LambdaHandler
from oncekey.testing import FaultyStore


@pytest.fixture
def server() -> SqsServer:
    return sqs()


@pytest.fixture
def pair(server: SqsServer) -> QueuePair:
    return server.pair()


@pytest.fixture
def once() -> Iterator[Once]:
    with Once("memory://") as once:
        yield once


def made(once: Once, handler: Callable[..., Any], **options: Any) -> LambdaHandler:
    given = {
        "name": "shipping",
        "key": "json:$.order",
        "client": sqs().client(),
        "reports_failures": True,
        **options,
    }
    return LambdaHandler(once, handler, **given)


def event_of(pair: QueuePair, hidden: int = 30) -> dict[str, Any]:
    """Receive as Lambda does, and return the event that it gives to a function."""
    answer = pair.server.client().receive_message(
        QueueUrl=pair.source,
        MaxNumberOfMessages=10,
        VisibilityTimeout=hidden,
        MessageAttributeNames=["All"],
        MessageSystemAttributeNames=["All"],
    )
    arn = pair.server.attributes(pair.source)["QueueArn"]
    return {"Records": [_record(raw, arn) for raw in answer.get("Messages", ())]}


def _record(raw: dict[str, Any], arn: str) -> dict[str, Any]:
    attributes = {
        name: {"dataType": one["DataType"], "stringValue": one["StringValue"]}
        for name, one in raw.get("MessageAttributes", {}).items()
    }
    return {
        "messageId": raw["MessageId"],
        "receiptHandle": raw["ReceiptHandle"],
        "body": raw["Body"],
        "attributes": raw["Attributes"],
        "messageAttributes": attributes,
        "md5OfBody": raw["MD5OfBody"],
        "eventSource": "aws:sqs",
        "eventSourceARN": arn,
        "awsRegion": REGION,
    }


def delete_done(pair: QueuePair, event: dict[str, Any], answer: dict[str, Any]) -> None:
    """Delete what the answer does not report, as Lambda does."""
    failed = {item["itemIdentifier"] for item in answer["batchItemFailures"]}
    for record in event["Records"]:
        if record["messageId"] not in failed:
            handle = record["receiptHandle"]
            pair.server.client().delete_message(QueueUrl=pair.source, ReceiptHandle=handle)


def reported(event: dict[str, Any], answer: dict[str, Any]) -> list[str]:
    """The bodies of the messages that an answer reports."""
    failed = [item["itemIdentifier"] for item in answer["batchItemFailures"]]
    return [record["body"] for record in event["Records"] if record["messageId"] in failed]


class Shipping:
    """A handler that notes the orders it ran for, and raises for those in `errors`."""

    def __init__(self, errors: dict[int, Exception] | None = None) -> None:
        self.errors = errors or {}
        self.orders: list[int] = []

    def __call__(self, message: Message) -> None:
        number = message.json()["order"]
        self.orders.append(number)
        if number in self.errors:
            raise self.errors[number]


def bodies(*numbers: int) -> list[str]:
    return [f'{{"order": {number}}}' for number in numbers]


def test_messages_that_are_done_are_not_reported_and_run_once(once: Once, pair: QueuePair) -> None:
    shipping = Shipping()
    handler = made(once, shipping)
    pair.send(*bodies(1, 2, 1))
    event = event_of(pair)
    assert len(event["Records"]) == 3
    assert handler(event, None) == {"batchItemFailures": []}
    assert sorted(shipping.orders) == [1, 2]
    assert handler(event, None) == {"batchItemFailures": []}  # Lambda delivers twice, too
    assert sorted(shipping.orders) == [1, 2]


def test_a_duplicate_that_meets_its_twin_of_the_same_batch_is_not_reported(
    once: Once, pair: QueuePair
) -> None:
    met = threading.Event()
    once.subscribe(lambda event: met.set() if event.kind is EventKind.IN_FLIGHT else None)
    orders = []

    def ship(message: Message) -> None:
        orders.append(message.json()["order"])
        assert met.wait(90)  # the handler ends after the duplicate has found its key in flight

    pair.send(*bodies(1, 1))
    event = event_of(pair)
    assert made(once, ship)(event, None) == {"batchItemFailures": []}
    assert orders == [1]


def test_a_failed_message_is_reported_hidden_and_its_neighbours_are_done(
    once: Once, pair: QueuePair
) -> None:
    shipping = Shipping({2: ConnectionError("no carrier")})
    handler = made(once, shipping, retry_safe=True, backoff="10m")
    pair.send(*bodies(1, 2, 3))
    event = event_of(pair, hidden=1)
    answer = handler(event, None)
    assert reported(event, answer) == bodies(2)
    delete_done(pair, event, answer)
    found = pair.server.attributes(pair.source)
    assert found["ApproximateNumberOfMessagesNotVisible"] == "1"  # for ten minutes
    assert found["ApproximateNumberOfMessages"] == "0"


def test_a_message_that_failed_for_good_is_a_dead_letter_and_is_not_reported(
    once: Once, pair: QueuePair
) -> None:
    handler = made(once, Shipping({2: Terminal("no such address")}))
    pair.send(*bodies(1, 2))
    event = event_of(pair)
    answer = handler(event, None)
    assert answer == {"batchItemFailures": []}
    delete_done(pair, event, answer)
    assert pair.server.is_empty(pair.source)
    (letter,) = pair.dead_letters()
    assert letter["Body"] == bodies(2)[0]
    error = letter["MessageAttributes"]["oncekey-error"]["StringValue"]
    assert "no such address" in error


def test_a_dead_letter_that_cannot_be_sent_is_reported(once: Once, pair: QueuePair) -> None:
    handler = made(once, Shipping({1: Terminal("no such address")}))
    pair.send(*bodies(1))
    event = event_of(pair)
    handler._source(event["Records"][0]["eventSourceARN"])
    pair.server.client().delete_queue(QueueUrl=pair.dead)
    assert reported(event, handler(event, None)) == bodies(1)


def test_what_follows_a_failed_message_of_its_group_is_reported_too(
    once: Once, server: SqsServer
) -> None:
    pair = server.pair(fifo=True)
    for number, group in ((1, "a"), (2, "a"), (3, "b"), (4, "a")):
        pair.send(*bodies(number), MessageGroupId=group, MessageDeduplicationId=str(number))
    shipping = Shipping({2: ConnectionError("no carrier")})
    handler = made(once, shipping, retry_safe=True)
    event = event_of(pair)
    answer = handler(event, None)
    assert reported(event, answer) == bodies(2, 4)
    assert 4 not in shipping.orders


def test_a_message_in_flight_elsewhere_is_reported_and_not_run(once: Once, pair: QueuePair) -> None:
    running, finish = threading.Event(), threading.Event()

    def slow(message: Message) -> None:
        running.set()
        assert finish.wait(90)

    slow_handler, shipping = made(once, slow), Shipping()
    pair.send(*bodies(1))
    first = event_of(pair)
    thread = threading.Thread(target=slow_handler, args=(first, None))
    thread.start()
    assert running.wait(90)
    pair.send(*bodies(1))
    second = event_of(pair)
    assert reported(second, made(once, shipping)(second, None)) == bodies(1)
    finish.set()
    thread.join()
    assert shipping.orders == []


def test_with_the_store_down_every_message_is_reported(pair: QueuePair) -> None:
    store = FaultyStore(blocking_store("memory://"))
    with Once(store) as once:
        shipping = Shipping()
        handler = made(once, shipping)
        pair.send(*bodies(1, 2))
        event = event_of(pair)
        handler._source(event["Records"][0]["eventSourceARN"])
        store.down = True
        assert len(handler(event, None)["batchItemFailures"]) == 2
        assert shipping.orders == []
        store.down = False
        assert handler(event, None) == {"batchItemFailures": []}


def test_without_reports_a_batch_that_is_not_done_raises_and_is_replayed(
    once: Once, pair: QueuePair
) -> None:
    shipping = Shipping({2: ConnectionError("no carrier")})
    handler = made(once, shipping, retry_safe=True, reports_failures=False)
    pair.send(*bodies(1, 2))
    event = event_of(pair)
    with pytest.raises(BatchNotDone, match=r"1 of 2 messages are not done .*no carrier"):
        handler(event, None)
    shipping.errors.clear()
    assert handler(event, None) == {"batchItemFailures": []}
    assert sorted(shipping.orders) == [1, 2, 2]


def test_no_handler_begins_in_the_last_part_of_the_functions_time(
    once: Once, pair: QueuePair
) -> None:
    class Context:
        def get_remaining_time_in_millis(self) -> int:
            return 1_500

    shipping = Shipping()
    pair.send(*bodies(1))
    event = event_of(pair)
    assert len(made(once, shipping, stop_before="2s")(event, Context())["batchItemFailures"]) == 1
    assert shipping.orders == []
    assert made(once, shipping, stop_before="1s")(event, Context()) == {"batchItemFailures": []}


@pytest.mark.parametrize("event", [{}, {"Records": None}, {"Records": [{"eventSource": "aws:s3"}]}])
def test_an_event_of_another_source_is_refused(once: Once, event: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        made(once, Shipping())(event, None)


class FakeLambda:
    """Answers as the client of Lambda does for one function."""

    def __init__(self, *types: str) -> None:
        self._mapping = {
            "EventSourceArn": "arn:aws:sqs:x:1:orders",
            "FunctionResponseTypes": list(types),
        }

    def get_paginator(self, operation: str) -> FakeLambda:
        assert operation == "list_event_source_mappings"
        return self

    def paginate(self, **arguments: str) -> Sequence[dict[str, Any]]:
        assert arguments == {"FunctionName": "ship"}
        return [{"EventSourceMappings": [self._mapping]}]


def test_an_event_source_that_does_not_read_reports_is_found(once: Once) -> None:
    reporting = made(once, Shipping())
    with pytest.raises(ConfigurationError, match="would be deleted"):
        reporting.check_event_source(FakeLambda(), "ship")
    reporting.check_event_source(FakeLambda("ReportBatchItemFailures"), "ship")
    made(once, Shipping(), reports_failures=False).check_event_source(FakeLambda(), "ship")
