"""Child keys and child UUIDs: the same on every retry, different for different intents (I8)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain, islice, product
from typing import Any
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey.core import identity
from oncekey.core.errors import ConfigurationError, InvalidKey
from oncekey.core.identity import (
    KEY_MAX_CHARS,
    OPERATION_MAX_CHARS,
    SCOPE_MAX_CHARS,
    STEP_NAME_MAX_CHARS,
    Identities,
    Identity,
    child_key,
    child_uuid,
)

SECRET = b"0123456789abcdef"
PLAIN, KEYED = Identities(), Identities(SECRET)
Parts = tuple[str, str, str, str]
LENGTHS = (6, 7) if os.environ.get("ONCEKEY_SOAK") else (6,)
WAYS_TO_CUT = {6: 35, 7: 56}  # a text of this length, in four

_text = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=12)
# Texts made of delimiters and digits only: where joined parts would meet, these do.
_tricky = st.text(st.sampled_from("a:/|,1"), min_size=1, max_size=4)
_quadruples = st.tuples(_tricky | st.just(""), _tricky, _tricky, _tricky) | st.tuples(
    _text | st.just(""), _text, _text, _text
)


def made(parts: Parts, identities: Identities = PLAIN) -> tuple[str, UUID]:
    scope, operation, key, step = parts
    parent = identities.identify(scope, operation, key)
    return identities.child_key(parent, step), identities.child_uuid(parent, step)


# --- the format -------------------------------------------------------------------------------


def test_the_format_never_changes() -> None:
    """Golden: another child key would charge the customer a second time downstream."""
    parent = PLAIN.identify("acct_1", "charge", "order-17")
    plain = "ok1-3e8563227dff9e87d84de62c0b371f332313b58e"
    keyed = "ok1-21ed621f675b21b98b148dd734f88d2f22534513"
    assert PLAIN.child_key(parent, "payment:charge") == plain
    assert KEYED.child_key(parent, "payment:charge") == keyed
    assert child_key("k", "s") == "ok1-3257428f432f002004de134bd7d44dadabfe2fc4"
    plain_uuid = UUID("ef4347ae-63fd-84a4-81e4-01c637ad3d3a")
    keyed_uuid = UUID("68d72d97-01e1-899c-9099-b1580aeca7bf")
    assert PLAIN.child_uuid(parent, "payment:charge") == plain_uuid
    assert KEYED.child_uuid(parent, "payment:charge") == keyed_uuid
    assert child_uuid("k", "s") == UUID("2a0f2100-e4fe-8fbf-bcf2-72ba999c6c7d")


@given(parts=_quadruples)
def test_child_keys_fit_everywhere(parts: Parts) -> None:
    key, number = made(parts, KEYED)
    assert len(key) == 44
    assert key.isascii()
    assert key.isprintable()
    assert PLAIN.identify("", "op", key).key == key, "a child key is itself a valid key"
    assert (number.version, number.variant, len(str(number))) == (8, RFC_4122, 36)


def test_the_uuid_is_not_made_from_the_child_key() -> None:
    key, number = made(("s", "o", "k", "n"))
    assert key[4:16] != number.hex[:12]


def test_all_bits_of_the_uuid_vary_but_version_and_variant() -> None:
    """The version and the variant take six bits; the other 122 are the digest's."""
    numbers = [made(("s", "o", "k", str(n)))[1].int for n in range(200)]
    always, ever = (1 << 128) - 1, 0
    for number in numbers:
        always &= number
        ever |= number
    fixed = (0xF << 76) | (0b11 << 62)
    assert always == (0x8 << 76) | (0b10 << 62)
    assert ever ^ always == ((1 << 128) - 1) & ~fixed


def test_the_functions_and_the_methods_agree() -> None:
    parent = KEYED.identify("acct_1", "charge", "order-17")
    options: dict[str, Any] = {"scope": "acct_1", "operation": "charge", "secret": SECRET}
    assert child_key("order-17", "pay", **options) == KEYED.child_key(parent, "pay")
    assert child_uuid("order-17", "pay", **options) == KEYED.child_uuid(parent, "pay")
    assert child_key(17, "pay") == child_key("17", "pay")
    assert child_uuid(UUID(int=7), "pay") == child_uuid(str(UUID(int=7)), "pay")


def test_nothing_is_normalised() -> None:
    """Normal forms change with the Unicode version; a key must not."""
    spellings = ["caf\u00e9", "cafe\u0301", "CAF\u00c9", "cafe\u0301 ", "caf\u0065\u0301\u0301"]
    for place in range(4):
        parts = [["s", "o", "k", "n"] for _ in spellings]
        for one, spelling in zip(parts, spellings, strict=True):
            one[place] = spelling
        keys = {made((a, b, c, d))[0] for a, b, c, d in parts}
        assert len(keys) == len(spellings)


# --- no two intents meet ----------------------------------------------------------------------


@given(text=st.text(st.sampled_from("a:1é"), min_size=4, max_size=10), data=st.data())
def test_i8_where_the_parts_are_cut_matters(text: str, data: st.DataObject) -> None:
    """The same text, cut into parts at different places, is different intents."""

    def cut() -> Parts:
        first = data.draw(st.integers(0, len(text) - 3))
        second = data.draw(st.integers(first + 1, len(text) - 2))
        third = data.draw(st.integers(second + 1, len(text) - 1))
        return text[:first], text[first:second], text[second:third], text[third:]

    one, two = cut(), cut()
    for mine, other in zip(made(one), made(two), strict=True):
        assert (mine == other) is (one == two)


