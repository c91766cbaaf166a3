"""Which key goes with a request, how it is written, and what is told on the way."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest
from tests.client.callers import HttpxCaller, calling
from tests.client.scripted import Answer, Drop, serving

from oncekey import InvalidKey
from oncekey.client import IdempotentTransport, NotSent, Progress, RetriesExhausted, Retry
from oncekey.client.request_identity import (
    RequestIdentity,
    key_from_header,
    key_header_value,
    tag_of,
)

# --- the callers own ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ['"order-17"', "order-17", '"order-17";v=1'])
def test_the_callers_header_is_kept_as_it_is(name: str, value: str) -> None:
    with serving(Drop(), Answer()) as server, calling(name) as caller:
        got = caller.post(server.url, headers={"Idempotency-Key": value})
    assert server.keys == [value] * 2
    assert got.delivery is not None
    assert got.delivery.key == "order-17"


def test_a_key_of_the_callers_may_have_been_sent_before(name: str) -> None:
    """So a new one is not safe, although nothing was sent this time."""
    with serving() as server:
        url = server.url
    with (
        calling(name, retry=Retry(attempts=1)) as caller,
        pytest.raises(RetriesExhausted) as caught,
    ):
        caller.post(url, headers={"Idempotency-Key": "order-17"})
    assert not caught.value.safe_new_key
    assert caught.value.key == "order-17"


def test_an_empty_header_is_refused_before_anything_is_sent(name: str) -> None:
    with (
        serving() as server,
        calling(name) as caller,
        pytest.raises(InvalidKey, match="without a value"),
    ):
        caller.post(server.url, headers={"Idempotency-Key": ""})
    assert server.seen == []


def test_two_headers_are_refused_before_anything_is_sent() -> None:
    with serving() as server, calling("httpx") as caller:
        assert isinstance(caller, HttpxCaller)
        with pytest.raises(InvalidKey, match="2 times"):
            caller.client.post(
                server.url, headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
            )
    assert server.seen == []


@pytest.mark.parametrize("name", ["httpx", "httpx-async"])
def test_a_key_can_go_along_with_one_request(name: str) -> None:
    with serving(Drop(), Answer()) as server, calling(name) as caller:
        caller.post(server.url, given={"key": "order-17"})
    assert server.keys == ['"order-17"'] * 2


@pytest.mark.parametrize(
    "given",
    [{"keys": "a"}, {"key": "a", "intent": "b"}, {}, "order-17", ["key"]],
)
def test_what_goes_along_must_be_a_key_or_an_intent(given: Any) -> None:
    with (
        serving() as server,
        calling("httpx") as caller,
        pytest.raises(NotSent, match="Nothing was sent"),
    ):
        caller.post(server.url, given=given)
    assert server.seen == []


@pytest.mark.parametrize("key", ["", "a b", "ü", "x" * 256, 17, None])
def test_a_key_that_cannot_travel_is_refused(key: Any) -> None:
    with (
        serving() as server,
        calling("httpx") as caller,
        pytest.raises(InvalidKey, match="nothing was sent"),
    ):
        caller.post(server.url, given={"key": key})
    assert server.seen == []


def test_an_intent_needs_a_journal(name: str) -> None:
    with (
        serving() as server,
        calling(name) as caller,
        pytest.raises(NotSent, match="journal="),
    ):
        caller.post(server.url, given={"intent": "order-17"})
    assert server.seen == []


def test_sending_the_same_request_object_again_is_a_retry() -> None:
    with serving(Answer(), Answer()) as server, calling("httpx") as caller:
        assert isinstance(caller, HttpxCaller)
        request = caller.client.build_request("POST", server.url)
        caller.client.send(request)
        caller.client.send(request)
    assert len(set(server.keys)) == 1


# --- how it is written ----------------------------------------------------------------------------


def test_a_key_is_quoted_unless_told_otherwise(name: str) -> None:
    with serving(Answer()) as server, calling(name, quoted=False) as caller:
        got = caller.post(server.url)
    assert got.delivery is not None
    assert server.keys == [got.delivery.key]


def test_another_header_and_a_namespace(name: str) -> None:
    with (
        serving(Drop(), Answer()) as server,
        calling(name, header="X-Request-Id", namespace="v2", quoted=False) as caller,
    ):
        caller.post(server.url)
    assert server.keys == [None, None]
    first, again = (seen.all("X-Request-Id") for seen in server.seen)
    assert first == again
    assert first[0].startswith("v2:")


@pytest.mark.parametrize("key", ["plain", 'with-"quotes"', "back\\slash", "~" * 255])
def test_what_is_written_can_be_read_again(key: str) -> None:
    assert key_from_header([key_header_value(key, quoted=True)], "Idempotency-Key") == key


@pytest.mark.parametrize("value", ['"', '"a', '"a" b', '""', '"é"'])
def test_a_header_that_is_no_string_is_the_key_itself(value: str) -> None:
    assert key_from_header([value], "Idempotency-Key") == value


# --- what is the same request ---------------------------------------------------------------------

CHARGE = RequestIdentity("POST", "http://shop/pay?a=1", "application/json", b"{}")
FORM = "multipart/form-data; boundary={}"


@pytest.mark.parametrize(
    "other",
    [
        CHARGE._replace(method="PATCH"),
        CHARGE._replace(url="http://shop/pay?a=2"),
        CHARGE._replace(url="http://shop/pay"),
        CHARGE._replace(body=b"{ }"),
        RequestIdentity("POST", "http://shop/pay?a=1{}", "", b""),
        RequestIdentity("POSThttp://shop/pay?a=1", "", "", b"{}"),
    ],
)
def test_requests_differ_by_method_url_and_body(other: RequestIdentity) -> None:
    assert other.digest != CHARGE.digest


def test_a_missing_path_is_sent_as_a_slash_by_all() -> None:
    assert CHARGE._replace(url="http://shop").digest == CHARGE._replace(url="http://shop/").digest


def test_a_fragment_is_not_sent_and_does_not_count() -> None:
    assert CHARGE._replace(url="http://shop/pay?a=1#top").digest == CHARGE.digest


def test_a_forms_boundary_does_not_count() -> None:
    def form(boundary: str, text: bytes) -> RequestIdentity:
        raw = boundary.strip('"').encode()
        body = b"--%s\r\n\r\n%s\r\n--%s--\r\n" % (raw, text, raw)
        return RequestIdentity("POST", "http://shop/", FORM.format(boundary), body)

    assert form("abc", b"x").digest == form('"d e"', b"x").digest
    assert form("abc", b"x").digest != form("abc", b"y").digest


def test_a_tag_is_short_and_not_the_key() -> None:
    assert len(tag_of("order-17")) == 12
    assert tag_of("order-17") == tag_of("order-17") != tag_of("order-18")
    assert CHARGE._replace(url="http://jo:pw@shop:81/pay?a=1#t").display_url == "http://shop:81/pay"


# --- progress -------------------------------------------------------------------------------------


def test_progress_is_told_as_it_happens(name: str) -> None:
    told: list[Progress] = []
    with (
        serving(Drop(), Answer(503, b"", {"Retry-After": "3"}), Answer(201)) as server,
        calling(name, on_progress=told.append, chances=[0.5, 0.5]) as caller,
    ):
        got = caller.post(server.url + "/pay?x=1")
    assert [(p.kind.value, p.attempt, p.status, p.seconds) for p in told] == [
        ("sending", 1, None, 0.0),
        ("failed", 1, None, 0.0),
        ("waiting", 1, None, 0.05),
        ("sending", 2, None, 0.0),
        ("answered", 2, 503, 0.0),
        ("waiting", 2, None, 3.1),
        ("sending", 3, None, 0.0),
        ("answered", 3, 201, 0.0),
    ]
    assert got.delivery is not None
    assert {(p.method, p.url, p.tag) for p in told} == {
        ("POST", server.url + "/pay", tag_of(got.delivery.key))
    }
    assert told[5].why == "status 503"


def test_a_hook_that_raises_breaks_nothing(name: str, caplog: pytest.LogCaptureFixture) -> None:
    def hook(progress: Progress) -> None:
        raise ValueError("no")

    with (
        caplog.at_level(logging.ERROR, "oncekey"),
        serving(Drop(), Answer()) as server,
        calling(name, on_progress=hook) as caller,
    ):
        got = caller.post(server.url)
    assert got.status == 200
    assert {record.name for record in caplog.records} == {"oncekey"}
    assert len(caplog.records) == 5
    assert got.delivery is not None
    assert got.delivery.key not in caplog.text


def test_what_a_hook_may_not_swallow_goes_through() -> None:
    def hook(progress: Progress) -> None:
        raise KeyboardInterrupt

    transport = IdempotentTransport(
        httpx.MockTransport(lambda request: httpx.Response(200)), on_progress=hook
    )
    with httpx.Client(transport=transport) as client, pytest.raises(KeyboardInterrupt):
        client.post("http://shop/")
