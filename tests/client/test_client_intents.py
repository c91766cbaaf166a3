"""Intents: which key a request with an intent gets, and which request may have the intent."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
from requests.auth import HTTPDigestAuth
from tests.client.clients import AnyClient, AsyncHttpxClient, RequestsClient, open_client
from tests.client.scripted_server import DropConnection, Hang, Respond, scripted_server
from tests.client.test_client_connection_failures import closed_port

from oncekey import InFlight, InvalidKey, Mismatch
from oncekey.client import Journal, NotSent, RetriesExhausted, Retry, delivery_of

ONCE = Retry(attempts=1)
ORDER = {"intent": "order-17"}
AWAY = Respond(307, b"", {"Location": "/there"})
CHALLENGE = Respond(
    401, b"", {"WWW-Authenticate": 'Digest realm="r", nonce="abc", qop="auth", algorithm=MD5'}
)


def prepared(client: AnyClient, url: str, given: dict[str, str] | None = ORDER) -> Any:
    """A request object of the library, to be sent more than once."""
    if isinstance(client, RequestsClient):
        headers = {"Oncekey-Intent": given["intent"]} if given else {}
        return client.session.prepare_request(
            requests.Request("POST", url, data=b"{}", headers=headers)
        )
    extensions = {"oncekey": given} if given else {}
    return client.httpx_client.build_request("POST", url, content=b"{}", extensions=extensions)


def send(client: AnyClient, request: Any) -> int:
    if isinstance(client, RequestsClient):
        return client.session.send(request).status_code
    if isinstance(client, AsyncHttpxClient):
        return client.runner.run(client.httpx_client.send(request)).status_code
    return client.httpx_client.send(request).status_code


# --- redirects, challenges and request objects ----------------------------------------------------


@pytest.mark.parametrize("how", ["redirect", "challenge"])
def test_an_intent_carried_out_after_a_redirect_or_challenge_keeps_its_key(
    client_name: str, journal: Journal, how: str
) -> None:
    first = AWAY if how == "redirect" else CHALLENGE
    with scripted_server(first, Respond(201), first, Respond(201)) as server:
        for _ in range(2):
            with open_client(client_name, journal=journal) as client:
                more: dict[str, Any] = {}
                if how == "challenge":
                    digest = HTTPDigestAuth if client_name == "requests" else httpx.DigestAuth
                    more["auth"] = digest("user", "password")
                elif not isinstance(client, RequestsClient):
                    client.httpx_client.follow_redirects = True
                assert client.post(server.url, given=ORDER, **more).status == 201
                assert journal.open_entries() == 0
    assert len(server.keys) == 4
    assert len(set(server.keys)) == 1


def test_an_intent_refused_after_a_redirect_may_be_corrected(
    client_name: str, journal: Journal
) -> None:
    with (
        scripted_server(AWAY, Respond(422), Respond(201)) as server,
        open_client(client_name, journal=journal) as client,
    ):
        if not isinstance(client, RequestsClient):
            client.httpx_client.follow_redirects = True
        assert client.post(server.url, given=ORDER, body=b"wrong").status == 422
        assert client.post(server.url, given=ORDER, body=b"right").status == 201
    assert server.keys[0] == server.keys[1] != server.keys[2]


def test_a_request_object_sent_again_answers_its_intent(client_name: str, journal: Journal) -> None:
    with (
        scripted_server(DropConnection(), Respond(201), Respond(201)) as server,
        open_client(client_name, journal=journal, retry=ONCE) as client,
    ):
        request = prepared(client, server.url)
        with pytest.raises(RetriesExhausted):
            send(client, request)
        assert send(client, request) == 201
        client.post(server.url, given=ORDER)  # from a caller that did not get the response
    assert len(set(server.keys)) == 1


# --- intents of which nothing was sent ------------------------------------------------------------


@pytest.mark.parametrize("why", ["in flight", "mismatch", "closed", "bad key"])
def test_a_refused_request_object_keeps_its_intent(
    journal: Journal, journal_path: Path, why: str
) -> None:
    hang = Hang(Respond(201))
    with (
        scripted_server(hang, Respond(201)) as server,
        open_client("requests", journal=journal) as client,
    ):
        assert isinstance(client, RequestsClient)
        other = threading.Thread(target=client.post, args=(server.url,), kwargs={"given": ORDER})
        other.start()
        assert hang.arrived.wait(60)
        request = prepared(client, server.url)
        if why == "in flight":
            with pytest.raises(InFlight):
                send(client, request)
        elif why == "mismatch":
            request.body = b"[]"
            with pytest.raises(Mismatch, match=r"journal\.forget\(intent="):
                send(client, request)
            request.body = b"{}"
        elif why == "closed":
            closed = Journal(journal_path.with_suffix(".other"))
            closed.close()
            with (
                open_client("requests", journal=closed) as refused,
                pytest.raises(NotSent, match="was closed"),
            ):
                send(refused, request)
        else:
            request.headers["Idempotency-Key"] = ""
            with pytest.raises(InvalidKey):
                send(client, request)
            del request.headers["Idempotency-Key"]
        hang.proceed.set()
        other.join(60)
        assert send(client, request) == 201
    assert len(server.keys) == 2
    assert len(set(server.keys)) == 1
    assert [seen.header_values("Oncekey-Intent") for seen in server.received] == [[], []]


def test_an_intent_beside_a_key_is_not_sent(journal: Journal) -> None:
    with scripted_server(Respond()) as server, open_client("requests", journal=journal) as client:
        client.post(server.url, given=ORDER, headers={"Idempotency-Key": "mine"})
    assert server.keys == ["mine"]
    assert server.received[0].header_values("Oncekey-Intent") == []


def test_an_intent_that_could_not_be_sent_may_be_changed(
    client_name: str, journal: Journal
) -> None:
    with (
        closed_port() as nobody,
        scripted_server(Respond(201)) as server,
        open_client(client_name, journal=journal, retry=Retry(attempts=2)) as client,
    ):
        with pytest.raises(RetriesExhausted) as caught:
            client.post(nobody, given=ORDER)
        assert caught.value.safe_new_key
        assert journal.open_entries() == 0
        assert client.post(server.url, given=ORDER, body=b"another").status == 201


@pytest.mark.parametrize("url", ["htp://127.0.0.1/", "/nowhere"])
def test_an_intent_with_an_unusable_url_leaves_no_entry(journal: Journal, url: str) -> None:
    with open_client("httpx", journal=journal) as client, pytest.raises(httpx.UnsupportedProtocol):
        client.post(url, given=ORDER)
    assert journal.open_entries() == 0


def test_an_intent_that_may_have_been_sent_stays_open(client_name: str, journal: Journal) -> None:
    """After a lost try an entry stays open, and so does one that was found open."""
    with open_client(client_name, journal=journal, retry=Retry(attempts=2)) as client:
        with scripted_server(DropConnection()) as server:
            url = server.url
            client.clock.on_sleep = lambda _: server.stop()
            with pytest.raises(RetriesExhausted) as caught:
                client.post(url, given=ORDER)
        assert journal.open_entries() == 1
        with pytest.raises(RetriesExhausted) as again:
            client.post(url, given=ORDER)
        assert journal.open_entries() == 1
    assert caught.value.key == again.value.key


def test_an_unsent_request_object_gets_a_new_entry(client_name: str, journal: Journal) -> None:
    """The key is removed from the journal and from the request: a key that stayed in the header
    would count as the caller's own, which gets no entry."""
    with (
        closed_port() as nobody,
        open_client(client_name, journal=journal, retry=ONCE) as client,
    ):
        request = prepared(client, nobody)
        with pytest.raises(RetriesExhausted):
            send(client, request)
        assert "Idempotency-Key" not in request.headers
        with scripted_server(DropConnection(), Respond()) as server:
            if isinstance(client, RequestsClient):
                request.url = server.url
            else:
                request.url = httpx.URL(server.url)
            with pytest.raises(RetriesExhausted):
                send(client, request)
            assert journal.open_entries() == 1
            client.post(server.url, given=ORDER)
    assert len(set(server.keys)) == 1


