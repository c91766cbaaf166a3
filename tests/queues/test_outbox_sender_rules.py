"""What senders make of messages and of a broker's answers, and what they refuse to be made with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.queues.outbox_case import OutboxCase
from tests.queues.sender_targets import KafkaTarget
from tests.support.redis_stores import valkey, valkey_cluster
from tests.support.servers import processes

from oncekey import ConfigurationError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.kafka import AsyncKafkaSender, KafkaRefused, KafkaSender
from oncekey.queues.kafka.message import error_of, outgoing_record
from oncekey.queues.outbox import KEY_HEADER, OutgoingMessage
from oncekey.queues.outbox.senders import prepared
from oncekey.queues.rabbitmq import AsyncRabbitSender, RabbitRefused, RabbitSender
from oncekey.queues.rabbitmq.message import outgoing_letter
from oncekey.queues.redis_streams import RedisStreamSender, StreamRefused
from oncekey.queues.sqs import SqsRefused
from oncekey.queues.sqs.broker_calls import Call, CallFailed, Cause
from oncekey.queues.sqs.sender import MESSAGE_MAX_BYTES, OutgoingProgram, entry_of


def outgoing(id: str = "id", queue: str = "orders", **fields: Any) -> OutgoingMessage:
    headers = {KEY_HEADER: id, **fields.pop("headers", {})}
    return OutgoingMessage(id, queue, fields.pop("body", b"{}"), headers, **fields)


# --- SQS ------------------------------------------------------------------------------------------


def sent_by(
    messages: list[OutgoingMessage], answer: Callable[[Call], Any]
) -> tuple[list[Call], list[Any]]:
    """The calls of a program, and its results."""
    program, calls = OutgoingProgram().send(messages), []
    call = next(program)
    try:
        while True:
            calls.append(call)
            call = program.send(answer(call))
    except StopIteration as stop:
        return calls, stop.value


def taken(call: Call) -> Any:
    name = call.arguments.get("QueueName")
    return {"QueueUrl": f"http://sqs/1/{name}"} if name else {"Successful": []}


def test_a_fifo_queue_of_sqs_gets_the_group_and_the_id() -> None:
    entry = entry_of(outgoing("id-1", "orders.fifo", order_group="customer-7"))
    assert (entry["MessageGroupId"], entry["MessageDeduplicationId"]) == ("customer-7", "id-1")
    assert entry["MessageAttributes"][KEY_HEADER]["StringValue"] == "id-1"
    assert "MessageGroupId" not in entry_of(outgoing(order_group="customer-7"))


@pytest.mark.parametrize("id", ["x" * 129, "ö", "a b"])
def test_an_id_that_sqs_does_not_allow_is_digested_the_same_way_each_time(id: str) -> None:
    entry = entry_of(outgoing(id, "orders.fifo"))
    digest = entry["MessageDeduplicationId"]
    assert digest == entry_of(outgoing(id, "orders.fifo"))["MessageDeduplicationId"]
    assert digest != entry_of(outgoing(id + "2", "orders.fifo"))["MessageDeduplicationId"]
    assert len(digest) <= 128
    assert entry["MessageGroupId"] == digest
    assert entry["MessageAttributes"][KEY_HEADER]["StringValue"] == id


def test_what_sqs_can_never_take_is_refused_without_a_call() -> None:
    headers = {f"h{number}": "v" for number in range(10)}
    bodies = [b"\xff", b"x" * (MESSAGE_MAX_BYTES + 1)]
    messages = [outgoing(headers=headers), *(outgoing(body=body) for body in bodies)]
    calls, results = sent_by([*messages, outgoing(queue="arn:bad"), outgoing("good")], taken)
    assert [type(result) for result in results] == [
        ConfigurationError,
        UnicodeDecodeError,
        SqsRefused,
        ConfigurationError,
        type(None),
    ]
    assert [len(call.arguments.get("Entries", ())) for call in calls] == [0, 1]


def test_messages_to_several_queues_of_sqs_are_sent_in_tens() -> None:
    messages = [outgoing(str(n), f"queue-{n % 2}") for n in range(24)]
    messages.append(outgoing("by-url", "http://sqs/1/other"))
    calls, results = sent_by(messages, taken)
    assert results == [None] * 25
    sizes = [(c.operation, len(c.arguments.get("Entries", ()))) for c in calls]
    one_queue = [("get_queue_url", 0), ("send_message_batch", 10), ("send_message_batch", 2)]
    assert sizes == [*one_queue, *one_queue, ("send_message_batch", 1)]


def test_an_entry_that_sqs_refuses_has_its_error_and_one_that_it_throttles_is_down() -> None:
    def answer(call: Call) -> Any:
        failed = [
            {"Id": entry["Id"], "SenderFault": code == "InvalidMessageContents", "Code": code}
            for entry in call.arguments.get("Entries", ())
            if (code := entry["MessageBody"]) != "{}"
        ]
        return taken(call) | {"Failed": failed}

    bodies = [b"{}", b"InvalidMessageContents", b"ThrottlingException"]
    messages = [outgoing(str(n), body=body) for n, body in enumerate(bodies)]
    calls, results = sent_by(messages, answer)
    assert [type(result) for result in results] == [type(None), SqsRefused, BrokerUnavailable]
    assert len(calls) == 3  # the one that was throttled was sent once more, alone


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("AccessDenied", SqsRefused),
        ("KmsDisabled", SqsRefused),
        ("ExpiredToken", BrokerUnavailable),
        ("NoCredentialsError", BrokerUnavailable),
    ],
)
def test_a_login_that_failed_is_no_refusal_of_a_message(code: str, error: type) -> None:
    failure = CallFailed(Cause.REFUSED, code, "no")
    _, results = sent_by([outgoing()], lambda call: failure)
    assert [type(result) for result in results] == [error]


def test_a_queue_of_sqs_that_was_deleted_is_looked_up_again() -> None:
    program, operations = OutgoingProgram(), []
    gone = CallFailed(Cause.QUEUE_GONE, "QueueDoesNotExist", "gone")
    for answers in ([{"QueueUrl": "u"}, {}], [gone], [{"QueueUrl": "u"}, {}]):
        sending = program.send([outgoing()])
        call = next(sending)
        for answer in answers:
            operations.append(call.operation)
            try:
                call = sending.send(answer)
            except StopIteration:
                break
    asked, sent = "get_queue_url", "send_message_batch"
    assert operations == [asked, sent, sent, asked, sent]


# --- Kafka ----------------------------------------------------------------------------------------


def test_the_key_of_a_record_is_the_group_or_else_the_id() -> None:
    assert outgoing_record(outgoing("id-1", order_group="g")).key == b"g"
    record = outgoing_record(outgoing("id-1"))
    assert record.key == b"id-1"
    assert record.headers == [(KEY_HEADER, b"id-1")]


@pytest.mark.parametrize(("code", "error"), [(10, KafkaRefused), (3, KafkaRefused), (7, None)])
def test_an_error_of_kafka_refuses_a_message_only_if_it_is_about_the_message(
    code: int, error: type | None
) -> None:
    assert isinstance(error_of("orders", code, "no"), error or BrokerUnavailable)


def test_a_sender_of_kafka_that_may_lose_messages_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="acks=1 must be 'all'"):
        KafkaSender({"acks": 1})
    with pytest.raises(ConfigurationError, match="keep no headers"):
        KafkaSender({"api.version.request": False})

    async def made() -> None:
        AsyncKafkaSender({"acks": 0})

    with pytest.raises(ConfigurationError, match="acks=0 must be 'all'"):
        asyncio.run(made())


def test_both_clients_of_kafka_put_a_group_into_the_same_partition() -> None:
    target = KafkaTarget()
    groups = [f"customer-{number}" for number in range(20)]
    messages = [outgoing(group, target.queue, order_group=group) for group in groups]
    blocking = target.sender(is_async=False)
    assert blocking.send(messages) == [None] * 20

    async def send() -> None:
        sender = target.sender(is_async=True)
        assert await sender.send(messages) == [None] * 20
        await sender.close()

    asyncio.run(send())
    found = target._topic.read(target.queue, 40)
    partitions: dict[Any, set[Any]] = {}
    for message in found:
        partitions.setdefault(message.key(), set()).add(message.partition())
    assert [len(numbers) for numbers in partitions.values()] == [1] * 20
    assert len(set.union(*partitions.values())) > 1


# --- RabbitMQ -------------------------------------------------------------------------------------


def test_a_letter_is_persistent_and_has_the_id() -> None:
    letter = outgoing_letter(outgoing("id-1", "placed"), "events")
    assert (letter.exchange, letter.queue) == ("events", "placed")
    assert letter.properties == {
        "message_id": "id-1",
        "delivery_mode": 2,
        "headers": {KEY_HEADER: "id-1"},
    }
    long = outgoing_letter(outgoing("ö" * 255), "").properties
    assert len(long["message_id"].encode()) < 255
    assert long["headers"] == {KEY_HEADER: "ö" * 255}


def test_names_that_amqp_has_no_room_for_are_refused() -> None:
    messages = [outgoing(queue="ö" * 200), outgoing(headers={"h" * 256: "v"}), outgoing("good")]
    letters, results = prepared(messages, lambda message: outgoing_letter(message, ""))
    assert list(letters) == [2]
    assert [isinstance(result, ConfigurationError) for result in results] == [True, True, False]


@pytest.mark.parametrize("kind", [RabbitSender, AsyncRabbitSender])
def test_an_exchange_of_rabbitmq_routes_or_refuses(kind: Any, tmp_path: Path) -> None:
    from tests.queues.rabbit_queues import channel_to, waiting
    from tests.support.rabbitmq_queues import rabbitmq

    case = OutboxCase("sqlite" if kind is RabbitSender else "sqlite-async", tmp_path)
    exchange, queue = processes.fresh_name("events"), processes.fresh_name("orders")
    url = rabbitmq().url
    sender, lost = kind(url, exchange=exchange), kind(url, exchange="no-such-exchange")
    with channel_to(url) as channel:
        channel.exchange_declare(exchange, "topic", durable=True)
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, exchange, "order.#")
        results = case.do(sender.send([outgoing("1", "order.placed"), outgoing("2", "mail.sent")]))
        assert [type(result) for result in results] == [type(None), RabbitRefused]
        (result,) = case.do(lost.send([outgoing()]))
        assert isinstance(result, RabbitRefused)
        assert "no exchange 'no-such-exchange'" in str(result)
        assert waiting(channel, queue) == 1
        channel.exchange_delete(exchange)
    for one in (sender, lost):
        case.do(one.close())
    case.close()


# --- Redis Streams --------------------------------------------------------------------------------


def test_a_stream_is_made_or_refused_and_trimmed() -> None:
    stream = processes.fresh_name("orders")
    url = valkey().url()
    careful = RedisStreamSender(url, create=False)
    (refused,) = careful.send([outgoing(queue=stream)])
    assert isinstance(refused, StreamRefused)
    trimming = RedisStreamSender(url, max_entries=100, body_field="data")
    body = outgoing(headers={"data": "v"})
    assert isinstance(trimming.send([body])[0], ConfigurationError)
    for _ in range(5):
        assert trimming.send([outgoing(queue=stream)] * 100) == [None] * 100
    with redis.Redis.from_url(url) as client:
        (entry, *_), length = client.xrange(stream, count=1), client.xlen(stream)
    assert entry[1] == {b"data": b"{}", KEY_HEADER.encode(): b"id"}
    assert length < 300
    assert careful.send([outgoing(queue=stream)]) == [None]
    careful.close()
    trimming.close()


def test_streams_in_several_slots_of_a_cluster_are_sent_to_together() -> None:
    node = valkey_cluster().masters()[0]
    streams = [processes.fresh_name("orders") for _ in range(5)]
    with redis.RedisCluster(host="127.0.0.1", port=node.port) as client:
        client.hset("a-hash", "field", "value")
        sender = RedisStreamSender(client)
        messages = [outgoing(queue=stream) for stream in ("a-hash", *streams)]
        refused, *others = sender.send(messages)
        assert isinstance(refused, StreamRefused)
        assert others == [None] * 5
        assert [client.xlen(stream) for stream in streams] == [1] * 5
        sender.close()
        assert client.ping()  # it stays the caller's
        client.delete("a-hash")


@pytest.mark.parametrize("max_entries", [0, "10", True])
def test_a_bad_number_of_entries_is_refused(max_entries: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_entries"):
        RedisStreamSender("redis://127.0.0.1", max_entries=max_entries)


# --- publishers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "sqlite-async"])
def test_a_publisher_closes_its_sender_when_it_ends(kind: str, tmp_path: Path) -> None:
    case = OutboxCase(kind, tmp_path)
    closed = []

    class Closing:
        batch_max = 10

        def send(self, messages: Any) -> list[None]:
            publisher.stop()
            return [None] * len(messages)

        def close(self) -> None:
            closed.append(1)

    class AsyncClosing(Closing):
        async def send(self, messages: Any) -> list[None]:  # type: ignore[override]
            return super().send(messages)

        async def close(self) -> None:  # type: ignore[override]
            super().close()

    publisher = case.publisher(AsyncClosing() if case.is_async else Closing())
    case.add("a")
    publisher.run()
    assert closed == [1]
    assert case.stats().waiting == 0
    case.close()
