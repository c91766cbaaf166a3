"""A message of a queue as the rules and handlers see it, whatever the broker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_NO_HEADERS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """One delivery of a message.

    body           its bytes
    queue          the name of the queue, topic or stream it came from
    headers        its headers or attributes that are text; names in lower case
    delivery_id    the broker's own name for the message (MessageId, partition and offset, ...); the
                   same when it is delivered again, another one when it is sent again
    receive_count  how often the broker has delivered it, this time included; 0 if it does not tell
    order_group    messages of one group are handled one after the other, in the order they came;
                   None where the broker promises no order
    raw            the message as the broker's client gave it
    """

    body: bytes
    queue: str
    headers: Mapping[str, str] = field(default_factory=lambda: _NO_HEADERS)
    delivery_id: str = ""
    receive_count: int = 0
    order_group: str | None = None
    raw: Any = None

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """The body as UTF-8 text."""
        return self.body.decode()
