"""How the key of a message is found: in a header, in its JSON body, by a function, or by delivery.

A business id is the key that also recognises a message that its producer has sent twice. The
broker's own id does not: it is used only if `key="delivery"` says so, and then with the identity of
the queue, because a queue that is created again gives old ids to new messages. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from oncekey.core.errors import ConfigurationError, InvalidKey, MissingKey
from oncekey.queues.queue_message import Message

DELIVERY: Final = "delivery"
_HEADER: Final = "header:"
_JSON: Final = "json:"
_NOT_PLAIN: Final = frozenset("[]*")  # of JSONPath, which can do more than is read here
_CHOICES: Final = (
    "a function of the message, 'header:NAME', 'json:$.path.to.id', or 'delivery' for the broker's "
    "own id, which does not recognise a message that was sent twice"
)

KeyChoice = str | Callable[[Message], Any]


def key_reader(choice: KeyChoice, identity: str | None) -> Callable[[Message], str]:
    """The function that reads the key of a message. `identity` tells this queue from another one
    of the same name, created later; None if the broker cannot tell."""
    if callable(choice):
        return _checked(choice, "by the function of key=")
    if not isinstance(choice, str):
        raise ConfigurationError(f"key={choice!r} must be {_CHOICES}")
    if choice == DELIVERY:
        return _delivery_reader(identity)
    if choice.startswith(_HEADER):
        name = choice.removeprefix(_HEADER).strip().lower()
        if name:
            return _checked(lambda message: message.headers.get(name), f"in its header {name!r}")
    if choice.startswith(_JSON):
        path = choice.removeprefix(_JSON).strip()
        return _checked(_json_reader(path), f"at {path}")
    raise ConfigurationError(f"key={choice!r} must be {_CHOICES}")


def _delivery_reader(identity: str | None) -> Callable[[Message], str]:
    if not identity:
        raise ConfigurationError(
            "key='delivery': this broker does not tell one queue from another of the same name "
            "that is created later, so new messages could be taken for duplicates and removed "
            "unhandled. Give a business id: key='header:NAME', 'json:$.path' or a function"
        )

    def read(message: Message) -> str:
        if not message.delivery_id:
            raise MissingKey("this message has no id of its own, so key='delivery' cannot be used")
        return f"{identity}/{message.delivery_id}"

    return read


def _json_reader(path: str) -> Callable[[Message], Any]:
    """Reads the member at a plain path such as $.order.id or $.items.0.sku."""
    names = path.removeprefix("$").removeprefix(".").split(".")
    if not path.startswith("$.") or not all(names) or not _NOT_PLAIN.isdisjoint(path):
        raise ConfigurationError(
            f"key='json:{path}' must be a plain path such as 'json:$.order.id' or "
            "'json:$.items.0.id'; for anything else give a function of the message"
        )

    def read(message: Message) -> Any:
        try:
            found = json.loads(message.body)
        except ValueError as error:
            what = "is not JSON" if message.body else "has no body"
            raise InvalidKey(f"the message {what}, so it has no key at {path}") from error
        for name in names:
            if isinstance(found, dict):
                found = found.get(name)
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                return None
        return found

    return read


def _checked(read: Callable[[Message], Any], where: str) -> Callable[[Message], str]:
    """Keys are text or whole numbers; a message without one is refused, never handled unguarded."""

    def key_of(message: Message) -> str:
        key = read(message)
        if isinstance(key, int) and not isinstance(key, bool):
            return str(key)
        if key is None or key == "":
            raise MissingKey(f"this message has no key {where}")
        if not isinstance(key, str):
            raise InvalidKey(f"the key of this message is a {type(key).__name__}, not text")
        return key

    return key_of
