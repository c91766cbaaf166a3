"""Redirects, authentication and replays: which request has the key, which response the delivery."""

from __future__ import annotations

import io
from typing import Any

import httpx
import pytest
import requests
from tests.client.clients import AnyClient, AsyncHttpxClient, RequestsClient, open_client
from tests.client.scripted_server import DropConnection, Respond, scripted_server

from oncekey.client import Journal

SENT = b"first, second"
KEY = {"Idempotency-Key": "order-17"}
TO_A_GET = [("POST", 301), ("POST", 302), ("POST", 303), ("PATCH", 302), ("PATCH", 303)]


def follow(client: AnyClient, elsewhere: str = "") -> None:
    """Follow redirects. The library's own transport is used for `elsewhere`, as if the client were
    mounted for one host only."""
    if isinstance(client, RequestsClient):
        if elsewhere:
            client.session.mount(elsewhere, requests.adapters.HTTPAdapter())
        return
    client.httpx_client.follow_redirects = True
    if elsewhere:
        made = (
            httpx.AsyncHTTPTransport
            if isinstance(client, AsyncHttpxClient)
            else httpx.HTTPTransport
        )
        mounts: Any = dict(client.httpx_client._mounts)
        mounts[httpx._utils.URLPattern(elsewhere)] = made(verify=False)
        client.httpx_client._mounts = mounts


@pytest.mark.parametrize(("method", "status"), TO_A_GET)
@pytest.mark.parametrize("headers", [{}, KEY], ids=["our own key", "the caller's key"])
def test_the_get_of_a_redirect_goes_without_the_key_and_has_the_delivery(
    client_name: str, method: str, status: int, headers: dict[str, str]
) -> None:
    away = Respond(status, b"", {"Location": "/a", "X-Idempotency-Replayed": "true"})
    further = Respond(302, b"", {"Location": "/b"})
    with scripted_server(away, further, Respond()) as server, open_client(client_name) as client:
        follow(client)
        got = client.send(method, server.url, headers=headers)
    assert [seen.method for seen in server.received] == [method, "GET", "GET"]
    assert [key is None for key in server.keys] == [False, True, True]
    assert got.delivery is not None
    assert (got.delivery.attempts, got.delivery.replayed) == (1, True)
    assert got.delivery.conclusive
    assert got.delivery.key == (server.keys[0] or "").strip('"')


def test_the_get_of_a_redirect_to_another_host_goes_without_the_key(client_name: str) -> None:
    with scripted_server(Respond()) as other:
        url = other.url.replace("127.0.0.1", "localhost")
        with (
            scripted_server(Respond(303, b"", {"Location": url})) as server,
            open_client(client_name) as client,
        ):
            follow(client, elsewhere="all://localhost" if client_name != "requests" else url)
            got = client.post(server.url)
    assert other.keys == [None]
    assert got.delivery is not None


@pytest.mark.parametrize("status", [307, 308])
def test_a_307_or_308_redirect_to_another_host_keeps_the_key(client_name: str, status: int) -> None:
    """The other host carries it out, so a retry must reach it with the same key."""
    with scripted_server(Respond(201)) as other:
        with (
            scripted_server(Respond(status, b"", {"Location": other.url})) as server,
            open_client(client_name) as client,
        ):
            follow(client)
            got = client.post(server.url)
        assert other.keys == server.keys != [None]
    assert got.delivery is not None
    assert got.delivery.conclusive


def test_a_redirected_request_object_sent_again_has_its_key(client_name: str) -> None:
    away = Respond(303, b"", {"Location": "/a"})
    with (
        scripted_server(away, Respond(), away, Respond()) as server,
        open_client(client_name) as client,
    ):
        follow(client)
        if isinstance(client, RequestsClient):
            prepared = client.session.prepare_request(requests.Request("POST", server.url))
            for _ in range(2):
                client.session.send(prepared)
        else:
            request = client.httpx_client.build_request("POST", server.url)
            for _ in range(2):
                if isinstance(client, AsyncHttpxClient):
                    client.runner.run(client.httpx_client.send(request))
                else:
                    client.httpx_client.send(request)
    first, _, again, _ = server.keys
    assert first is not None
    assert first == again


