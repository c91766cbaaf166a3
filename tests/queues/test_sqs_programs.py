"""The programs of SQS calls, with scripted answers: batches, failures of single entries, limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.disposition import REMOVE, Disposition, Kind, dead_letter
from oncekey.queues.queue_message import Message
from oncekey.queues.sqs.broker_calls import (
    Call,
    CallFailed,
    Cause,
    Program,
    SqsRefused,
    failure_of,
    failure_of_entry,
)
from oncekey.queues.sqs.program import QueueProgram
from oncekey.queues.sqs.settings import (
    UNTOLD_BYTES,
    UNTOLD_RETENTION_S,
    VISIBILITY_MAX_S,
    parse_attributes,
)

URL = "http://sqs/1/orders"
DEAD_URL = "http://sqs/1/dead"
GONE = CallFailed(Cause.QUEUE_GONE, "QueueDoesNotExist", "it is gone")
DOWN = CallFailed(Cause.UNAVAILABLE, "EndpointConnectionError", "no answer")


class Scripted:
    """Runs programs; answers calls as SQS does, unless `failing` says how an operation fails."""

    def __init__(self, **attributes: str) -> None:
        self.now = 1000.0
        self.calls: list[Call] = []
        self.failing: dict[str, Callable[[dict[str, Any]], Any]] = {}
        self.messages: list[dict[str, Any]] = []
        self.attributes = {URL: _attributes("orders", RedrivePolicy=_policy(), **attributes)}
        self.attributes[DEAD_URL] = _attributes("dead")
        self.program = QueueProgram(URL, max_tries=5, clock=lambda: self.now)

    def run(self, program: Program[Any]) -> Any:
        answer: Any = None
        while True:
            try:
                call = program.send(answer)
            except StopIteration as stop:
                return stop.value
            self.calls.append(call)
            answer = self.answer(call)

    def answer(self, call: Call) -> Any:
        failing = self.failing.get(call.operation)
        if failing is not None:
            return failing(call.arguments)
        if call.operation == "get_queue_url":
            return {"QueueUrl": f"http://sqs/1/{call.arguments['QueueName']}"}
        if call.operation == "get_queue_attributes":
            return {"Attributes": self.attributes[call.arguments["QueueUrl"]]}
        if call.operation == "receive_message":
            count = call.arguments["MaxNumberOfMessages"]
            taken, self.messages = self.messages[:count], self.messages[count:]
            return {"Messages": taken} if taken else {}
        return {"Successful": [{"Id": entry["Id"]} for entry in call.arguments["Entries"]]}

    def facts(self) -> BrokerFacts:
        facts: BrokerFacts = self.run(self.program.look_up())
        self.calls.clear()
        return facts

    def received(self, count: int) -> list[Message]:
        self.messages = [_raw(number) for number in range(count)]
        found: list[Message] = self.run(self.program.receive(count, 5, 30, lambda: "token"))
        self.calls.clear()
        return found

    def sent(self, operation: str) -> list[Call]:
        return [call for call in self.calls if call.operation == operation]


def _policy(receives: int = 100) -> str:
    return json.dumps({"deadLetterTargetArn": "arn:aws:sqs:x:1:dead", "maxReceiveCount": receives})


def _attributes(name: str, **more: str) -> dict[str, str]:
    return {
        "QueueArn": f"arn:aws:sqs:x:1:{name}",
        "CreatedTimestamp": "1700000000",
        "MessageRetentionPeriod": "345600",
        "MaximumMessageSize": "262144",
        **more,
    }


def _raw(number: int) -> dict[str, Any]:
    return {"MessageId": f"m{number}", "ReceiptHandle": f"r{number}", "Body": "{}"}


def _failed(entries: Sequence[dict[str, Any]], code: str, *, sender: bool) -> dict[str, Any]:
    return {"Failed": [{"Id": e["Id"], "Code": code, "SenderFault": sender} for e in entries]}


@pytest.fixture
def queue() -> Scripted:
    scripted = Scripted()
    scripted.facts()
    return scripted


def test_facts_tell_the_retention_of_both_queues_and_the_identity() -> None:
    facts = Scripted(MessageRetentionPeriod="86400").facts()
    assert facts == BrokerFacts(
        queue="orders",
        identity="arn:aws:sqs:x:1:orders@1700000000",
        retention=86400 + 345600,
        hold_max=12 * 3600,
        receives_max=100,
        ordered=False,
        broker="sqs partition=aws region=x account=1 endpoint=sqs",
    )


def test_a_receive_asks_ten_at_a_time_and_waits_in_the_first_call_only(queue: Scripted) -> None:
    queue.messages = [_raw(number) for number in range(23)]
    found = queue.run(queue.program.receive(25, 5.9, 30.2, lambda: "token"))
    assert [message.delivery_id for message in found] == [f"m{number}" for number in range(23)]
    asked = [call.arguments for call in queue.calls]
    assert [one["MaxNumberOfMessages"] for one in asked] == [10, 10, 5]
    assert [one["WaitTimeSeconds"] for one in asked] == [5, 0, 0]
    assert {one["VisibilityTimeout"] for one in asked} == {31}
    assert "ReceiveRequestAttemptId" not in asked[0]
    assert queue.run(queue.program.receive(0, 5, 30, lambda: "token")) == []


def test_a_receive_from_a_fifo_queue_can_be_repeated_by_its_client() -> None:
    queue = Scripted(FifoQueue="true")
    queue.attributes[DEAD_URL]["FifoQueue"] = "true"
    assert queue.facts().ordered
    queue.run(queue.program.receive(1, 0, 30, lambda: "token"))
    assert queue.calls[0].arguments["ReceiveRequestAttemptId"] == "token"


def test_settling_needs_one_call_for_ten_messages_of_a_kind(queue: Scripted) -> None:
    messages = queue.received(20)
    hide = Disposition(Kind.HIDE, 7.2)
    settled = [(one, hide if number % 2 else REMOVE) for number, one in enumerate(messages)]
    queue.run(queue.program.settle(settled))
    (deleted,) = queue.sent("delete_message_batch")
    assert [entry["ReceiptHandle"] for entry in deleted.arguments["Entries"]] == [
        f"r{number}" for number in range(0, 20, 2)
    ]
    (hidden,) = queue.sent("change_message_visibility_batch")
    assert {entry["VisibilityTimeout"] for entry in hidden.arguments["Entries"]} == {8}


def test_a_message_is_deleted_only_after_its_dead_letter_was_taken(queue: Scripted) -> None:
    good, bad = queue.received(2)
    sent: list[str] = []

    def second_fails(arguments: dict[str, Any]) -> dict[str, Any]:
        assert arguments["QueueUrl"] == DEAD_URL
        sent.extend(entry["Id"] for entry in arguments["Entries"])
        return _failed([e for e in arguments["Entries"] if e["Id"] == "1"], "Odd", sender=True)

    queue.failing["send_message_batch"] = second_fails
    queue.run(queue.program.settle([(good, dead_letter("error")), (bad, dead_letter("error"))]))
    assert sent == ["0", "1"]
    (deleted,) = queue.sent("delete_message_batch")
    assert [entry["ReceiptHandle"] for entry in deleted.arguments["Entries"]] == ["r0"]


def test_an_entry_that_sqs_could_not_take_is_sent_once_more_alone(queue: Scripted) -> None:
    messages = queue.received(3)
    tries: list[list[str]] = []

    def busy_once(arguments: dict[str, Any]) -> dict[str, Any]:
        entries = arguments["Entries"]
        tries.append([entry["ReceiptHandle"] for entry in entries])
        return _failed(entries[1:2], "InternalError", sender=False)

    queue.failing["delete_message_batch"] = busy_once
    queue.run(queue.program.settle([(message, REMOVE) for message in messages]))
    assert tries == [["r0", "r1", "r2"], ["r1"]]


def test_an_expired_receipt_handle_is_no_error(queue: Scripted) -> None:
    (message,) = queue.received(1)
    expired = {"delete_message_batch", "change_message_visibility_batch"}
    for operation in expired:
        queue.failing[operation] = lambda arguments: _failed(
            arguments["Entries"], "ReceiptHandleIsInvalid", sender=True
        )
    queue.run(queue.program.settle([(message, REMOVE)]))
    queue.run(queue.program.extend([message], 30))


@pytest.mark.parametrize(
    ("failure", "error"), [(DOWN, BrokerUnavailable), (GONE, SqsRefused)], ids=["down", "gone"]
)
def test_what_a_failed_call_of_a_running_consumer_raises(
    queue: Scripted, failure: CallFailed, error: type[Exception]
) -> None:
    (message,) = queue.received(1)
    for operation in ("receive_message", "delete_message_batch", "change_message_visibility_batch"):
        queue.failing[operation] = lambda arguments: failure
    for program in (
        queue.program.receive(1, 0, 30, lambda: ""),
        queue.program.settle([(message, REMOVE)]),
        queue.program.extend([message], 30),
    ):
        with pytest.raises(error, match="orders"):
            queue.run(program)


def test_messages_of_earlier_calls_are_kept_if_a_later_receive_fails(queue: Scripted) -> None:
    answers: list[Any] = [{"Messages": [_raw(number) for number in range(10)]}, DOWN]
    queue.failing["receive_message"] = lambda arguments: answers.pop(0)
    assert len(queue.run(queue.program.receive(20, 5, 30, lambda: ""))) == 10


def test_a_queue_that_is_gone_at_the_start_is_a_configuration_error() -> None:
    queue = Scripted()
    queue.failing["get_queue_attributes"] = lambda arguments: GONE
    with pytest.raises(ConfigurationError, match="does not exist"):
        queue.facts()


def test_visibility_never_exceeds_the_twelve_hours_in_all(queue: Scripted) -> None:
    (message,) = queue.received(1)

    def hidden_for() -> int:
        queue.calls.clear()
        queue.run(queue.program.extend([message], 3600))
        return int(queue.calls[0].arguments["Entries"][0]["VisibilityTimeout"])

    assert hidden_for() == 3600
    queue.now += VISIBILITY_MAX_S - 1000
    assert hidden_for() == 998


def test_a_message_that_was_held_for_twelve_hours_is_left_to_its_next_consumer(
    queue: Scripted,
) -> None:
    """Shown at once, and again by each heartbeat, it would use up its receives meanwhile."""
    (message,) = queue.received(1)
    queue.now += VISIBILITY_MAX_S
    queue.run(queue.program.extend([message], 3600))
    queue.run(queue.program.settle([(message, Disposition(Kind.RETRY, 1.0))]))
    assert queue.calls == []


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (NoCredentialsError(), Cause.REFUSED),
        (EndpointConnectionError(endpoint_url="http://x"), Cause.UNAVAILABLE),
        (("AccessDenied", 403), Cause.REFUSED),
        (("ExpiredToken", 403), Cause.REFUSED),
        (("AWS.SimpleQueueService.NonExistentQueue", 400), Cause.QUEUE_GONE),
        (("ThrottlingException", 400), Cause.THROTTLED),
        (("ReceiptHandleIsInvalid", 400), Cause.NOT_OURS),
        (("InvalidParameterValue", 400), Cause.INVALID),
        (("InternalFailure", 500), Cause.UNAVAILABLE),
        (("SomethingNew", 503), Cause.UNAVAILABLE),
    ],
    ids=str,
)
def test_errors_of_botocore_have_a_cause(error: Any, cause: Cause) -> None:
    if isinstance(error, tuple):
        code, status = error
        metadata: Any = {"HTTPStatusCode": status}
        error = ClientError({"Error": {"Code": code}, "ResponseMetadata": metadata}, "Receive")
    assert failure_of(error).cause is cause


def test_an_entry_of_a_message_that_is_visible_again_is_not_ours() -> None:
    text = "Value r for parameter ReceiptHandle is invalid. Reason: Message does not exist or is "
    entry = {"Code": "InvalidParameterValue", "SenderFault": True}
    said = {**entry, "Message": text + "not available for visibility timeout change."}
    assert failure_of_entry(said).cause is Cause.NOT_OURS
    assert failure_of_entry(entry).cause is Cause.INVALID


def test_what_a_server_does_not_tell_is_taken_to_be_what_forgets_no_key() -> None:
    """ElasticMQ tells neither; a queue of Amazon keeps nothing for longer."""
    given = {"QueueArn": "arn:aws:sqs:eu-central-1:000000000000:orders", "CreatedTimestamp": "1"}
    found = parse_attributes("http://127.0.0.1:1/orders", given)
    assert (found.retention_s, found.max_bytes) == (UNTOLD_RETENTION_S, UNTOLD_BYTES)
