"""The Idempotency-Key header: which values are keys, and which are refused (I8)."""

from __future__ import annotations

import random
import string
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncekey.core.errors import InvalidKey
from oncekey.core.identity import Identities
from oncekey.http.key_header import FIELD_MAX_BYTES, _read_any, read_key

FUZZED = 100_000
UUID = "8e03978e-40d5-43dd-bc93-6894a57f9324"


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b'"abc"', "abc"),
        (b"abc", "abc"),
        (UUID.encode(), UUID),
        (f'"{UUID}"'.encode(), UUID),
        (b'  "abc" \t', "abc"),
        (b" abc ", "abc"),
        (b'"abc";version=1', "abc"),
        (b'"a,b;c"', "a,b;c"),
        (rb'"say \"x\" \\ y"'.replace(b" ", b"_"), 'say_"x"_\\_y'),
        (b"order:42/charge", "order:42/charge"),
        (b"k" * 255, "k" * 255),
        (b'"' + b"k" * 255 + b'"', "k" * 255),
        (b'"order 17 of May"', "order 17 of May"),
        (b'" "', " "),
        (b"0", "0"),
        (b"?1", "?1"),
        (b":YWJj:", ":YWJj:"),
    ],
)
def test_quoted_and_unquoted_form_are_the_same_key(line: bytes, key: str) -> None:
    assert read_key([line]) == key


@pytest.mark.parametrize(
    "lines",
    [
        [b""],
        [b"   "],
        [b'""'],
        [b'"a"', b'"a"'],
        [b'"a', b'b"'],
        [b"a", b"b"],
        [b'"a", "b"'],
        [b"a,b"],
        [b"a, b"],
        [b"a b"],
        [b"a;b"],
        [b'a"b'],
        [b'"'],
        [b'"abc'],
        [b'"abc"x'],
        [rb'"a\x"'],
        [b'"a\x07"'],
        [b'"\xc3\xa4"'],
        ["ä".encode()],
        [b"a\x00b"],
        [b"a\r\nb"],
        [b"k" * 256],
        [b'"' + b"k" * 256 + b'"'],
        [b'"a";' + b"p" * FIELD_MAX_BYTES],
        [b'"a";='],
    ],
)
def test_malformed_header_is_refused(lines: list[bytes]) -> None:
    with pytest.raises(InvalidKey):
        read_key(lines)


def test_missing_header_is_no_key() -> None:
    assert read_key([]) is None


def test_strict_accepts_only_quoted_strings() -> None:
    assert read_key([b'"abc";a'], strict=True) == "abc"
    for line in (b"abc", UUID.encode(), b"42", b"?1"):
        with pytest.raises(InvalidKey, match="quoted"):
            read_key([line], strict=True)


def test_refusal_does_not_contain_the_key() -> None:
    for line in (b'"s3cret', b"s3cret key", b'"s3cret key\xe4"', b"s3cret" * 60):
        with pytest.raises(InvalidKey) as raised:
            read_key([line])
        assert "s3cret" not in str(raised.value)


# --- arbitrary headers --------------------------------------------------------------------------

_PIECES = [
    b'"',
    b"\\",
    b",",
    b";",
    b"=",
    b" ",
    b"\t",
    b"\x00",
    b"\xff",
    b"a",
    b"Z",
    b"0",
    b"?",
    b":",
]


def _field(dice: random.Random) -> bytes:
    if dice.random() < 0.5:
        return b"".join(dice.choices(_PIECES, k=dice.randrange(12)))
    inner = dice.randbytes(dice.randrange(20))
    return b'"' + inner + b'"' if dice.random() < 0.5 else inner


@pytest.mark.seeded
def test_i8_arbitrary_header_is_refused_or_a_key_of_its_caller_only(seed: int) -> None:
    """Every header is a key or refused, and every pair of scope and key has a different id."""
    dice = random.Random(seed)
    identities = Identities()
    ids: dict[bytes, tuple[str, str]] = {}
    alphabet = string.ascii_letters + string.digits + ':/;,"\\ äß\u2028'.replace("\u2028", "")
    for _ in range(FUZZED):
        try:
            key = read_key([_field(dice)])
        except InvalidKey:
            key = None
        scope = "".join(dice.choices(alphabet, k=dice.randrange(8)))
        if key is None:
            continue
        assert 0 < len(key) <= 255
        assert key.isascii()
        assert key.isprintable()
        identity = identities.identify(scope, "http", key)
        assert ids.setdefault(identity.id, (scope, key)) == (scope, key)
    # Several thousand are keys, whatever the seed: a reader that refuses all is noticed.
    assert len(ids) > 1_000


LINES = st.one_of(
    st.binary(max_size=20),
    st.text(string.printable, max_size=20).map(str.encode),
    st.text(string.printable, max_size=20).map(lambda text: f'"{text}"'.encode()),
    st.integers(250, 260).map(lambda size: b"k" * size),
    st.integers(250, 260).map(lambda size: b'"' + b"k" * size + b'"'),
)


@settings(deadline=None)
@given(st.lists(LINES, min_size=1, max_size=2), st.booleans())
def test_a_plain_key_is_read_as_the_parser_reads_it(lines: list[bytes], strict: bool) -> None:
    def outcome(read: Callable[[], str | None]) -> str | type[Exception] | None:
        try:
            return read()
        except InvalidKey as error:
            return type(error)

    assert outcome(lambda: read_key(lines, strict=strict)) == outcome(
        lambda: _read_any(lines, strict)
    )
