"""Keys derived from a request, and namespaces: deterministic, unambiguous, always short."""

from __future__ import annotations

import enum
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey.core.derived_keys import (
    NAMESPACE_MAX_CHARS,
    NAMESPACES_MAX,
    check_key,
    checked_namespaces,
    key_for,
    namespace_of,
)
from oncekey.core.errors import ConfigurationError, InvalidKey
from oncekey.core.identity import KEY_MAX_CHARS, OPERATION_MAX_CHARS, Identities

SECRET = b"0123456789abcdef"
PARAMS = {"sku": "A-1", "count": 2}

_text = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=8)
_tricky = st.text(st.sampled_from("a1-._"), min_size=1, max_size=3)
_namespaces = st.none() | _tricky
_occurrences = st.none() | _tricky | _text
_plain: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | _tricky,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_tricky, inner, max_size=3),
    max_leaves=6,
)
_requests = st.tuples(_tricky | _text, _plain, _occurrences, _namespaces)
KeyParts = tuple[str, Any, str | None, str | None]


def derive(parts: KeyParts) -> str:
    operation, params, occurrence, namespace = parts
    return key_for(operation, params, occurrence=occurrence, namespace=namespace)


def distinct_text(parts: KeyParts) -> str:
    """A text that differs if the values do; Python's True == 1 does not count."""
    operation, params, occurrence, namespace = parts
    return repr((operation, ordered(params), occurrence, namespace))


def reordered(value: Any) -> Any:
    """The same with its members in the opposite order."""
    if isinstance(value, dict):
        return {name: reordered(value[name]) for name in reversed(value)}
    return [reordered(item) for item in value] if isinstance(value, list) else value


def ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return [dict, sorted((name, repr(ordered(item))) for name, item in value.items())]
    if isinstance(value, list):
        return [list, [ordered(item) for item in value]]
    return value


# --- the form ---------------------------------------------------------------------------------


def test_the_format_never_changes() -> None:
    """Golden: another key for the same purchase is a second purchase."""
    assert key_for("buy", PARAMS) == "kf1-e3d2f821f90a769ba6dd6cabf35f8210b0d35aa0"
    full = "v2:kf1-b8004dc0b9c6fe51d21656b856d78956b5ca4256"
    assert key_for("buy", PARAMS, occurrence="cart-7", namespace="v2", secret=SECRET) == full


@given(parts=_requests)
def test_derived_keys_are_short_and_start_with_their_namespace(parts: KeyParts) -> None:
    key = derive(parts)
    assert len(key) <= 64
    assert re.fullmatch(r"(?:[a-z0-9._-]{1,16}:)?kf1-[0-9a-f]{40}", key)
    assert namespace_of(key) == parts[3]
    assert check_key(key) == Identities().identify("", "op", key).key == key


def test_the_longest_derived_key_has_61_characters() -> None:
    widest = key_for("😀" * 100, "😀" * 1_000, occurrence="😀" * 255, namespace="n" * 16)
    assert len(widest) == NAMESPACE_MAX_CHARS + 1 + 44 == 61


# --- the same request, and another one --------------------------------------------------------


@given(parts=_requests)
def test_the_same_request_has_the_same_key_in_whatever_order_its_members_come(
    parts: KeyParts,
) -> None:
    operation, params, occurrence, namespace = parts
    assert derive((operation, reordered(params), occurrence, namespace)) == derive(parts)


@given(parts=_requests, data=st.data())
def test_every_part_changes_the_derived_key(parts: KeyParts, data: st.DataObject) -> None:
    place = data.draw(st.sampled_from([0, 1, 2, 3]))
    change = [_tricky, _plain, _occurrences, _namespaces][place]
    other = list(parts)
    other[place] = data.draw(change)
    assert (derive((other[0], other[1], other[2], other[3])) == derive(parts)) is (
        distinct_text((other[0], other[1], other[2], other[3])) == distinct_text(parts)
    )


