"""Which requests count as equal: only those whose equal meaning is certain (I7)."""

from __future__ import annotations

import gzip
import json
import random
import zlib

import pytest

from oncekey.http.body_comparison import CANONICAL_MAX_BYTES
from oncekey.http.message import Request, TooLarge, UnreadableBody, headers_by_name
from oncekey.http.request_fingerprint import fingerprint_bytes
from oncekey.http.rules import Rule

JSON = b"application/json"


def fingerprint(
    body: bytes = b"",
    kind: bytes = JSON,
    *,
    method: str = "POST",
    path: bytes = b"/charges",
    query: bytes = b"",
    coding: bytes = b"",
    rule: Rule | None = None,
) -> bytes:
    headers = [(b"content-type", kind)] if kind else []
    if coding:
        headers.append((b"content-encoding", coding))
    return fingerprint_bytes(
        Request(method, path, query, headers_by_name(headers), body), rule or Rule()
    )


SAME = [
    (b'{"a":1,"b":2}', b'{ "b" : 2, "a" : 1 }'),
    (b'{"a":1.0}', b'{"a":1}'),
    (b'{"a":1e2}', b'{"a":100}'),
    (b'"\\u00e4"', '"ä"'.encode()),
    (b'{"a":[{"x":1,"y":2}]}', b'{"a":[{"y":2,"x":1}]}'),
]
DIFFERENT = [
    (b'{"a":1}', b'{"a":2}'),
    (b'{"a":1}', b'{"a":"1"}'),
    (b'{"a":1}', b'{"a":1,"b":null}'),
    (b'{"a":[1,2]}', b'{"a":[2,1]}'),
    (b'{"a":1,"a":2}', b'{"a":2}'),  # parsers differ in which of the two they take
    (b'{"a":0.1}', b'{"a":0.1000000000000000055}'),  # the same float, another amount
    (b'{"a":9007199254740993}', b'{"a":9007199254740992}'),
    (b'{"a":NaN}', b'{"a":null}'),
    (b'{"a":1', b'{"a":1}'),
    (b"[1]", b"[1,]"),
    (b'{"a":true}', b'{"a":1}'),
    (b"null", b""),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_json_with_equal_content_is_equal(one: bytes, other: bytes) -> None:
    assert fingerprint(one) == fingerprint(other)
    assert fingerprint(one, b"application/vnd.api+json") == fingerprint(
        other, b"application/vnd.api+json"
    )


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_json_with_different_content_differs(one: bytes, other: bytes) -> None:
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_other_media_types_are_compared_byte_by_byte(one: bytes, other: bytes) -> None:
    assert fingerprint(one, b"text/plain") != fingerprint(other, b"text/plain")


def test_method_path_query_and_content_type_are_compared() -> None:
    everything = [
        fingerprint(b"1"),
        fingerprint(b"1", method="PATCH"),
        fingerprint(b"1", path=b"/charges/"),
        fingerprint(b"1", path=b"/charge%73"),
        fingerprint(b"1", query=b"a=1"),
        fingerprint(b"1", query=b"a=2"),
        fingerprint(b"1", query=b"a=1&a=2"),
        fingerprint(b"1", query=b"a=2&a=1"),
        fingerprint(b"1", kind=b"text/plain"),
        fingerprint(b"1", kind=b""),
        fingerprint(b"1", kind=b"application/json;profile=x"),
    ]
    assert len(set(everything)) == len(everything)


def test_order_of_parameters_and_spelling_of_a_content_type_are_ignored() -> None:
    assert fingerprint(query=b"a=1&b=2") == fingerprint(query=b"b=2&a=1")
    assert fingerprint(b"{}", b"application/json") == fingerprint(
        b"{}", b"Application/JSON; charset=UTF-8"
    )


def test_parts_of_a_request_cannot_be_shifted_into_each_other() -> None:
    assert fingerprint(b"", b"text/plain", path=b"/a", query=b"b") != fingerprint(
        b"", b"text/plain", path=b"/ab", query=b""
    )


# --- codings ------------------------------------------------------------------------------------


def test_compressed_body_equals_its_content() -> None:
    body = b'{"a":1,"b":2}'
    plain = fingerprint(body)
    assert fingerprint(gzip.compress(body, mtime=1), coding=b"gzip") == plain
    assert fingerprint(gzip.compress(body, 1, mtime=2), coding=b"GZIP") == plain
    assert fingerprint(zlib.compress(body), coding=b"deflate") == plain
    assert fingerprint(gzip.compress(zlib.compress(body)), coding=b"deflate, gzip") == plain
    assert fingerprint(gzip.compress(body[:5]) + gzip.compress(body[5:]), coding=b"gzip") == plain
    assert fingerprint(body, coding=b"identity") == plain
    assert fingerprint(body, coding=b"br") != plain, "its content is unknown"


@pytest.mark.parametrize("body", [b"", b"no gzip", gzip.compress(b"x" * 100, mtime=1)[:-4]])
def test_body_that_does_not_have_its_coding_is_refused(body: bytes) -> None:
    if not body:
        assert fingerprint(body, coding=b"gzip") == fingerprint(b"")
        return
    with pytest.raises(UnreadableBody):
        fingerprint(body, coding=b"gzip")


def test_decompression_bomb_is_refused() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    with pytest.raises(TooLarge):
        fingerprint(bomb, coding=b"gzip")
    twice = gzip.compress(bomb)
    with pytest.raises(TooLarge):
        fingerprint(twice, coding=b"gzip,gzip")


# --- forms --------------------------------------------------------------------------------------

FORM = b"application/x-www-form-urlencoded"


def parts(boundary: str, *fields: tuple[str, bytes]) -> tuple[bytes, bytes]:
    lines = []
    for name, value in fields:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
        lines.append(head.encode() + value + b"\r\n")
    body = b"".join(lines) + f"--{boundary}--\r\n".encode()
    return body, f"multipart/form-data; boundary={boundary}".encode()


def test_forms_are_compared_by_their_fields_in_order() -> None:
    assert fingerprint(b"a=1&b=%41", FORM) == fingerprint(b"a=1&b=A", FORM)
    assert fingerprint(b"a=1&a=2", FORM) != fingerprint(b"a=2&a=1", FORM)
    assert fingerprint(b"a=", FORM) != fingerprint(b"", FORM)


def test_multipart_forms_are_compared_by_their_parts_not_their_boundary() -> None:
    fields = (("a", b"1"), ("file", bytes(range(256))))
    assert fingerprint(*parts("one", *fields)) == fingerprint(*parts("two", *fields))
    assert fingerprint(*parts("one", *fields)) != fingerprint(*parts("one", *reversed(fields)))
    assert fingerprint(*parts("one", ("a", b"1"))) != fingerprint(*parts("one", ("a", b"2")))
    assert fingerprint(*parts("one", ("a", b"1"))) != fingerprint(*parts("one", ("b", b"1")))


def test_malformed_multipart_form_is_compared_byte_by_byte() -> None:
    body, kind = parts("one", ("a", b"1"))
    assert fingerprint(body[:-6], kind) != fingerprint(body, kind)
    assert fingerprint(body[:-6], kind) == fingerprint(body[:-6], kind)


# --- ignore= and only= --------------------------------------------------------------------------


def test_ignored_members_may_differ() -> None:
    rule = Rule(ignore=["sent_at", "meta.trace"])
    one = b'{"cents":5,"sent_at":"10:00","meta":{"trace":1,"shop":"x"}}'
    other = b'{"meta":{"shop":"x","trace":2},"cents":5,"sent_at":"10:01"}'
    assert fingerprint(one, rule=rule) == fingerprint(other, rule=rule)
    assert fingerprint(one, rule=rule) != fingerprint(one.replace(b'"x"', b'"y"'), rule=rule)
    assert fingerprint(one, rule=rule) == fingerprint(b'{"cents":5,"meta":{"shop":"x"}}', rule=rule)
    assert fingerprint(b"a=1&sent_at=2", FORM, rule=rule) == fingerprint(b"a=1", FORM, rule=rule)


PART = b'--b\r\nContent-Disposition: form-data; name="cents"\r\n\r\n%s\r\n--b--\r\n'


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (JSON, b'{"cents":1}', b'{"cents":2}'),  # the rule's name is misspelt
        (JSON, b'[{"amount":1}]', b'[{"amount":2}]'),
        (JSON, b'[["amount",1]]', b'{"amount":1}'),  # the form in which a selected member is stored
        (JSON, b'"1"', b'"2"'),
        (JSON, b"{amount", b"{amounts"),
        (b"application/merge-patch+json", b'{"to":{"name":"a"}}', b'{"to":{"name":"b"}}'),
        (FORM, b"cents=1", b"cents=2"),
        (b"multipart/form-data; boundary=b", PART % b"1", PART % b"2"),
        (b"text/plain", b"amount=1", b"amount=2"),
    ],
)
def test_body_without_any_member_of_only_is_compared_whole(
    kind: bytes, one: bytes, other: bytes
) -> None:
    rule = Rule(only=["amount", "to.account"])
    assert fingerprint(one, kind, rule=rule) != fingerprint(other, kind, rule=rule)
    assert fingerprint(one, kind, rule=rule) == fingerprint(one, kind, rule=rule)


