"""Where the key of a message is found, and what is refused as a key."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey import ConfigurationError, InvalidKey, MissingKey
from oncekey.queues import Message
from oncekey.queues.message_key import KeyChoice, key_reader


def message(body: Any = b"", **more: Any) -> Message:
    return Message(body if isinstance(body, bytes) else json.dumps(body).encode(), "orders", **more)


def key_of(choice: KeyChoice, found: Message, identity: str | None = "q-1") -> str:
    return key_reader(choice, identity)(found)


@pytest.mark.parametrize(
    ("choice", "found", "key"),
    [
        ("header:Order-Id", message(headers={"order-id": "o1"}), "o1"),
        ("header: order-id ", message(headers={"order-id": "o1"}), "o1"),
        ("json:$.id", message({"id": "o1"}), "o1"),
        ("json:$.order.id", message({"order": {"id": 17}}), "17"),
        ("json:$.items.1.sku", message({"items": [{}, {"sku": "a"}]}), "a"),
        (lambda found: found.json()["id"].upper(), message({"id": "o1"}), "O1"),
        ("delivery", message(delivery_id="m-1"), "q-1/m-1"),
    ],
)
def test_the_key_is_read_where_the_choice_says(choice: KeyChoice, found: Message, key: str) -> None:
    assert key_of(choice, found) == key


@pytest.mark.parametrize(
    ("choice", "found", "error"),
    [
        ("header:order-id", message(), MissingKey),
        ("json:$.id", message({}), MissingKey),
        ("json:$.id", message({"id": None}), MissingKey),
        ("json:$.id", message({"id": ""}), MissingKey),
        ("json:$.id", message([1, 2]), MissingKey),
        ("json:$.9", message([1, 2]), MissingKey),
        ("json:$.id.more", message({"id": "text"}), MissingKey),
        ("json:$.id", message({"id": True}), InvalidKey),
        ("json:$.id", message({"id": 1.5}), InvalidKey),
        ("json:$.id", message({"id": {"a": 1}}), InvalidKey),
        ("json:$.id", message(b"{"), InvalidKey),
        ("json:$.id", message(b"\xff\xfe\xff"), InvalidKey),
        (lambda found: None, message(), MissingKey),
        ("delivery", message(), MissingKey),
    ],
)
def test_a_message_without_a_usable_key_is_refused_never_handled_unguarded(
    choice: KeyChoice, found: Message, error: type[InvalidKey]
) -> None:
    with pytest.raises(error):
        key_of(choice, found)


@pytest.mark.parametrize(
    "choice",
    ["", "id", "header:", "json:id", "json:$", "json:$.", "json:$.a..b", "json:$.a[0].b", 5, None],
)
def test_a_choice_that_says_nothing_is_refused_at_once(choice: Any) -> None:
    with pytest.raises(ConfigurationError, match="key="):
        key_reader(choice, "q-1")


@pytest.mark.parametrize(
    ("choice", "found", "said"),
    [
        ("header:Order-Id", message(), "no key in its header 'order-id'"),
        ("json:$.order.id", message({}), "no key at $.order.id"),
        ("json:$.order.id", message(b""), "has no body, so it has no key at $.order.id"),
        (lambda found: "", message(), "no key by the function of key="),
    ],
)
def test_a_dead_letter_without_a_key_says_where_it_was_looked_for(
    choice: KeyChoice, found: Message, said: str
) -> None:
    with pytest.raises(InvalidKey) as refused:
        key_of(choice, found)
    assert said in str(refused.value)


@pytest.mark.parametrize("identity", [None, ""])
def test_delivery_is_refused_where_the_queue_has_no_identity(identity: str | None) -> None:
    with pytest.raises(ConfigurationError, match="business id"):
        key_reader("delivery", identity)


def test_i8_a_queue_that_is_created_again_gives_other_delivery_keys() -> None:
    found = message(delivery_id="m-1")
    assert key_of("delivery", found, "q-1") != key_of("delivery", found, "q-2")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_any_json_gives_a_text_that_is_not_empty_or_is_refused(value: Any) -> None:
    try:
        key = key_of("json:$.id", message({"id": value}))
    except InvalidKey:
        return
    assert key == str(value)
    assert key


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        assert key_of("json:$.id", message(body))
    except InvalidKey:
        pass
