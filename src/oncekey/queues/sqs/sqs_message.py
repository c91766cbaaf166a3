"""Messages of SQS as the rules see them: as ReceiveMessage gives them, and as Lambda does.

Pure. Text and number attributes become headers; binary ones stay in `raw`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from oncekey.queues.queue_message import Message

# One attribute that holds all of oncekey's headers, for messages that have room for no more.
PACKED_ATTRIBUTE: Final = "oncekey"


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