def test_only_compares_the_named_members() -> None:
    rule = Rule(only=["cents", "to.account"])
    one = b'{"cents":5,"to":{"account":"a","name":"A"},"note":"x"}'
    assert fingerprint(one, rule=rule) == fingerprint(one.replace(b'"x"', b'"y"'), rule=rule)
    assert fingerprint(one, rule=rule) != fingerprint(one.replace(b"5", b"6"), rule=rule)
    missing, null = b'{"to":{"account":"a"}}', b'{"cents":null,"to":{"account":"a"}}'
    assert fingerprint(missing, rule=rule) != fingerprint(null, rule=rule)


def test_document_too_long_to_sort_is_compared_byte_by_byte() -> None:
    rows = {f"k{n}": "x" * 20 for n in range(CANONICAL_MAX_BYTES // 25)}
    one = json.dumps(rows).encode()
    other = json.dumps(dict(reversed(rows.items()))).encode()
    assert fingerprint(one) == fingerprint(one)
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.seeded
def test_arbitrary_request_does_not_crash(seed: int) -> None:
    dice = random.Random(seed)
    kinds = [
        JSON,
        FORM,
        b"multipart/form-data; boundary=x",
        b'multipart/form-data; boundary="',
        b"\xff;=",
    ]
    pieces = [
        b"{",
        b"}",
        b"[",
        b'"',
        b"a",
        b":",
        b",",
        b"1",
        b"\\u",
        b"--x",
        b"\r\n",
        b"%",
        b"\xff",
        b"&",
    ]
    for _ in range(20_000):
        body = b"".join(dice.choices(pieces, k=dice.randrange(25)))
        coding = dice.choice([b"", b"", b"gzip", b"deflate", b"x", b",,"])
        try:
            fingerprint(body, dice.choice(kinds), coding=coding, query=body[:8])
        except (UnreadableBody, TooLarge):
            assert coding


def test_deeply_nested_json_is_compared_byte_by_byte() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert fingerprint(deep) == fingerprint(deep)


# --- similar requests that differ ---------------------------------------------------------------


def part(*headers: bytes, body: bytes = b"QUJD") -> bytes:
    return b"--x\r\n" + b"\r\n".join(headers) + b"\r\n\r\n" + body + b"\r\n--x--\r\n"


NAMED = b'Content-Disposition: form-data; name="a"'
MULTIPART = b"multipart/form-data; boundary=x"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (part(NAMED), part(NAMED, b"Content-Transfer-Encoding: base64")),
        (part(NAMED + b"; filename*=utf-8''a.exe"), part(NAMED + b"; filename*=utf-8''b.txt")),
        (
            part(NAMED, b"Content-Type: text/plain; charset=a"),
            part(NAMED, b"Content-Type: text/plain"),
        ),
        (part(NAMED + b'; filename="C:\\x\\a.txt"'), part(NAMED + b'; filename="a.txt"')),
    ],
)
def test_every_header_of_a_multipart_part_is_compared(one: bytes, other: bytes) -> None:
    assert fingerprint(one, MULTIPART) != fingerprint(other, MULTIPART)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"text/plain; version=1:2", b"text/plain; version=1:3"),
        (b"text/plain; profile=http://a/1", b"text/plain; profile=http:/b/2"),
        (b"text/plain;\tcharset=utf-16", b"text/plain"),
        (b'text/plain; a="1;b=2"', b"text/plain; a=1; b=2"),
        (b"text/plain; a=1; a=2", b"text/plain; a=2"),
        (b"text/plain; a*=1", b"text/plain"),
        (b"multipart/mixed; boundary=a", b"multipart/mixed; boundary=b"),
    ],
)
def test_different_content_types_differ(one: bytes, other: bytes) -> None:
    assert fingerprint(b"x", one) != fingerprint(b"x", other)


