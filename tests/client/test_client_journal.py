"""The journal: an entry that was left open is reused by the next such request, and no other is."""

from __future__ import annotations

import json
from itertools import repeat
from typing import Any

import httpx
import pytest
import requests
from tests.client.clients import RequestsClient, open_client
from tests.client.scripted_server import CutBody, DropConnection, Hang, Respond, scripted_server
from urllib3.exceptions import HTTPError

from oncekey import ConfigurationError
from oncekey.client import Journal, RetriesExhausted, Retry

ONCE = Retry(attempts=1)
ORDER = {"intent": "order-17"}


# --- reuse ----------------------------------------------------------------------------------------


def test_the_key_of_an_unanswered_request_is_reused_by_the_next_such_request(
    client_name: str, journal: Journal
) -> None:
    with (
        scripted_server(DropConnection(), Respond(201), Respond(201)) as server,
        open_client(client_name, journal=journal, retry=ONCE) as client,
    ):
        with pytest.raises(RetriesExhausted, match="the journal keeps the key") as caught:
            client.post(server.url + "/pay?a=1")
        assert journal.open_entries() == 1
        got = client.post(server.url + "/pay?a=1")
        assert journal.open_entries() == 0
        client.post(server.url + "/pay?a=1")
    lost, reused, new = server.keys
    assert lost == reused == f'"{caught.value.key}"'
    assert got.delivery is not None
    assert got.delivery.key == caught.value.key
    assert new != lost


def test_the_key_is_on_disk_before_the_first_byte_is_sent(
    client_name: str, journal: Journal
) -> None:
    counts: list[int] = []
    with (
        scripted_server(Hang(), *repeat(Respond(), 20)) as server,
        open_client(
            client_name,
            journal=journal,
            on_progress=lambda p: counts.append(_entries(p)),
            retry=Retry(attempts=20, deadline="1d"),
        ) as client,
    ):

        def _entries(progress: Any) -> int:
            return journal.open_entries() if progress.kind == "sending" else -1

        client.post(server.url, timeout=0.3)
    sent = [count for count in counts if count >= 0]
    assert len(sent) >= 2
    assert set(sent) == {1}
    assert journal.open_entries() == 0


@pytest.mark.parametrize("other", ["method", "path", "query", "body"])
def test_a_different_request_does_not_reuse_a_key(
    client_name: str, journal: Journal, other: str
) -> None:
    with (
        scripted_server(DropConnection(), Respond()) as server,
        open_client(client_name, journal=journal, retry=ONCE) as client,
    ):
        original: dict[str, Any] = {"method": "POST", "url": server.url + "/pay?a=1", "body": b"5"}
        with pytest.raises(RetriesExhausted):
            client.send(**original)
        changes: dict[str, dict[str, Any]] = {
            "method": {"method": "PATCH"},
            "path": {"url": server.url + "/Pay?a=1"},
            "query": {"url": server.url + "/pay?a=2"},
            "body": {"body": b"6"},
        }
        client.send(**{**original, **changes[other]})
    first, second = server.keys
    assert first != second
    assert journal.open_entries() == 1


def test_a_form_with_another_boundary_reuses_the_key(journal: Journal) -> None:
    with (
        scripted_server(DropConnection(), Respond()) as server,
        open_client("requests", journal=journal, retry=ONCE) as client,
    ):
        assert isinstance(client, RequestsClient)
        with pytest.raises(RetriesExhausted):
            client.session.post(server.url, files={"f": b"content"})
        client.session.post(server.url, files={"f": b"content"})
    first, again = server.received
    assert first.header_values("Content-Type") != again.header_values("Content-Type")
    assert first.key == again.key


@pytest.mark.parametrize("status", [200, 302, 400, 404, 422])
def test_a_conclusive_response_closes_the_entry(
    client_name: str, journal: Journal, status: int
) -> None:
    with (
        scripted_server(Respond(status)) as server,
        open_client(client_name, journal=journal) as client,
    ):
        if isinstance(client, RequestsClient):
            client.session.max_redirects = 0
        client.post(server.url)
    assert journal.open_entries() == 0


@pytest.mark.parametrize("status", [500, 501, 307, 401, 409])
def test_an_inconclusive_response_leaves_the_entry_open(
    client_name: str, journal: Journal, status: int
) -> None:
    with (
        scripted_server(Respond(status), Respond()) as server,
        open_client(client_name, journal=journal) as client,
    ):
        assert client.post(server.url).status == status
        assert journal.open_entries() == 1
        client.post(server.url)
    first, again = server.keys
    assert first == again
    assert journal.open_entries() == 0


def test_a_response_that_warns_of_a_new_key_leaves_the_entry_open(
    client_name: str, journal: Journal
) -> None:
    unknown = json.dumps({"type": "outcome-unknown", "safe_new_key": False}).encode()
    answer = Respond(409, unknown, {"Content-Type": "application/problem+json"})
    with scripted_server(answer) as server, open_client(client_name, journal=journal) as client:
        got = client.post(server.url)
    assert got.delivery is not None
    assert not got.delivery.conclusive
    assert journal.open_entries() == 1


def test_without_retries_a_409_with_retry_after_leaves_the_entry_open(
    client_name: str, journal: Journal
) -> None:
    busy = Respond(409, b"", {"Retry-After": "1"})
    with (
        scripted_server(busy) as server,
        open_client(client_name, journal=journal, retry=None) as client,
    ):
        assert client.post(server.url).status == 409
    assert journal.open_entries() == 1


