"""Senders of SQS, for the publishers of an outbox.

    body          as text; SQS takes no other bytes
    headers       message attributes of the type String, ten at most, `oncekey-key` among them
    id            MessageDeduplicationId in a FIFO queue, by which SQS drops what is sent again
                  within five minutes
    order_group   MessageGroupId in a FIFO queue; a message without a group is one of its own

The last two have 128 characters, of few kinds; an id or a group that does not fit is digested. A
batch call that SQS refuses as a whole is sent again one by one, so that one message that cannot be
sent does not keep its neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.outbox.outgoing_message import OutgoingMessage, short_id
from oncekey.queues.outbox.senders import SENDER_BATCH_MAX, prepared
from oncekey.queues.sqs.broker_calls import (
    PASSING,
    CallFailed,
    Cause,
    Program,
    SqsRefused,
    find_url,
    send_batch,
)
from oncekey.queues.sqs.consumers import AiobotocoreCalls, Boto3Calls
from oncekey.queues.sqs.message import ATTRIBUTES_MAX, Entry, in_sizes, is_fifo
from oncekey.queues.sqs.settings import address_of

# Of all messages in one call. Many queues allow more by now, which need not be asked for here: a
# message that is larger is sent alone, and SQS says whether it takes it.
CALL_MAX_BYTES: Final = 262_144
# What no queue of SQS takes, whatever its MaximumMessageSize.
MESSAGE_MAX_BYTES: Final = 1_048_576
_ID: Final = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")
# What the credentials may lack for one queue alone. Every other error of credentials says nothing
# about a message.
_OF_ONE_QUEUE: Final = frozenset(
    ("AccessDenied", "AccessDeniedException", "KmsAccessDenied", "KmsDisabled", "KmsNotFound")
)


class SQSSender:
    """Sends messages of an outbox to SQS with boto3, for `OutboxPublisher`.

        publisher = OutboxPublisher(once, SQSSender())

    client   `boto3.client("sqs")`; made with the environment's settings if left out

    A message's queue is the name, the URL or the ARN of one. In a FIFO queue `order_group` is its
    MessageGroupId and its id the MessageDeduplicationId.
    """

    batch_max = SENDER_BATCH_MAX

    def __init__(self, client: Any = None) -> None:
        self._calls = Boto3Calls(client)
        self._program = OutgoingProgram()

    def send(self, messages: Sequence[OutgoingMessage], /) -> list[Exception | None]:
        """Send messages; None for each that SQS has taken, or its error."""
        return self._calls.run(self._program.send(messages))

    def close(self) -> None:
        """Close the client, if it was made here."""
        self._calls.close()


class AsyncSQSSender:
    """The same with aiobotocore, for `AsyncOutboxPublisher`. `client` is what
    `create_client("sqs")` of an aiobotocore session gives, opened by `async with` or not."""

    batch_max = SENDER_BATCH_MAX

    def __init__(self, client: Any = None) -> None:
        self._calls = AiobotocoreCalls(client)
        self._program = OutgoingProgram()

    async def send(self, messages: Sequence[OutgoingMessage], /) -> list[Exception | None]:
        """Send messages; None for each that SQS has taken, or its error."""
        return await self._calls.run(self._program.send(messages))

    async def close(self) -> None:
        """Close the client, if it was opened here."""
        await self._calls.close()


class OutgoingProgram:
    """The program of one sender. It remembers the URLs of queues."""

    def __init__(self) -> None:
        self._urls: dict[str, str] = {}

    def send(self, messages: Sequence[OutgoingMessage]) -> Program[list[Exception | None]]:
        """Send messages, to whichever queues; for each None, or its error."""
        entries, results = prepared(messages, entry_of)
        positions_of: dict[str, list[int]] = {}
        for position in entries:
            positions_of.setdefault(messages[position].queue, []).append(position)
        for queue, positions in positions_of.items():
            failed = yield from self._send_to(queue, [entries[each] for each in positions])
            for number, failure in failed.items():
                results[positions[number]] = _error(queue, failure)
        return results

    def _send_to(self, queue: str, entries: list[Entry]) -> Program[dict[int, CallFailed]]:
        url = self._urls.get(queue) or (yield from find_url(queue))
        if isinstance(url, CallFailed):
            return dict.fromkeys(range(len(entries)), url)
        self._urls[queue] = url
        failed: dict[int, CallFailed] = {}
        for positions in in_sizes(entries, CALL_MAX_BYTES):
            found = yield from _send(url, [entries[position] for position in positions])
            failed |= {positions[number]: failure for number, failure in found.items()}
        if any(failure.cause is Cause.QUEUE_GONE for failure in failed.values()):
            self._urls.pop(queue, None)
        return failed


def _send(url: str, entries: list[Entry]) -> Program[dict[int, CallFailed]]:
    failed = yield from send_batch("send_message_batch", url, entries)
    is_refused = all(failure.cause is Cause.INVALID for failure in failed.values())
    if len(entries) == 1 or len(failed) < len(entries) or not is_refused:
        return failed
    for number, entry in enumerate(entries):
        alone = yield from send_batch("send_message_batch", url, [entry])
        del failed[number]
        if alone:
            failed[number] = alone[0]
    return failed


def entry_of(message: OutgoingMessage) -> Entry:
    """The entry of SendMessageBatch for a message; raises if SQS cannot take it as it is."""
    if len(message.headers) > ATTRIBUTES_MAX:
        raise ConfigurationError(
            f"the message has {len(message.headers)} headers with oncekey-key, and SQS takes "
            f"{ATTRIBUTES_MAX} attributes; put the others into the body"
        )
    if len(message.body) > MESSAGE_MAX_BYTES:
        raise SqsRefused(
            f"the body has {len(message.body)} bytes, and SQS takes {MESSAGE_MAX_BYTES}; store it "
            "elsewhere and send where it is"
        )
    if message.queue.startswith("arn:"):
        address_of(message.queue)
    attributes: dict[str, Any] = {
        name: {"DataType": "String", "StringValue": value}
        for name, value in message.headers.items()
    }
    entry: Entry = {"MessageBody": message.text, "MessageAttributes": attributes}
    if is_fifo(message.queue):
        entry["MessageGroupId"] = short_id(message.order_group or message.id, _is_id)
        entry["MessageDeduplicationId"] = short_id(message.id, _is_id)
    return entry


def _is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def _error(queue: str, failure: CallFailed) -> OncekeyError:
    text = f"cannot send to the queue {queue}: {failure}"
    is_login = failure.cause is Cause.REFUSED and (
        failure.code.rpartition(".")[2] not in _OF_ONE_QUEUE
    )
    is_unavailable = failure.cause in PASSING or is_login
    return BrokerUnavailable(text) if is_unavailable else SqsRefused(text)