def test_all_lines_of_a_repeated_header_are_compared() -> None:
    def twice(second: bytes) -> bytes:
        lines = ((b"content-type", b"text/plain"), (b"content-type", second))
        return fingerprint_bytes(Request("POST", b"/", b"", headers_by_name(lines), b"x"), Rule())

    assert twice(b"text/html") != twice(b"text/csv")


def test_parameter_name_is_compared_decoded() -> None:
    assert fingerprint(query=b"a=1&%61=2") != fingerprint(query=b"%61=2&a=1")
    assert fingerprint(query=b"b=3&a=1&%61=2") == fingerprint(query=b"a=1&b=3&%61=2")


def test_number_that_no_float_represents_is_compared_as_written() -> None:
    assert fingerprint(b"1e99999999999999999999") == fingerprint(b"1e99999999999999999999")
    assert fingerprint(b"1e99999999999999999999") != fingerprint(b"1e99999999999999999998")


def test_too_many_codings_or_gzip_members_are_refused() -> None:
    with pytest.raises(UnreadableBody):
        fingerprint(zlib.compress(b"") * 50_000, coding=b"deflate")
    with pytest.raises(UnreadableBody):
        fingerprint(gzip.compress(b"") * 50_000, coding=b"gzip")
    with pytest.raises(UnreadableBody):
        fingerprint(b"x", coding=b",".join([b"gzip"] * 300))


def test_body_too_long_to_compare_in_part_is_refused() -> None:
    body = json.dumps(["x" * 20] * (CANONICAL_MAX_BYTES // 20)).encode()
    with pytest.raises(TooLarge):
        fingerprint(body, rule=Rule(ignore=["a"]))
    with pytest.raises(TooLarge):
        fingerprint(body, rule=Rule(only=["a"]))