def test_a_403_after_a_lost_try_leaves_the_entry_open(client_name: str, journal: Journal) -> None:
    with (
        scripted_server(DropConnection(), Respond(403), Respond(403)) as server,
        open_client(client_name, journal=journal) as client,
    ):
        client.post(server.url)
        assert journal.open_entries() == 1
        client.post(server.url)  # a 403 now is as inconclusive as before
    assert len(set(server.keys)) == 1
    assert journal.open_entries() == 1


def test_a_reused_key_is_never_safe_to_replace(client_name: str, journal: Journal) -> None:
    with scripted_server(DropConnection()) as server:
        url = server.url
        with (
            open_client(client_name, journal=journal, retry=ONCE) as client,
            pytest.raises(RetriesExhausted),
        ):
            client.post(url)
    with open_client(client_name, journal=journal, retry=ONCE) as client:
        with pytest.raises(RetriesExhausted) as caught:
            client.post(url)  # the server is gone
        assert not caught.value.safe_new_key
        with pytest.raises(RetriesExhausted) as fresh:
            client.post(url, body=b"another")
        assert fresh.value.safe_new_key


def test_the_entry_of_a_redirected_request_is_closed_by_the_last_response(
    client_name: str, journal: Journal
) -> None:
    """A redirected request has the same key. If its response is lost, the entry of the original
    request stays open; its response closes that entry."""
    away = Respond(307, b"", {"Location": "/there"})
    with (
        scripted_server(away, DropConnection(), away, Respond()) as server,
        open_client(client_name, journal=journal, retry=ONCE) as client,
    ):
        if not isinstance(client, RequestsClient):
            client.httpx_client.follow_redirects = True
        with pytest.raises(RetriesExhausted):
            client.post(server.url)
        assert journal.open_entries() == 1
        assert client.post(server.url).status == 200
    assert len(set(server.keys)) == 1
    assert journal.open_entries() == 0


def test_a_key_in_the_callers_header_gets_no_entry(client_name: str, journal: Journal) -> None:
    with (
        scripted_server(DropConnection(), Respond(), Respond()) as server,
        open_client(client_name, journal=journal, retry=ONCE) as client,
    ):
        with pytest.raises(RetriesExhausted):
            client.post(server.url, headers={"Idempotency-Key": "mine"})
        assert journal.open_entries() == 0
        client.post(server.url)
        client.post(server.url, headers={"Idempotency-Key": "mine"})
    assert server.keys[0] == server.keys[2] == "mine" != server.keys[1]


def test_a_response_that_broke_off_leaves_the_entry_open(
    client_name: str, journal: Journal
) -> None:
    with (
        scripted_server(CutBody(5), Respond()) as server,
        open_client(client_name, journal=journal, retry=ONCE) as client,
    ):
        with pytest.raises(RetriesExhausted):
            client.post(server.url)
        assert journal.open_entries() == 1


# --- keys that the caller gives ------------------------------------------------------------------


def test_the_response_to_a_given_key_closes_its_entry(client_name: str, journal: Journal) -> None:
    with (
        scripted_server(DropConnection(), Respond(201), Respond(201)) as server,
        open_client(client_name, journal=journal, retry=ONCE) as client,
    ):
        with pytest.raises(RetriesExhausted) as caught:
            client.post(server.url)
        client.post(server.url, given={"key": caught.value.key})
        assert journal.open_entries() == 0
        client.post(server.url)
    lost, given, new = (
        str(key).strip('"') for key in server.keys
    )  # requests sends a given key bare
    assert lost == given != new


def test_a_given_key_gets_no_entry(client_name: str, journal: Journal) -> None:
    with (
        scripted_server(DropConnection()) as server,
        open_client(client_name, journal=journal, retry=ONCE) as client,
        pytest.raises(RetriesExhausted),
    ):
        client.post(server.url, given={"key": "mine"})
    assert journal.open_entries() == 0


# --- accounts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, ORDER])
def test_an_account_reuses_its_own_keys_only(
    client_name: str, journal: Journal, given: dict[str, str] | None
) -> None:
    with scripted_server(DropConnection(), Respond(201), Respond(201)) as server:
        with (
            open_client(client_name, journal=journal, retry=ONCE, account="a") as client,
            pytest.raises(RetriesExhausted),
        ):
            client.post(server.url, given=given)
        for account in ("b", "a"):
            with open_client(client_name, journal=journal, account=account) as client:
                client.post(server.url, given=given)
    lost, others, again = server.keys
    assert lost == again != others


@pytest.mark.parametrize("account", ["x" * 256, "tab\t", None, 17, b"a"])
def test_an_account_that_is_no_short_text_is_refused(client_name: str, account: Any) -> None:
    with (
        pytest.raises(ConfigurationError, match="account"),
        open_client(client_name, account=account),
    ):
        pass


# --- without retries -----------------------------------------------------------------------------


def test_without_retries_a_response_that_broke_off_leaves_the_entry_open(
    client_name: str, journal: Journal
) -> None:
    with (
        scripted_server(CutBody(5), Respond(201)) as server,
        open_client(client_name, journal=journal, retry=None) as client,
    ):
        with pytest.raises((httpx.HTTPError, requests.RequestException, HTTPError)):
            client.post(server.url)
        assert journal.open_entries() == 1
        client.post(server.url)
    assert len(set(server.keys)) == 1
    assert journal.open_entries() == 0
