"""Which responses are stored, in which form, and how they are encoded."""

from __future__ import annotations

import struct

import pytest

from oncekey.http.message import Response
from oncekey.http.response_codec import CODEC
from oncekey.http.stored_responses import (
    NEVER_STORED_STATUSES,
    is_stored,
    stored_headers,
    stored_response,
)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 301, 304, 400, 404, 409, 410, 422, 451])
def test_success_redirect_and_client_error_are_stored(status: int) -> None:
    assert is_stored(status, (), retry_safe=False)
    assert is_stored(status, (), retry_safe=True)


@pytest.mark.parametrize("status", sorted(NEVER_STORED_STATUSES))
def test_status_that_says_nothing_about_the_operation_is_not_stored(status: int) -> None:
    assert not is_stored(status, (), retry_safe=False)


def test_5xx_is_stored_unless_the_handler_is_retry_safe() -> None:
    for status in (500, 502, 503, 504):
        assert is_stored(status, (), retry_safe=False)
        assert not is_stored(status, (), retry_safe=True)
    assert not is_stored(503, ((b"retry-after", b"5"),), retry_safe=False)


HEADERS = (
    (b"content-type", b"text/plain"),
    (b"location", b"/x/1"),
    (b"etag", b'"1"'),
    (b"x-request-cost", b"3"),
    (b"set-cookie", b"a=1"),
    (b"set-cookie", b"b=2"),
    (b"content-length", b"3"),
    (b"date", b"today"),
    (b"connection", b"close, x-hop"),
    (b"x-hop", b"1"),
    (b"transfer-encoding", b"chunked"),
    (b"www-authenticate", b"Basic"),
    (b"access-control-allow-origin", b"*"),
    (b"x-ratelimit-left", b"1"),
    (b"link", b"<a>"),
    (b"link", b"<b>"),
)


def test_stored_headers_are_the_usual_ones_and_those_of_the_rule() -> None:
    assert stored_headers(HEADERS) == (
        (b"content-type", b"text/plain"),
        (b"location", b"/x/1"),
        (b"etag", b'"1"'),
        (b"link", b"<a>"),
        (b"link", b"<b>"),
    )
    named = {b"x-request-cost", b"set-cookie", b"x-hop", b"access-control-allow-origin", b"date"}
    more = stored_headers(HEADERS, named)
    assert {name for name, _ in more} - {name for name, _ in stored_headers(HEADERS)} == {
        b"x-request-cost"
    }


def test_body_over_the_limit_is_omitted() -> None:
    response = Response(200, HEADERS, b"x" * 11)
    assert stored_response(response, (), 11).body == b"x" * 11
    stored = stored_response(response, (), 10)
    assert (stored.body, stored.omitted, stored.status) == (b"", True, 200)


def test_codec_restores_a_response_byte_by_byte() -> None:
    response = Response(299, ((b"x", bytes(range(32, 256))), (b"x", b"")), bytes(range(256)) * 9)
    assert CODEC.load(CODEC.dump(response)) == response
    omitted = Response(200, (), b"", omitted=True)
    assert CODEC.load(CODEC.dump(omitted)) == omitted


def test_codec_refuses_truncated_bytes() -> None:
    whole = CODEC.dump(Response(200, ((b"content-type", b"text/plain"),)))
    for size in range(len(whole)):
        with pytest.raises((ValueError, struct.error)):
            CODEC.load(whole[:size])