# --- without retries ------------------------------------------------------------------------------


def test_without_retries_problem_details_are_read(client_name: str, journal: Journal) -> None:
    problem = Respond(422, b'{"title": "no"}', {"Content-Type": "application/problem+json"})
    with (
        scripted_server(problem, Respond(201)) as server,
        open_client(client_name, journal=journal, retry=None) as client,
    ):
        got = client.post(server.url, given=ORDER, body=b"wrong")
        assert got.content == problem.body
        delivery = delivery_of(got.response)
        assert delivery is not None
        assert delivery.conclusive
        client.post(server.url, given=ORDER, body=b"right")
    assert server.keys[0] != server.keys[1]


# --- the header of requests -----------------------------------------------------------------------


def test_an_intent_in_bytes_must_be_utf_8(journal: Journal) -> None:
    with (
        scripted_server(Respond(201), Respond(201)) as server,
        open_client("requests", journal=journal) as client,
    ):
        for name in ("Bücher", "Bücher".encode()):
            client.post(server.url, headers={"Oncekey-Intent": name})
        with pytest.raises(InvalidKey, match="not UTF-8"):
            client.post(server.url, headers={"Oncekey-Intent": "Bücher".encode("latin-1")})
    assert len(set(server.keys)) == 1


# --- reuse ----------------------------------------------------------------------------------------


