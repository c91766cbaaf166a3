"""What counts as the same request: as much as can be said for sure, and never more (I7)."""

from __future__ import annotations

import gzip
import json
import random
import zlib

import pytest

from oncekey.http.body_canonical import CANONICAL_MAX_BYTES, TooLarge, UnreadableBody
from oncekey.http.message import Request
from oncekey.http.request_fingerprint import fingerprint_bytes
from oncekey.http.rules import Rule

JSON = b"application/json"


def asked(
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
    return fingerprint_bytes(Request(method, path, query, tuple(headers), body), rule or Rule())


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
    (b'{"a":1,"a":2}', b'{"a":2}'),  # which of the two counts is anybody's guess
    (b'{"a":0.1}', b'{"a":0.1000000000000000055}'),  # the same float, another amount
    (b'{"a":9007199254740993}', b'{"a":9007199254740992}'),
    (b'{"a":NaN}', b'{"a":null}'),
    (b'{"a":1', b'{"a":1}'),
    (b"[1]", b"[1,]"),
    (b'{"a":true}', b'{"a":1}'),
    (b"null", b""),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_json_that_means_the_same_is_the_same(one: bytes, other: bytes) -> None:
    assert asked(one) == asked(other)
    assert asked(one, b"application/vnd.api+json") == asked(other, b"application/vnd.api+json")


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_json_that_differs_differs(one: bytes, other: bytes) -> None:
    assert asked(one) != asked(other)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_other_types_are_compared_byte_by_byte(one: bytes, other: bytes) -> None:
    assert asked(one, b"text/plain") != asked(other, b"text/plain")


def test_method_path_query_and_type_count() -> None:
    everything = [
        asked(b"1"),
        asked(b"1", method="PATCH"),
        asked(b"1", path=b"/charges/"),
        asked(b"1", path=b"/charge%73"),
        asked(b"1", query=b"a=1"),
        asked(b"1", query=b"a=2"),
        asked(b"1", query=b"a=1&a=2"),
        asked(b"1", query=b"a=2&a=1"),
        asked(b"1", kind=b"text/plain"),
        asked(b"1", kind=b""),
        asked(b"1", kind=b"application/json;profile=x"),
    ]
    assert len(set(everything)) == len(everything)


def test_the_order_of_parameters_and_the_spelling_of_a_type_do_not_count() -> None:
    assert asked(query=b"a=1&b=2") == asked(query=b"b=2&a=1")
    assert asked(b"{}", b"application/json") == asked(b"{}", b"Application/JSON; charset=UTF-8")


def test_no_part_can_pass_for_another() -> None:
    assert asked(b"", b"text/plain", path=b"/a", query=b"b") != asked(
        b"", b"text/plain", path=b"/ab", query=b""
    )


# --- codings ------------------------------------------------------------------------------------


def test_a_compressed_body_is_what_it_holds() -> None:
    body = b'{"a":1,"b":2}'
    plain = asked(body)
    assert asked(gzip.compress(body, mtime=1), coding=b"gzip") == plain
    assert asked(gzip.compress(body, 1, mtime=2), coding=b"GZIP") == plain
    assert asked(zlib.compress(body), coding=b"deflate") == plain
    assert asked(gzip.compress(zlib.compress(body)), coding=b"deflate, gzip") == plain
    assert asked(gzip.compress(body[:5]) + gzip.compress(body[5:]), coding=b"gzip") == plain
    assert asked(body, coding=b"identity") == plain
    assert asked(body, coding=b"br") != plain, "who knows what is in it"


@pytest.mark.parametrize("body", [b"", b"no gzip", gzip.compress(b"x" * 100, mtime=1)[:-4]])
def test_a_coding_that_lies_is_refused(body: bytes) -> None:
    if not body:
        assert asked(body, coding=b"gzip") == asked(b"")
        return
    with pytest.raises(UnreadableBody):
        asked(body, coding=b"gzip")


def test_a_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    with pytest.raises(TooLarge):
        asked(bomb, coding=b"gzip")
    twice = gzip.compress(bomb)
    with pytest.raises(TooLarge):
        asked(twice, coding=b"gzip,gzip")


# --- forms --------------------------------------------------------------------------------------

FORM = b"application/x-www-form-urlencoded"


def parts(boundary: str, *fields: tuple[str, bytes]) -> tuple[bytes, bytes]:
    lines = []
    for name, value in fields:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
        lines.append(head.encode() + value + b"\r\n")
    body = b"".join(lines) + f"--{boundary}--\r\n".encode()
    return body, f"multipart/form-data; boundary={boundary}".encode()


def test_forms_are_their_fields_in_order() -> None:
    assert asked(b"a=1&b=%41", FORM) == asked(b"a=1&b=A", FORM)
    assert asked(b"a=1&a=2", FORM) != asked(b"a=2&a=1", FORM)
    assert asked(b"a=", FORM) != asked(b"", FORM)


def test_multipart_forms_are_their_parts_whatever_the_boundary() -> None:
    fields = (("a", b"1"), ("file", bytes(range(256))))
    assert asked(*parts("one", *fields)) == asked(*parts("two", *fields))
    assert asked(*parts("one", *fields)) != asked(*parts("one", *reversed(fields)))
    assert asked(*parts("one", ("a", b"1"))) != asked(*parts("one", ("a", b"2")))
    assert asked(*parts("one", ("a", b"1"))) != asked(*parts("one", ("b", b"1")))


def test_a_broken_multipart_form_is_compared_byte_by_byte() -> None:
    body, kind = parts("one", ("a", b"1"))
    assert asked(body[:-6], kind) != asked(body, kind)
    assert asked(body[:-6], kind) == asked(body[:-6], kind)


# --- what a route leaves out --------------------------------------------------------------------


def test_ignored_members_may_differ() -> None:
    rule = Rule(ignore=["sent_at", "meta.trace"])
    one = b'{"cents":5,"sent_at":"10:00","meta":{"trace":1,"shop":"x"}}'
    other = b'{"meta":{"shop":"x","trace":2},"cents":5,"sent_at":"10:01"}'
    assert asked(one, rule=rule) == asked(other, rule=rule)
    assert asked(one, rule=rule) != asked(one.replace(b'"x"', b'"y"'), rule=rule)
    assert asked(one, rule=rule) == asked(b'{"cents":5,"meta":{"shop":"x"}}', rule=rule)
    assert asked(b"a=1&sent_at=2", FORM, rule=rule) == asked(b"a=1", FORM, rule=rule)


PART = b'--b\r\nContent-Disposition: form-data; name="cents"\r\n\r\n%s\r\n--b--\r\n'


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (JSON, b'{"cents":1}', b'{"cents":2}'),  # the rule's name is misspelt
        (JSON, b'[{"amount":1}]', b'[{"amount":2}]'),
        (JSON, b'[["amount",1]]', b'{"amount":1}'),  # as a chosen member is written
        (JSON, b'"1"', b'"2"'),
        (JSON, b"{amount", b"{amounts"),
        (b"application/merge-patch+json", b'{"to":{"name":"a"}}', b'{"to":{"name":"b"}}'),
        (FORM, b"cents=1", b"cents=2"),
        (b"multipart/form-data; boundary=b", PART % b"1", PART % b"2"),
        (b"text/plain", b"amount=1", b"amount=2"),
    ],
)
def test_bodies_without_any_chosen_member_are_compared_whole(
    kind: bytes, one: bytes, other: bytes
) -> None:
    rule = Rule(only=["amount", "to.account"])
    assert asked(one, kind, rule=rule) != asked(other, kind, rule=rule)
    assert asked(one, kind, rule=rule) == asked(one, kind, rule=rule)