def test_confusable_requests_have_different_keys() -> None:
    """Delimiters, quotes and digits at every place, where simply joined parts would be equal."""
    texts = ["".join(letters) for n in (1, 2, 3) for letters in product('1:"', repeat=n)]
    params: list[Any] = [1, 11, 111, "", "1", ":", "1:1"]
    every = list(product([None, "1", "11"], texts, params, [None, *texts]))
    # Only the digest counts here: it has to tell namespaces apart by itself.
    digests = {
        key_for(operation, some, occurrence=occurrence, namespace=namespace)[-40:]
        for namespace, operation, some, occurrence in every
    }
    assert len(digests) == len(every) > 30_000, "5 x 10^8 pairs"


@dataclass
class Purchase:
    sku: str
    count: int


def test_the_order_of_members_and_the_type_of_mapping_do_not_change_the_key() -> None:
    same = [PARAMS, dict(reversed(PARAMS.items())), Purchase("A-1", 2)]
    assert len({key_for("buy", params) for params in same}) == 1


def test_values_of_different_types_have_different_keys() -> None:
    some: list[Any] = [1, "1", 1.0, True, Decimal(1), b"1", None, "null", [], {}, "", [1], {"1": 1}]
    some += [date(2026, 10, 17), "2026-10-17", UUID(int=1), str(UUID(int=1)), {1}]
    assert len({key_for("buy", params) for params in some}) == len(some)


def test_two_identical_purchases_are_one_unless_they_have_an_occurrence() -> None:
    """The trap that the docstring of key_for warns of, and the way out."""
    assert key_for("buy", PARAMS) == key_for("buy", PARAMS)
    carts = {key_for("buy", PARAMS, occurrence=cart) for cart in ("cart-1", "cart-2", None)}
    assert len(carts) == 3


class Weekday(enum.StrEnum):
    MONDAY = "mon"


@pytest.mark.parametrize(
    ("one", "same"),
    [
        (1, "1"),
        (-5, "-5"),
        (date(2026, 10, 17), "2026-10-17"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (Weekday.MONDAY, "mon"),
    ],
)
def test_an_occurrence_is_used_as_text_whatever_its_type(one: Any, same: str) -> None:
    """A counter that comes back from a queue as text is still the same purchase."""
    key = key_for("buy", PARAMS, occurrence=one)
    assert key == key_for("buy", PARAMS, occurrence=same)
    assert key != key_for("buy", PARAMS)


def test_no_occurrence_differs_from_every_occurrence() -> None:
    values: list[str | int] = ["None", "null", "0", 1, "absent", "-", '""']
    keys = {key_for("buy", PARAMS, occurrence=value) for value in values}
    assert len(keys | {key_for("buy", PARAMS)}) == len(values) + 1


def test_a_secret_changes_derived_keys() -> None:
    keys = {key_for("buy", PARAMS, secret=secret) for secret in (None, SECRET, b"x" * 64)}
    assert len(keys) == 3
    assert key_for("buy", PARAMS, secret=SECRET.decode()) in keys
    with pytest.raises(ConfigurationError, match="16 to 64 bytes"):
        key_for("buy", PARAMS, secret="short")


def test_another_process_makes_the_same() -> None:
    script = (
        "from oncekey.core.derived_keys import key_for\n"
        "print(key_for('buy', {'z': {'b', 'a', 'c'}, 'a': 1}, occurrence=3, namespace='v2'))\n"
    )
    here = key_for("buy", {"a": 1, "z": {"c", "a", "b"}}, occurrence=3, namespace="v2")
    for seed in ("1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.stdout.strip(), done.stderr) == (here, "")


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["", "o" * (OPERATION_MAX_CHARS + 1), "a\nb", None, 5])
def test_bad_operations_are_refused(operation: Any) -> None:
    with pytest.raises(InvalidKey, match="the operation"):
        key_for(operation, PARAMS)


@pytest.mark.parametrize("params", [object(), {1: "a"}, [float("nan")], {"a": object}])
def test_params_without_a_canonical_form_are_refused(params: Any) -> None:
    with pytest.raises(InvalidKey, match=r"made from these params \(.+\); give plain values"):
        key_for("buy", params)


@pytest.mark.parametrize(
    "occurrence",
    ["", "x" * 256, "a\x00", True, 1.5, b"x", ["x"], pytest.param(10**5000, id="a long number")],
)
def test_bad_occurrences_are_refused(occurrence: Any) -> None:
    with pytest.raises(InvalidKey, match="the occurrence"):
        key_for("buy", PARAMS, occurrence=occurrence)


def test_a_datetime_is_refused_as_an_occurrence() -> None:
    with pytest.raises(InvalidKey, match="a retry would have another one"):
        key_for("buy", PARAMS, occurrence=datetime.now(UTC))


_NO_NAMESPACES: list[Any] = ["", "V2", "v 2", "v2:", "n" * 17, "ä", "v2\n", 2, b"v2", ["v2"]]


@pytest.mark.parametrize("namespace", _NO_NAMESPACES)
def test_bad_namespaces_are_refused(namespace: Any) -> None:
    with pytest.raises(InvalidKey, match="1 to 16 characters of a-z, 0-9"):
        key_for("buy", PARAMS, namespace=namespace)


# --- namespaces and checks --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "namespace"),
    [
        ("v2:a", "v2"),
        ("v2::", "v2"),
        ("v2:v1:a", "v2"),
        ("2026-10.eu_1:a", "2026-10.eu_1"),
        ("n" * 16 + ":a", "n" * 16),
        ("n" * 17 + ":a", None),
        ("v2", None),
        ("v2:", None),
        (":a", None),
        ("V2:a", None),
        ("ä:a", None),
        ("", None),
        ("v 2:a", None),
        ("v2\n:a", None),
    ],
)
def test_the_namespace_of_a_key(key: str, namespace: str | None) -> None:
    assert namespace_of(key) == namespace