def test_an_intent_reuses_its_key(client_name: str, journal: Journal) -> None:
    given = {"intent": "order-17"}
    with (
        scripted_server(DropConnection(), Respond(), Respond()) as server,
        open_client(client_name, journal=journal, retry=ONCE) as client,
    ):
        with pytest.raises(RetriesExhausted):
            client.post(server.url, given=given)
        client.post(server.url)  # the same request without the intent
        client.post(server.url, given=given)
    lost, other, again = server.keys
    assert lost == again != other
    assert journal.open_entries() == 0
    assert [seen.header_values("Oncekey-Intent") for seen in server.received] == [[], [], []]


def test_an_intent_for_another_request_is_refused_before_anything_is_sent(
    client_name: str, journal: Journal
) -> None:
    given = {"intent": "order-17"}
    with (
        scripted_server(DropConnection()) as server,
        open_client(client_name, journal=journal, retry=ONCE) as client,
    ):
        with pytest.raises(RetriesExhausted):
            client.post(server.url, given=given, body=b"5")
        with pytest.raises(Mismatch, match="'order-17' was for another request"):
            client.post(server.url, given=given, body=b"6")
    assert len(server.received) == 1


def test_an_intent_under_way_is_refused(journal: Journal) -> None:
    given = {"intent": "order-17"}
    hang = Hang()
    with scripted_server(hang) as server, open_client("httpx", journal=journal) as client:
        other = threading.Thread(target=client.post, args=(server.url,), kwargs={"given": given})
        other.start()
        assert hang.arrived.wait(60)
        with pytest.raises(InFlight, match="under way"):
            client.post(server.url, given=given)
        hang.proceed.set()
        other.join(60)
    assert len(server.received) == 1
    assert journal.open_entries() == 0


def test_an_intent_that_was_carried_out_keeps_its_key(client_name: str, journal: Journal) -> None:
    """A process that dies right after the response came does not know of it, and sends it again."""
    given = {"intent": "order-17"}
    with (
        scripted_server(*[Respond(201)] * 4) as server,
        open_client(client_name, journal=journal) as client,
    ):
        for _ in range(2):
            assert client.post(server.url, given=given).status == 201
            assert journal.open_entries() == 0
        with pytest.raises(Mismatch, match="'order-17' was for another request"):
            client.post(server.url, given=given, body=b"another")
        client.post(server.url)
        client.post(server.url, given={"intent": "order-18"})
    assert server.keys[0] == server.keys[1]
    assert len(set(server.keys)) == 3


def test_an_intent_that_was_refused_may_be_corrected(client_name: str, journal: Journal) -> None:
    given = {"intent": "order-17"}
    with (
        scripted_server(Respond(422), Respond(201), Respond(404), Respond(201)) as server,
        open_client(client_name, journal=journal) as client,
    ):
        client.post(server.url, given=given, body=b"wrong")
        for _ in range(3):  # once done it stays done, whatever the next response is
            client.post(server.url, given=given, body=b"right")
    wrong, *right = server.keys
    assert len(set(right)) == 1
    assert wrong != right[0]


@pytest.mark.parametrize("intent", ["", "x" * 256, "tab\t", 17])
def test_an_intent_that_is_no_short_text_is_refused(journal: Journal, intent: Any) -> None:
    with (
        scripted_server() as server,
        open_client("httpx", journal=journal) as client,
        pytest.raises(InvalidKey, match="intent"),
    ):
        client.post(server.url, given={"intent": intent})
    assert server.received == []


def test_an_intent_with_a_409_after_a_lost_try_keeps_its_key(
    client_name: str, journal: Journal
) -> None:
    given = {"intent": "order-17"}
    with (
        scripted_server(DropConnection(), Respond(409), Respond()) as server,
        open_client(client_name, journal=journal) as client,
    ):
        got = client.post(server.url, given=given)
        assert got.delivery is not None
        assert (got.status, got.delivery.conclusive) == (409, False)
        assert journal.open_entries() == 1
        client.post(server.url, given=given)
    assert len(set(server.keys)) == 1
