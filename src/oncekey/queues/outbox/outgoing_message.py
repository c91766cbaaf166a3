"""A message on its way out: what is added to an outbox, and what a sender is given.

Owns the id of a message. Inside an attempt it is a child key, so an operation that runs again
writes the same id; elsewhere the caller gives one, or it is random. Pure, but for that randomness.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from oncekey.core.errors import ConfigurationError, InvalidKey, Mismatch
from oncekey.core.identity import KeyLike, check_text, key_text
from oncekey.engine.attempts.attempt_base import AttemptBase, current_attempt
from oncekey.engine.new_key import new_key
from oncekey.stores.outbox_commands import Added, OutboxEntry, OutboxRow

KEY_HEADER: Final = "oncekey-key"
RESERVED_HEADERS: Final = "oncekey-"
QUEUE_MAX_CHARS: Final = 255
ORDER_GROUP_MAX_CHARS: Final = 255
BODY_MAX_BYTES: Final = 16_777_216
HEADERS_MAX_BYTES: Final = 65_536
_NAME: Final = "outbox:"


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to send.

    id           its id, the same whenever it is sent; also in the header `oncekey-key`. Give it to
                 the broker's own deduplication (MessageDeduplicationId, message_id) where there is
                 one
    queue        where to: a queue, topic, stream or exchange, as `add` was told
    body         its bytes
    headers      what `add` was given, and `oncekey-key`
    order_group  messages of one group are sent one after the other; give it to the broker as its
                 partition key or group
    tries        how often it was taken to be sent, this time included
    """

    id: str
    queue: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    order_group: str | None = None
    tries: int = 1

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """The body as UTF-8 text."""
        return self.body.decode()


def short_id(id: str, is_allowed: Callable[[str], bool]) -> str:
    """The id itself where a broker allows it, else a digest of it: the same whenever it is sent.
    The header `oncekey-key` has the id in full."""
    return id if is_allowed(id) else "sha256:" + hashlib.sha256(id.encode()).hexdigest()


def message_of(entry: OutboxEntry) -> OutgoingMessage:
    """The message of a stored row."""
    headers = {**json.loads(entry.headers), KEY_HEADER: entry.id}
    return OutgoingMessage(
        entry.id, entry.queue, bytes(entry.body), headers, entry.order_group, entry.tries
    )


def row_of(
    queue: str,
    body: Any,
    *,
    name: str | None,
    key: KeyLike | None,
    headers: Mapping[str, str] | None,
    order_group: str | None,
) -> OutboxRow:
    """The row of a message, checked; raises InvalidKey or ConfigurationError."""
    check_text("queue", queue, 1, QUEUE_MAX_CHARS)
    if order_group is not None:
        check_text("order_group", order_group, 1, ORDER_GROUP_MAX_CHARS)
    id, fence = _id_and_fence(queue, name, key)
    return OutboxRow(id, queue, order_group, _headers_text(headers or {}), _bytes(body), fence)


def check_added(row: OutboxRow, added: Added) -> None:
    """Raise Mismatch if the id stands for another message of the same attempt already."""
    if added is not Added.DIFFERS:
        return
    if row.fence:
        raise Mismatch(
            f"this operation has added another message to {row.queue!r} under the same name; give "
            "each of its messages a name= of its own, the same on every run"
        )
    raise Mismatch(
        f"the outbox has another message for {row.queue!r} under this key; a key stands for one "
        "message, with the same body and headers whenever it is added"
    )


def _id_and_fence(queue: str, name: str | None, key: KeyLike | None) -> tuple[str, int]:
    if key is not None:
        if name is not None:
            raise ConfigurationError("give name= or key=, not both")
        return key_text(key), 0
    attempt: AttemptBase | None = current_attempt()
    if attempt is not None:
        return attempt.child_key(_NAME + (queue if name is None else name)), attempt.fence
    if name is not None:
        raise ConfigurationError(
            f"name={name!r} names a message of a running operation, and none runs here; give "
            "key= for a message that must not be sent twice, or neither"
        )
    return str(new_key()), 0


def _headers_text(headers: Mapping[str, str]) -> str:
    for header, value in headers.items():
        if not isinstance(header, str) or not isinstance(value, str) or not header:
            raise ConfigurationError(f"header {header!r}: names and values must be text")
        if header.lower().startswith(RESERVED_HEADERS):
            raise ConfigurationError(
                f"header {header!r}: names that begin with {RESERVED_HEADERS!r} are ours"
            )
    text = json.dumps({name.lower(): value for name, value in headers.items()}, sort_keys=True)
    if len(text) > HEADERS_MAX_BYTES:
        raise ConfigurationError(f"the headers have more than {HEADERS_MAX_BYTES} bytes")
    return text


def _bytes(body: Any) -> bytes:
    if isinstance(body, (bytes, bytearray, memoryview)):
        data = bytes(body)
    elif isinstance(body, str):
        data = body.encode()
    else:
        try:
            text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidKey(
                f"the body must be bytes, text or plain values for JSON: {error}"
            ) from error
        data = text.encode()
    if len(data) > BODY_MAX_BYTES:
        raise ConfigurationError(
            f"the body has {len(data)} bytes, {BODY_MAX_BYTES} are allowed; store it elsewhere "
            "and send where it is"
        )
    return data
