"""Messages of SQS: as the rules see them, and as SendMessage takes dead letters and parked ones.

ReceiveMessage gives messages, and so does Lambda. Text and number attributes become headers; binary
ones stay in `raw`. On its way to another queue a message goes unchanged whatever happens. SQS
allows ten attributes and a largest size, body and attributes together; what oncekey adds gives way:

    four attributes are free          oncekey-error, -fence, -tries and -source (the queue's ARN,
                                      since several queues may share one dead-letter queue)
    one is free                       the attribute `oncekey`, JSON of the same headers
    none is free                      nothing is added: the error is in the store
    the message leaves little room    the error is shortened, then left out, then all but the fence

A letter that is moved back has `oncekey-redrive` too, in the same way, and a parked message
`oncekey-moved`. What was moved back and fails again has `oncekey-moved` in the dead-letter queue:
it says which redrive has moved it, so that the same one does not do so twice. Pure.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from oncekey.queues.disposition import DeadLetter, Disposition
from oncekey.queues.queue_message import Message
from oncekey.queues.redrive import (
    ERROR_HEADER,
    FENCE_HEADER,
    HEADERS,
    REDRIVE_HEADER,
    headers_of,
)
from oncekey.queues.sqs.broker_calls import BATCH_MAX

# One attribute that holds all of oncekey's headers, for messages that have room for no more.
PACKED_ATTRIBUTE: Final = "oncekey"
ATTRIBUTES_MAX: Final = 10
SOURCE_HEADER: Final = "oncekey-source"
# What SQS says of a message that it has moved to the dead-letter queue itself.
_SOURCE_ATTRIBUTE: Final = "DeadLetterQueueSourceArn"
MOVED_HEADER: Final = "oncekey-moved"
_MARKS: Final = (*HEADERS, SOURCE_HEADER, MOVED_HEADER)
_OURS: Final = frozenset((*_MARKS, PACKED_ATTRIBUTE))
_TEXT: Final = "String"
_SHORTEST_ERROR_CHARS: Final = 20
Entry = dict[str, Any]


def message_of(raw: Mapping[str, Any], queue: str) -> Message:
    """Return a message that ReceiveMessage gave."""
    system = raw.get("Attributes", {})
    values = {
        name: attribute["StringValue"]
        for name, attribute in raw.get("MessageAttributes", {}).items()
        if "StringValue" in attribute
    }
    return _message(raw, raw["Body"], raw["MessageId"], system, values, queue)


def message_of_record(record: Mapping[str, Any], queue: str) -> Message:
    """Return a message as it stands in the event of an AWS Lambda function."""
    values = {
        name: attribute["stringValue"]
        for name, attribute in record.get("messageAttributes", {}).items()
        if attribute.get("stringValue") is not None
    }
    system = record.get("attributes", {})
    return _message(record, record["body"], record["messageId"], system, values, queue)


def _message(
    raw: Mapping[str, Any],
    body: str,
    id: str,
    system: Mapping[str, str],
    values: Mapping[str, str],
    queue: str,
) -> Message:
    headers = {name.lower(): value for name, value in values.items()}
    headers |= _unpacked(headers.pop(PACKED_ATTRIBUTE, ""))
    return Message(
        body=body.encode(),
        queue=queue,
        headers=headers,
        delivery_id=id,
        receive_count=int(system.get("ApproximateReceiveCount", 0)),
        # Messages of a standard queue may have groups too, for fairness, and no order.
        order_group=system.get("MessageGroupId") if is_fifo(queue) else None,
        raw=raw,
    )


def is_fifo(queue: str) -> bool:
    """True if a queue of this name keeps an order: SQS allows the ending to no other queue."""
    return queue.endswith(".fifo")


def receipt_of(message: Message) -> str:
    """Return the receipt handle, which ReceiveMessage and Lambda spell differently."""
    raw = message.raw
    return str(raw["ReceiptHandle"] if "ReceiptHandle" in raw else raw["receiptHandle"])


def attributes_of(message: Message) -> dict[str, dict[str, Any]]:
    """Return the message's own attributes as SendMessage takes them."""
    if "ReceiptHandle" in message.raw:
        return dict(message.raw.get("MessageAttributes", {}))
    attributes = message.raw.get("messageAttributes", {})
    return {name: _sendable(attribute) for name, attribute in attributes.items()}


def _sendable(attribute: Mapping[str, Any]) -> dict[str, Any]:
    sent: dict[str, Any] = {"DataType": attribute["dataType"]}
    if attribute.get("stringValue") is not None:
        sent["StringValue"] = attribute["stringValue"]
    if attribute.get("binaryValue") is not None:
        sent["BinaryValue"] = base64.b64decode(attribute["binaryValue"])
    return sent


def _unpacked(text: str) -> dict[str, str]:
    """Return the headers in the packed attribute; somebody else's attribute holds none."""
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(name): str(value) for name, value in found.items()}


# --- letters --------------------------------------------------------------------------------------


