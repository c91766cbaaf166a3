"""Dead letters on SQS: ten attributes at most, a largest size, and what gives way to what."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from oncekey.queues.disposition import DeadLetter, Disposition, Kind
from oncekey.queues.queue_message import Message
from oncekey.queues.sqs.message import (
    attributes_of,
    has_marks,
    in_sizes,
    letter_entry,
    message_of,
    message_of_record,
    redrive_entry,
    source_of,
    was_moved,
)

ARN = "arn:aws:sqs:x:1:orders"
FENCE = 1_700_000_000_000_000
FAILED = Disposition(Kind.DEAD_LETTER, 0.0, "", DeadLetter("ValueError: no such address", FENCE, 3))
LARGE = 262_144


def text(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


def message(attributes: int = 0, body: str = "{}", queue: str = "orders") -> Message:
    own = {f"Own-{number}": text("value") for number in range(attributes)}
    raw: dict[str, Any] = {"MessageId": "m1", "ReceiptHandle": "r1", "Body": body}
    raw["Attributes"] = {"MessageGroupId": "g1"}
    raw["MessageAttributes"] = own
    return message_of(raw, queue)


def delivered(entry: dict[str, Any]) -> Message:
    """The entry as a consumer receives it."""
    raw = {"MessageId": "m2", "ReceiptHandle": "r2", "Body": entry["MessageBody"]}
    return message_of({**raw, "MessageAttributes": entry.get("MessageAttributes", {})}, "dead")


def test_a_letter_has_the_message_its_attributes_and_the_marks() -> None:
    letter = delivered(letter_entry(message(6), FAILED, ARN, LARGE))
    assert letter.headers["oncekey-error"] == "ValueError: no such address"
    assert letter.headers["oncekey-fence"] == str(FENCE)
    assert letter.headers["oncekey-tries"] == "3"
    assert source_of(letter) == ARN
    assert len(attributes_of(letter)) == 10
    assert "MessageGroupId" not in letter_entry(message(6), FAILED, ARN, LARGE)


@pytest.mark.parametrize("own", [7, 9])
def test_marks_share_one_attribute_if_there_is_no_room_for_four(own: int) -> None:
    entry = letter_entry(message(own), FAILED, ARN, LARGE)
    assert len(entry["MessageAttributes"]) == own + 1
    letter = delivered(entry)
    assert letter.headers["oncekey-fence"] == str(FENCE)
    assert letter.headers["oncekey-error"] == "ValueError: no such address"
    assert source_of(letter) == ARN


def test_ten_attributes_of_the_message_stay_and_nothing_is_added() -> None:
    entry = letter_entry(message(10), FAILED, ARN, LARGE)
    assert entry["MessageAttributes"] == message(10).raw["MessageAttributes"]
    assert not has_marks(entry)
    assert redrive_entry(message(10), "id", LARGE) is None


def test_marks_of_an_earlier_letter_are_replaced() -> None:
    first = delivered(letter_entry(message(), FAILED, ARN, LARGE))
    back = redrive_entry(first, "fixed", LARGE)
    assert back is not None
    redriven = delivered(back)
    assert redriven.headers["oncekey-redrive"] == "fixed"
    assert redriven.headers["oncekey-fence"] == str(FENCE)
    later = Disposition(Kind.DEAD_LETTER, 0.0, "", DeadLetter("again", FENCE + 1, 1))
    second = delivered(letter_entry(redriven, later, ARN, LARGE))
    assert second.headers["oncekey-fence"] == str(FENCE + 1)
    assert "oncekey-redrive" not in second.headers


@pytest.mark.parametrize(
    ("room", "kept"),
    [
        (400, {"oncekey-error", "oncekey-fence", "oncekey-tries", "oncekey-source"}),
        (120, {"oncekey-fence", "oncekey-tries", "oncekey-source"}),
        (60, {"oncekey-fence"}),
        (30, set()),
    ],
)
def test_a_letter_near_the_largest_size_has_less_of_the_marks(room: int, kept: set[str]) -> None:
    long = Disposition(Kind.DEAD_LETTER, 0.0, "", DeadLetter("x" * 500, FENCE, 3))
    body = "b" * (LARGE - room)
    entry = letter_entry(message(body=body), long, ARN, LARGE)
    assert set(entry.get("MessageAttributes", {})) == kept
    assert entry["MessageBody"] == body


def test_letters_share_a_call_as_long_as_they_fit_into_the_largest_size() -> None:
    entries = [{"MessageBody": "b" * size} for size in (60, 30, 20, 100, 1)]
    assert list(in_sizes(entries, 100)) == [[0, 1], [2], [3], [4]]
    assert [len(batch) for batch in in_sizes([{"MessageBody": ""}] * 23, 100)] == [10, 10, 3]


def test_an_error_with_characters_that_sqs_refuses_is_made_readable() -> None:
    odd = Disposition(Kind.DEAD_LETTER, 0.0, "", DeadLetter("bad \x00 \ud800 name"))
    letter = delivered(letter_entry(message(), odd, ARN, LARGE))
    assert letter.headers["oncekey-error"] == "bad ? ? name"


def test_a_letter_of_a_fifo_queue_stays_in_its_group_and_is_sent_once() -> None:
    entry = letter_entry(message(queue="orders.fifo"), FAILED, ARN, LARGE)
    assert (entry["MessageGroupId"], entry["MessageDeduplicationId"]) == ("g1", "m1")


def test_somebody_elses_attribute_named_oncekey_is_no_mark() -> None:
    for value in ("not JSON", "[1]", json.dumps("text")):
        raw = {"MessageId": "m", "ReceiptHandle": "r", "Body": "{}"}
        found = message_of({**raw, "MessageAttributes": {"oncekey": text(value)}}, "orders")
        assert found.headers == {}


def test_a_message_of_a_lambda_event_is_read_and_sent_on_like_any_other() -> None:
    record = {
        "messageId": "m1",
        "receiptHandle": "r1",
        "body": "{}",
        "attributes": {"ApproximateReceiveCount": "3", "MessageGroupId": "g"},
        "messageAttributes": {
            "Trace": {"dataType": "String", "stringValue": "t"},
            "Blob": {"dataType": "Binary", "binaryValue": base64.b64encode(b"\x01").decode()},
        },
    }
    found = message_of_record(record, "orders.fifo")
    assert (found.receive_count, found.order_group, found.headers) == (3, "g", {"trace": "t"})
    assert attributes_of(found)["Blob"] == {"DataType": "Binary", "BinaryValue": b"\x01"}
    assert message_of_record(record, "orders").order_group is None


def test_a_letter_that_sqs_itself_has_moved_tells_its_source() -> None:
    raw = {"MessageId": "m", "ReceiptHandle": "r", "Body": "{}"}
    raw_moved = {**raw, "Attributes": {"DeadLetterQueueSourceArn": ARN}}
    assert source_of(message_of(raw_moved, "dead")) == ARN
    assert source_of(message_of(raw, "dead")) == ""


def test_a_letter_that_sqs_made_of_a_message_that_was_moved_back_stays() -> None:
    """SQS moves a message after too many receives, with the attributes that it has."""
    letter = delivered(letter_entry(message(), FAILED, ARN, LARGE))
    assert not was_moved(letter, "INC-7")
    entry = redrive_entry(letter, "INC-7", LARGE)
    assert entry is not None
    by_sqs = delivered(entry)
    assert was_moved(by_sqs, "INC-7")
    assert not was_moved(by_sqs, "INC-8")
    by_consumer = delivered(letter_entry(by_sqs, FAILED, ARN, LARGE))
    assert was_moved(by_consumer, "INC-7")
    assert not was_moved(by_consumer, "INC-8")
