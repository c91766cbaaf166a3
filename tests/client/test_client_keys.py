"""Keys that the caller gives, how keys are written, what identifies a request, and progress."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest
from tests.client.clients import HttpxClient, open_client
from tests.client.scripted_server import DropConnection, Respond, scripted_server

from oncekey import InvalidKey
from oncekey.client import IdempotentTransport, NotSent, Progress, RetriesExhausted, Retry
from oncekey.client.request_identity import (
    RequestIdentity,
    key_from_header,
    key_header_value,
    tag_of,
)

# --- keys that the caller gives -------------------------------------------------------------------


@pytest.mark.parametrize("value", ['"order-17"', "order-17", '"order-17";v=1'])
def test_a_key_in_the_callers_header_is_sent_as_it_is(client_name: str, value: str) -> None:
    with scripted_server(DropConnection(), Respond()) as server, open_client(client_name) as client:
        got = client.post(server.url, headers={"Idempotency-Key": value})
    assert server.keys == [value] * 2
    assert got.delivery is not None
    assert got.delivery.key == "order-17"


def test_a_new_key_is_not_safe_if_the_caller_gave_the_key(client_name: str) -> None:
    """The key may have been sent before, although nothing was sent this time."""
    with scripted_server() as server:
        url = server.url
    with (
        open_client(client_name, retry=Retry(attempts=1)) as client,
        pytest.raises(RetriesExhausted) as caught,
    ):
        client.post(url, headers={"Idempotency-Key": "order-17"})
    assert not caught.value.safe_new_key
    assert caught.value.key == "order-17"


def test_an_empty_key_header_is_refused(client_name: str) -> None:
    with (
        scripted_server() as server,
        open_client(client_name) as client,
        pytest.raises(InvalidKey, match="without a value"),
    ):
        client.post(server.url, headers={"Idempotency-Key": ""})
    assert server.received == []


def test_two_key_headers_are_refused() -> None:
    with scripted_server() as server, open_client("httpx") as client:
        assert isinstance(client, HttpxClient)
        with pytest.raises(InvalidKey, match="2 times"):
            client.httpx_client.post(
                server.url, headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
            )
    assert server.received == []


@pytest.mark.parametrize("client_name", ["httpx", "httpx-async"])
def test_a_key_can_be_given_with_one_request(client_name: str) -> None:
    with scripted_server(DropConnection(), Respond()) as server, open_client(client_name) as client:
        client.post(server.url, given={"key": "order-17"})
    assert server.keys == ['"order-17"'] * 2


@pytest.mark.parametrize(
    "given",
    [{"keys": "a"}, {"key": "a", "intent": "b"}, {}, "order-17", ["key"]],
)
def test_only_a_key_or_an_intent_can_be_given_with_a_request(given: Any) -> None:
    with (
        scripted_server() as server,
        open_client("httpx") as client,
        pytest.raises(NotSent, match="Nothing was sent"),
    ):
        client.post(server.url, given=given)
    assert server.received == []


@pytest.mark.parametrize("key", ["", "a b", "ü", "x" * 256, 17, None])
def test_a_given_key_that_cannot_be_a_header_is_refused(key: Any) -> None:
    with (
        scripted_server() as server,
        open_client("httpx") as client,
        pytest.raises(InvalidKey, match="nothing was sent"),
    ):
        client.post(server.url, given={"key": key})
    assert server.received == []


def test_an_intent_needs_a_journal(client_name: str) -> None:
    with (
        scripted_server() as server,
        open_client(client_name) as client,
        pytest.raises(NotSent, match="journal="),
    ):
        client.post(server.url, given={"intent": "order-17"})
    assert server.received == []


def test_a_request_object_sent_again_has_the_same_key() -> None:
    with scripted_server(Respond(), Respond()) as server, open_client("httpx") as client:
        assert isinstance(client, HttpxClient)
        request = client.httpx_client.build_request("POST", server.url)
        client.httpx_client.send(request)
        client.httpx_client.send(request)
    assert len(set(server.keys)) == 1


@pytest.mark.parametrize("given", [{"intent": "order-17"}, {"key": "order-17"}])
def test_a_key_or_intent_for_a_method_without_a_key_is_refused(
    client_name: str, given: dict[str, str]
) -> None:
    with scripted_server(Respond()) as server, open_client(client_name) as client:
        if client_name == "requests" and "key" in given:
            client.send(
                "GET", server.url, given=given
            )  # to the adapter this is a header like any other
            return
        with pytest.raises(NotSent, match=r"a GET gets no key.*Nothing was sent"):
            client.send("GET", server.url, given=given)
    assert server.received == []


# --- how a key is written -------------------------------------------------------------------------


def test_quoted_false_sends_a_bare_key(client_name: str) -> None:
    with scripted_server(Respond()) as server, open_client(client_name, quoted=False) as client:
        got = client.post(server.url)
    assert got.delivery is not None
    assert server.keys == [got.delivery.key]


def test_header_and_namespace_are_options(client_name: str) -> None:
    with (
        scripted_server(DropConnection(), Respond()) as server,
        open_client(client_name, header="X-Request-Id", namespace="v2", quoted=False) as client,
    ):
        client.post(server.url)
    assert server.keys == [None, None]
    first, again = (seen.header_values("X-Request-Id") for seen in server.received)
    assert first == again
    assert first[0].startswith("v2:")


@pytest.mark.parametrize("key", ["plain", 'with-"quotes"', "back\\slash", "~" * 255])
def test_a_key_header_can_be_read_back(key: str) -> None:
    assert key_from_header([key_header_value(key, quoted=True)], "Idempotency-Key") == key


@pytest.mark.parametrize("value", ['"', '"a', '"a" b', '""', '"é"'])
def test_a_key_header_that_is_no_structured_string_is_the_key_itself(value: str) -> None:
    assert key_from_header([value], "Idempotency-Key") == value


# --- what identifies a request --------------------------------------------------------------------

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
def test_the_digest_depends_on_method_url_and_body(other: RequestIdentity) -> None:
    assert other.digest != CHARGE.digest


def test_the_digest_of_a_missing_path_is_that_of_a_slash() -> None:
    assert CHARGE._replace(url="http://shop").digest == CHARGE._replace(url="http://shop/").digest


def test_the_digest_ignores_the_fragment() -> None:
    assert CHARGE._replace(url="http://shop/pay?a=1#top").digest == CHARGE.digest


def test_the_digest_ignores_the_boundary_of_a_form() -> None:
    def form(boundary: str, text: bytes) -> RequestIdentity:
        raw = boundary.strip('"').encode()
        body = b"--%s\r\n\r\n%s\r\n--%s--\r\n" % (raw, text, raw)
        return RequestIdentity("POST", "http://shop/", FORM.format(boundary), body)

    assert form("abc", b"x").digest == form('"d e"', b"x").digest
    assert form("abc", b"x").digest != form("abc", b"y").digest


def test_tag_and_display_url_show_no_secret() -> None:
    assert len(tag_of("order-17")) == 12
    assert tag_of("order-17") == tag_of("order-17") != tag_of("order-18")
    assert CHARGE._replace(url="http://jo:pw@shop:81/pay?a=1#t").display_url == "http://shop:81/pay"


# --- progress -------------------------------------------------------------------------------------


def test_on_progress_gets_every_event_in_order(client_name: str) -> None:
    events: list[Progress] = []
    with (
        scripted_server(
            DropConnection(), Respond(503, b"", {"Retry-After": "3"}), Respond(201)
        ) as server,
        open_client(client_name, on_progress=events.append, chances=[0.5, 0.5]) as client,
    ):
        got = client.post(server.url + "/pay?x=1")
    assert [(p.kind.value, p.attempt, p.status, p.seconds) for p in events] == [
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
    assert {(p.method, p.url, p.tag) for p in events} == {
        ("POST", server.url + "/pay", tag_of(got.delivery.key))
    }
    assert events[5].why == "status 503"


def test_an_error_in_on_progress_is_logged_and_ignored(
    client_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def hook(progress: Progress) -> None:
        raise ValueError("no")

    with (
        caplog.at_level(logging.ERROR, "oncekey"),
        scripted_server(DropConnection(), Respond()) as server,
        open_client(client_name, on_progress=hook) as client,
    ):
        got = client.post(server.url)
    assert got.status == 200
    assert {record.name for record in caplog.records} == {"oncekey"}
    assert len(caplog.records) == 5
    assert got.delivery is not None
    assert got.delivery.key not in caplog.text


def test_a_keyboard_interrupt_in_on_progress_is_raised() -> None:
    def hook(progress: Progress) -> None:
        raise KeyboardInterrupt

    transport = IdempotentTransport(
        httpx.MockTransport(lambda request: httpx.Response(200)), on_progress=hook
    )
    with httpx.Client(transport=transport) as client, pytest.raises(KeyboardInterrupt):
        client.post("http://shop/")