def test_only_chosen_members_count() -> None:
    rule = Rule(only=["cents", "to.account"])
    one = b'{"cents":5,"to":{"account":"a","name":"A"},"note":"x"}'
    assert asked(one, rule=rule) == asked(one.replace(b'"x"', b'"y"'), rule=rule)
    assert asked(one, rule=rule) != asked(one.replace(b"5", b"6"), rule=rule)
    missing, null = b'{"to":{"account":"a"}}', b'{"cents":null,"to":{"account":"a"}}'
    assert asked(missing, rule=rule) != asked(null, rule=rule)


def test_a_document_too_long_to_put_in_order_is_compared_as_it_is() -> None:
    rows = {f"k{n}": "x" * 20 for n in range(CANONICAL_MAX_BYTES // 25)}
    one = json.dumps(rows).encode()
    other = json.dumps(dict(reversed(rows.items()))).encode()
    assert asked(one) == asked(one)
    assert asked(one) != asked(other)


def test_nothing_a_stranger_sends_crashes_it() -> None:
    dice = random.Random(9)
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
            asked(body, dice.choice(kinds), coding=coding, query=body[:8])
        except (UnreadableBody, TooLarge):
            assert coding


def test_deep_nesting_is_no_way_to_stop_us() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert asked(deep) == asked(deep)


# --- what looks alike and is not ----------------------------------------------------------------


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
def test_every_header_of_a_part_counts(one: bytes, other: bytes) -> None:
    assert asked(one, MULTIPART) != asked(other, MULTIPART)


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
def test_content_types_that_differ_differ(one: bytes, other: bytes) -> None:
    assert asked(b"x", one) != asked(b"x", other)


def test_all_lines_of_a_header_count() -> None:
    def twice(second: bytes) -> bytes:
        lines = ((b"content-type", b"text/plain"), (b"content-type", second))
        return fingerprint_bytes(Request("POST", b"/", b"", lines, b"x"), Rule())

    assert twice(b"text/html") != twice(b"text/csv")


def test_one_parameter_written_in_two_ways_is_one_parameter() -> None:
    assert asked(query=b"a=1&%61=2") != asked(query=b"%61=2&a=1")
    assert asked(query=b"b=3&a=1&%61=2") == asked(query=b"a=1&b=3&%61=2")


def test_numbers_no_float_can_hold_are_compared_as_they_are() -> None:
    assert asked(b"1e99999999999999999999") == asked(b"1e99999999999999999999")
    assert asked(b"1e99999999999999999999") != asked(b"1e99999999999999999998")


def test_many_small_parts_are_no_way_to_stop_us() -> None:
    with pytest.raises(UnreadableBody):
        asked(zlib.compress(b"") * 50_000, coding=b"deflate")
    with pytest.raises(UnreadableBody):
        asked(gzip.compress(b"") * 50_000, coding=b"gzip")
    with pytest.raises(UnreadableBody):
        asked(b"x", coding=b",".join([b"gzip"] * 300))


def test_what_is_compared_in_part_must_not_be_too_long_to_be() -> None:
    body = json.dumps(["x" * 20] * (CANONICAL_MAX_BYTES // 20)).encode()
    with pytest.raises(TooLarge):
        asked(body, rule=Rule(ignore=["a"]))
    with pytest.raises(TooLarge):
        asked(body, rule=Rule(only=["a"]))