@given(parts=_quadruples, place=st.sampled_from([0, 1, 2, 3]), other=_tricky | _text)
def test_i8_child_keys_differ_by_tenant_operation_key_and_step(
    parts: Parts, place: int, other: str
) -> None:
    changed = list(parts)
    changed[place] = other
    a, b, c, d = changed
    for mine, theirs in zip(made(parts), made((a, b, c, d)), strict=True):
        assert (mine == theirs) is (parts[place] == other)


@given(parts=_quadruples, other=_text)
def test_i8_the_same_key_and_step_of_another_tenant_is_another_child(
    parts: Parts, other: str
) -> None:
    mine, theirs = made(parts), made((parts[0] + other, *parts[1:]))
    assert mine[0] != theirs[0]
    assert mine[1] != theirs[1]


def _confusable() -> Iterator[Parts]:
    """Every way to cut each of these texts in four: all of them different, all look alike.

    Empty scopes and operations are among them, delimiters at every place, digits that look like
    lengths ("1:a"), and a letter of two bytes.
    """
    texts = (map("".join, product("a:1é", repeat=length)) for length in LENGTHS)
    for text in chain.from_iterable(texts):
        for third in range(1, len(text)):
            key_ends, step = text[:third], text[third:]
            for second in range(third):
                front, key = key_ends[:second], key_ends[second:]
                for first in range(second + 1):
                    yield front[:first], front[first:], key, step


def test_i8_confusable_intents_have_child_keys_of_their_own() -> None:
    """Distinct by construction, so any two equal keys are a collision: 10^10 pairs, in a long run
    5 x 10^11."""
    count = 0
    seen: set[bytes] = set()
    make, to_bytes = PLAIN.child_key, bytes.fromhex
    for scope, operation, key, step in _confusable():
        seen.add(to_bytes(make(Identity(scope, operation, key, b""), step)[4:]))
        count += 1
    assert count == sum(4**length * WAYS_TO_CUT[length] for length in LENGTHS) > 100_000
    assert len(seen) == count


def test_i8_the_same_holds_for_uuids() -> None:
    some = list(islice(_confusable(), 20_000))
    numbers = {PLAIN.child_uuid(Identity(*parts[:3], b""), parts[3]) for parts in some}
    assert len(numbers) == len(some)


def test_no_label_is_the_beginning_of_another() -> None:
    labels = [identity.CHILD_KEY, identity.CHILD_UUID, identity.KEY_FOR]
    for one in labels:
        assert [other for other in labels if other.startswith(one)] == [one]


def test_the_hmac_key_without_a_secret_is_long_enough_for_fips() -> None:
    assert len(identity.NO_SECRET) * 8 >= 112


# --- secrets and processes --------------------------------------------------------------------


def test_every_secret_makes_keys_of_its_own() -> None:
    secrets = [None, SECRET, SECRET + b"!", b"x" * 64, bytes(range(16)), "sixteen letters."]
    keys = {child_key("k", "s", secret=secret) for secret in secrets}
    numbers = {child_uuid("k", "s", secret=secret) for secret in secrets}
    assert len(keys) == len(numbers) == len(secrets)
    assert child_key("k", "s", secret=SECRET.decode()) == child_key("k", "s", secret=SECRET)


def test_a_bad_secret_is_refused() -> None:
    for function in (child_key, child_uuid):
        with pytest.raises(ConfigurationError, match="16 to 64 bytes"):
            function("k", "s", secret=b"short")


def test_another_process_makes_the_same() -> None:
    script = (
        "from oncekey.core.identity import child_key, child_uuid\n"
        "options = {'scope': 'a\u00e9', 'operation': 'o', 'secret': b'0123456789abcdef'}\n"
        "print(child_key('k', '\U0001f600', **options), child_uuid('k', '\U0001f600', **options))\n"
    )
    for seed in ("1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONUTF8": "1"}
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stderr == ""
        key, number = made(("aé", "o", "k", "😀"), KEYED)
        assert done.stdout.split() == [key, str(number)]


# --- limits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [child_key, child_uuid])
@pytest.mark.parametrize("name", ["", "x" * (STEP_NAME_MAX_CHARS + 1), "a\x00", None, 3])
def test_bad_step_names_are_refused(function: Any, name: Any) -> None:
    with pytest.raises(InvalidKey, match="step name"):
        function("k", name)


@pytest.mark.parametrize("function", [child_key, child_uuid])
@pytest.mark.parametrize("parent", ["", True, None, "a\nb", "k" * (KEY_MAX_CHARS + 1), 1.5])
def test_bad_parents_are_refused(function: Any, parent: Any) -> None:
    with pytest.raises(InvalidKey, match="the key"):
        function(parent, "step")


@pytest.mark.parametrize("function", [child_key, child_uuid])
@pytest.mark.parametrize(
    ("part", "high"), [("scope", SCOPE_MAX_CHARS), ("operation", OPERATION_MAX_CHARS)]
)
def test_bad_scopes_and_operations_are_refused(function: Any, part: str, high: int) -> None:
    assert function("k", "s", **{part: "😀" * high}) != function("k", "s")
    for bad in ("x" * (high + 1), "a\x00", 5):
        with pytest.raises(InvalidKey, match=f"the {part}"):
            function("k", "s", **{part: bad})


def test_the_error_for_a_bad_key_does_not_contain_the_key() -> None:
    for bad in ("s3cret\n", "s3cret" * 50):
        with pytest.raises(InvalidKey) as raised:
            child_key(bad, "step")
        assert "s3cret" not in str(raised.value)