def letter_entry(message: Message, disposition: Disposition, source: str, max_bytes: int) -> Entry:
    """Return the entry of SendMessageBatch that puts a message into another queue.

    `source` is the ARN of its own queue, and `max_bytes` what the other one allows for a message.
    """
    letter = disposition.dead_letter or DeadLetter(disposition.reason)
    marks = {**headers_of(letter), SOURCE_HEADER: source}
    moved_by = message.headers.get(REDRIVE_HEADER) or message.headers.get(MOVED_HEADER)
    if moved_by:
        marks[MOVED_HEADER] = moved_by
    return _entry(message, marks, FENCE_HEADER, max_bytes)


def redrive_entry(letter: Message, id: str, max_bytes: int) -> Entry | None:
    """Return the entry that puts a dead letter back into its queue; None if the letter has no room
    for the header that says so, without which it would be a dead letter again at once."""
    marks = {name: letter.headers[name] for name in _MARKS if name in letter.headers}
    marks.pop(MOVED_HEADER, None)
    entry = _entry(letter, {**marks, REDRIVE_HEADER: id}, REDRIVE_HEADER, max_bytes)
    return entry if has_marks(entry) else None


def unparked_entry(letter: Message, id: str, max_bytes: int) -> Entry:
    """Return the entry that puts a parked message back into its queue, without what says why it was
    parked."""
    return _entry(letter, {MOVED_HEADER: id}, MOVED_HEADER, max_bytes)


def was_moved(letter: Message, id: str) -> bool:
    """True if this redrive has moved the message back once already. A letter that SQS itself has
    made of it since, after too many receives, still has the header of the redrive."""
    return id in (letter.headers.get(MOVED_HEADER), letter.headers.get(REDRIVE_HEADER))


def source_of(letter: Message) -> str:
    """Return the ARN of the queue that a dead letter comes from, or "" if it does not say."""
    by_sqs = letter.raw.get("Attributes", {}).get(_SOURCE_ATTRIBUTE, "")
    return letter.headers.get(SOURCE_HEADER, "") or str(by_sqs)


def _entry(message: Message, marks: Mapping[str, str], needed: str, max_bytes: int) -> Entry:
    own = {
        name: attribute
        for name, attribute in attributes_of(message).items()
        if name.lower() not in _OURS
    }
    entry: Entry = {"MessageBody": message.text}
    room = max_bytes - len(message.body) - _bytes_of(own)
    attributes = {**own, **_added(marks, needed, ATTRIBUTES_MAX - len(own), room)}
    if attributes:
        entry["MessageAttributes"] = attributes
    if is_fifo(message.queue):
        entry["MessageGroupId"] = message.order_group or message.delivery_id
        # A consumer that is killed before it removes the message sends the same entry again.
        entry["MessageDeduplicationId"] = message.delivery_id
    return entry


def in_sizes(entries: list[Entry], max_bytes: int) -> Iterator[list[int]]:
    """Yield the positions of entries that fit into one call: SQS limits a whole batch as it limits
    one message."""
    batch: list[int] = []
    size = 0
    for position, entry in enumerate(entries):
        bytes_ = len(entry["MessageBody"].encode()) + _bytes_of(entry.get("MessageAttributes", {}))
        if batch and (size + bytes_ > max_bytes or len(batch) == BATCH_MAX):
            yield batch
            batch, size = [], 0
        batch.append(position)
        size += bytes_
    if batch:
        yield batch


def has_marks(entry: Entry) -> bool:
    """True if the entry says why it was sent."""
    return any(name.lower() in _OURS for name in entry.get("MessageAttributes", {}))


def _added(
    marks: Mapping[str, str], needed: str, free: int, room: int
) -> dict[str, dict[str, str]]:
    """Return the attributes for as many of the marks as there is room for."""
    for fewer in _shortened(marks, needed):
        added = _attributes(fewer, free)
        if added and _bytes_of(added) <= room:
            return added
    return {}


def _shortened(marks: Mapping[str, str], needed: str) -> Iterator[dict[str, str]]:
    """Yield the marks, then less and less of them, and last the one that is needed."""
    error = _allowed(marks.get(ERROR_HEADER, ""))
    rest = {name: value for name, value in marks.items() if name != ERROR_HEADER}
    while len(error) > _SHORTEST_ERROR_CHARS:
        yield {ERROR_HEADER: error, **rest}
        error = error[: len(error) // 2]
    if error:
        yield {ERROR_HEADER: error, **rest}
    yield rest
    if needed in rest:
        yield {needed: rest[needed]}


def _attributes(headers: Mapping[str, str], free: int) -> dict[str, dict[str, str]]:
    if free >= len(headers):
        return {name: _attribute(value) for name, value in headers.items()}
    if free >= 1:
        return {PACKED_ATTRIBUTE: _attribute(json.dumps(dict(headers)))}
    return {}


def _attribute(value: str) -> dict[str, str]:
    return {"DataType": _TEXT, "StringValue": value}


def _allowed(text: str) -> str:
    """Return the text without characters that SQS refuses."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _bytes_of(attributes: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the size that SQS counts for attributes: names, types and values."""
    return sum(
        len(name.encode())
        + sum(len(part.encode() if isinstance(part, str) else part) for part in one.values())
        for name, one in attributes.items()
    )