def test_a_key_that_can_be_used_comes_back_as_text() -> None:
    assert check_key("abc") == "abc"
    assert check_key(17) == "17"
    assert check_key(UUID(int=7)) == "00000000-0000-0000-0000-000000000007"
    assert check_key("k" * KEY_MAX_CHARS) == "k" * KEY_MAX_CHARS
    assert check_key("v2:a", namespaces=["v1", "v2"]) == "v2:a"


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("", "has 0 characters; allowed are 1 to 255"),
        ("s3cret" * 50, "has 300 characters; allowed are 1 to 255"),
        ("s3cret\n", "cannot be printed"),
        (None, "not NoneType"),
        (True, "not bool"),
        (b"s3cret", "not bytes"),
    ],
)
def test_a_key_that_cannot_be_used_is_refused_with_what_to_do(key: Any, wrong: str) -> None:
    with pytest.raises(InvalidKey, match=re.escape(wrong)) as raised:
        check_key(key)
    assert "take new_key(), or key_for(...)" in str(raised.value)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("key", ["s3cret", "s3cret:a", "v2", "v2:", "V2:s3cret"])
def test_a_key_of_no_accepted_namespace_is_refused_with_what_to_do(key: str) -> None:
    with pytest.raises(InvalidKey, match='begin the key of a new request with "v2:" or "v3:"') as e:
        check_key(key, namespaces=("v2", "v3"))
    assert "before you know what became of it" in str(e.value)
    assert "s3cret" not in str(e.value)


@pytest.mark.parametrize(
    "namespaces", ["v2", (), ["v2", ""], [None], ["V2"], ["v2"] * (NAMESPACES_MAX + 1)]
)
def test_bad_lists_of_namespaces_are_mistakes_of_the_set_up(namespaces: Any) -> None:
    for check in (checked_namespaces, lambda some: check_key("v2:a", namespaces=some)):
        with pytest.raises(ConfigurationError, match="namespaces="):
            check(namespaces)