def test_the_get_of_a_redirect_goes_without_the_intent(client_name: str, journal: Journal) -> None:
    """httpx copies the extensions of a request to the one that a redirect makes."""
    away = Respond(303, b"", {"Location": "/receipt"})
    with (
        scripted_server(away, Respond()) as server,
        open_client(client_name, journal=journal) as client,
    ):
        if not isinstance(client, RequestsClient):
            client.httpx_client.follow_redirects = True
        assert client.post(server.url, given={"intent": "order-17"}).status == 200
    assert [seen.method for seen in server.received] == ["POST", "GET"]
    assert [seen.header_values("Oncekey-Intent") for seen in server.received] == [[], []]


def test_a_307_redirect_keeps_key_and_body(client_name: str) -> None:
    away = Respond(307, b"", {"Location": "/there"})
    with (
        scripted_server(away, DropConnection(), Respond()) as server,
        open_client(client_name) as client,
    ):
        if isinstance(client, RequestsClient):
            got = client.session.post(server.url, data=io.BytesIO(SENT))
            assert got.status_code == 200
        else:
            client.httpx_client.follow_redirects = True
            assert client.post(server.url, body=SENT).status == 200
    assert [seen.target for seen in server.received] == ["/", "/there", "/there"]
    assert [seen.body for seen in server.received] == [SENT] * 3
    assert len(set(server.keys)) == 1


def test_an_authentication_challenge_keeps_the_key(client_name: str) -> None:
    challenge = {"WWW-Authenticate": 'Digest realm="shop", nonce="abc", qop="auth"'}
    with (
        scripted_server(Respond(401, b"", challenge), Respond()) as server,
        open_client(client_name) as client,
    ):
        if isinstance(client, RequestsClient):
            client.session.auth = requests.auth.HTTPDigestAuth("jo", "pw")
        else:
            client.httpx_client.auth = httpx.DigestAuth("jo", "pw")
        assert client.post(server.url).status == 200
    assert len(set(server.keys)) == 1
    assert [bool(seen.header_values("Authorization")) for seen in server.received] == [False, True]


def test_cookies_of_a_response_reach_the_session(client_name: str) -> None:
    with (
        scripted_server(Respond(headers={"Set-Cookie": "a=1"})) as server,
        open_client(client_name) as client,
    ):
        client.post(server.url)
        if isinstance(client, RequestsClient):
            assert client.session.cookies["a"] == "1"
        else:
            assert client.httpx_client.cookies["a"] == "1"


# --- replays --------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [409, 425, 429, 500, 502, 503, 504])
def test_a_replayed_failure_is_not_retried(client_name: str, status: int) -> None:
    stored = Respond(status, b"stored", {"Retry-After": "2", "X-Idempotency-Replayed": "true"})
    with scripted_server(stored) as server, open_client(client_name) as client:
        got = client.post(server.url)
    assert (got.status, got.content, client.clock.slept) == (status, b"stored", [])
    assert got.delivery is not None
    assert (got.delivery.attempts, got.delivery.replayed, got.delivery.conclusive) == (
        1,
        True,
        True,
    )


def test_replay_header_names_another_header_for_replays(client_name: str) -> None:
    stored = Respond(503, b"stored", {"X-Shop-Replay": "true"})
    with (
        scripted_server(stored) as server,
        open_client(client_name, replay_header="x-shop-replay") as client,
    ):
        got = client.post(server.url)
    assert got.delivery is not None
    assert (got.status, got.delivery.attempts, got.delivery.replayed) == (503, 1, True)


def test_a_replayed_failure_keeps_its_journal_entry(client_name: str, journal: Journal) -> None:
    """A failure does not tell whether it had an effect, so the request must keep its key."""
    stored = Respond(500, b"", {"X-Idempotency-Replayed": "true"})
    with (
        scripted_server(stored, stored) as server,
        open_client(client_name, journal=journal) as client,
    ):
        client.post(server.url, given={"intent": "order-17"})
        client.post(server.url, given={"intent": "order-17"})
    assert len(set(server.keys)) == 1
