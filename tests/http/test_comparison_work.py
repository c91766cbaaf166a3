"""A short request costs little work when it is compared: what takes long is not looked into."""

from __future__ import annotations

import gzip
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oncekey.http import body_comparison
from oncekey.http.body_comparison import ESCAPES_MAX, FORM_FIELDS_MAX, VALUES_MAX, comparable_bytes
from oncekey.http.canonical_json import PAUSE_SECONDS, SLICE_VALUES
from oncekey.http.message import Body, Request, TooLarge, headers_by_name
from oncekey.http.request_fingerprint import fingerprint_bytes
from oncekey.http.rules import Rule

JSON, FORM = b"application/json", b"application/x-www-form-urlencoded"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the documents and forms that are parsed."""
    lengths: list[int] = []

    def recorded(parse: Any) -> Any:
        def call(text: Any, *arguments: Any, **options: Any) -> Any:
            lengths.append(len(text))
            return parse(text, *arguments, **options)

        return call

    for name in ("parse_strict", "_form_pairs"):
        monkeypatch.setattr(body_comparison, name, recorded(getattr(body_comparison, name)))
    return lengths


def array(element: bytes, number: int) -> bytes:
    return b"[" + b",".join([element] * number) + b"]"


ALLOWED = {
    "floats": (JSON, array(b"1.5", VALUES_MAX), b"j"),
    "commas-in-a-text": (JSON, b'{"a":1.5,"text":"' + b',[{\\"' * (2 * VALUES_MAX) + b'"}', b"j"),
    "long-text": (JSON, b'["' + b"\\u3042" * (ESCAPES_MAX + 1) + b'"]', b"j"),
    "lines": (JSON, b'["' + b"\\n" * ESCAPES_MAX + b'"]', b"j"),
    "form": (FORM, b"a=" + b"%41" * ESCAPES_MAX, b"f"),
}
REFUSED = {
    "floats": (JSON, array(b"1.5", VALUES_MAX + 1)),
    "integers": (JSON, array(b"7", 9 * VALUES_MAX)),
    "arrays": (JSON, array(b"[]", 5 * VALUES_MAX)),
    "objects": (JSON, array(b'{"a":1}', 2 * VALUES_MAX)),
    "texts": (JSON, array(b'""', 10 * VALUES_MAX)),
    "lines": (JSON, b'["' + b"\\n" * (ESCAPES_MAX + 1) + b'"]'),
    "form": (FORM, b"a=" + b"%41" * (ESCAPES_MAX + 1)),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_body_within_the_limits_is_compared_by_its_content(name: str) -> None:
    media, body, form = ALLOWED[name]
    for ignore in ((), ("other",)):
        assert comparable_bytes(Body(body), media, "", ignore, None)[:1] == form


@pytest.mark.parametrize("name", REFUSED)
def test_body_past_a_limit_is_compared_byte_by_byte(name: str, parsed: list[int]) -> None:
    media, body = REFUSED[name]
    headers = headers_by_name([(b"content-type", media), (b"content-encoding", b"gzip")])
    request = Request("POST", b"/", b"", headers, gzip.compress(body))
    again = request._replace(body=gzip.compress(body, 1, mtime=7))
    other = request._replace(body=gzip.compress(b" " + body))
    compared = [fingerprint_bytes(one, Rule()) for one in (request, again, other)]
    assert compared[0] == compared[1] != compared[2]
    assert parsed == []


@pytest.mark.parametrize("name", REFUSED)
def test_body_past_a_limit_is_refused_where_parts_of_it_count(name: str, parsed: list[int]) -> None:
    media, body = REFUSED[name]
    for ignore, only in (((("a",)), None), ((), ("a",))):
        with pytest.raises(TooLarge) as raised:
            comparable_bytes(Body(body), media, "", ignore, only)
        assert raised.value.limit in (VALUES_MAX, ESCAPES_MAX)
        assert raised.value.unit in ("JSON values", "escapes")
    assert parsed == []


def test_text_that_never_ends_is_counted_in_one_pass() -> None:
    """Each of its quotes could be taken for the beginning of a text that reaches to the end."""
    for unended in (b'["' + b'\\",' * 60_000, b'["' + b',\\"' * 60_000 + b"\\"):
        assert comparable_bytes(Body(unended), JSON, "", (), None)[:1] == b"d"


# --- slices ---------------------------------------------------------------------------------------

COSTLY = {
    "floats": array(b"1.5", VALUES_MAX),
    "small-floats": array(b"0.00001" + b"0" * 40, VALUES_MAX),
    "objects": array(b'{"a":1.5}', VALUES_MAX // 3),
    "members": b"{" + b",".join(b'"%d":1.5' % n for n in range(VALUES_MAX - 1)) + b"}",
    "texts": b"[1.5," + b",".join([b'"\\u0001"'] * (VALUES_MAX - 2)) + b"]",
}


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that a comparison makes, in which other threads get their turn."""
    made: list[float] = []
    monkeypatch.setattr("oncekey.http.canonical_json.time.sleep", made.append)
    return made


@pytest.mark.parametrize("name", COSTLY)
def test_costly_comparison_pauses_after_every_slice(name: str, pauses: list[float]) -> None:
    assert comparable_bytes(Body(COSTLY[name]), JSON, "", (), None)[:1] == b"j"
    values = COSTLY[name].count(b",") + 1
    assert len(pauses) >= values // SLICE_VALUES
    assert set(pauses) == {PAUSE_SECONDS}


@pytest.mark.parametrize(
    "form", [b"a=" + b"%41" * ESCAPES_MAX, b"&".join([b"a=" + b"%41" * 30] * FORM_FIELDS_MAX)]
)
def test_costly_form_pauses_after_every_slice(form: bytes, pauses: list[float]) -> None:
    assert comparable_bytes(Body(form), FORM, "", (), None)[:1] == b"f"
    assert len(pauses) >= FORM_FIELDS_MAX // SLICE_VALUES


def test_small_comparison_does_not_pause(pauses: list[float]) -> None:
    assert comparable_bytes(Body(array(b"1.5", 20)), JSON, "", (), None)[:1] == b"j"
    assert pauses == []


# --- forms are read as the standard library reads them --------------------------------------------

PIECES = [
    "a",
    "b=",
    "=",
    "&",
    "%41",
    "%C3%A9",
    "%C3",
    "%",
    "%4",
    "%zz",
    "+",
    "é",
    "%2B",
    "%26",
    "\n",
]


@settings(max_examples=2_000, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@example("")
@example("a=" + "%41x" * 2_500 + "%C3" * 999 + "%A9")
@example("a=" + "%C3%A9" * 1_500)
def test_form_is_read_as_by_parse_qsl(text: str) -> None:
    def standard() -> list[tuple[str, str]]:
        return parse_qsl(
            text,
            keep_blank_values=True,
            strict_parsing=bool(text),
            errors="strict",
            max_num_fields=FORM_FIELDS_MAX,
        )

    assert pairs_or_refused(lambda: body_comparison._form_pairs(text)) == pairs_or_refused(standard)


def pairs_or_refused(read: Any) -> Any:
    try:
        return read()
    except ValueError:
        return None


def test_form_with_too_many_fields_is_compared_byte_by_byte() -> None:
    for number, form in ((FORM_FIELDS_MAX, b"f"), (FORM_FIELDS_MAX + 1, b"r")):
        body = Body(b"&".join([b"a=1"] * number))
        assert comparable_bytes(body, FORM, "", (), None)[:1] == form
