"""A key stays with its request: what a redirect makes of it goes without, wherever it goes, and
the delivery is still told of the response at the end."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import requests
from tests.client.callers import AsyncHttpxCaller, Caller, RequestsCaller, calling
from tests.client.scripted import Answer, serving

from oncekey.client import Journal

KEY = {"Idempotency-Key": "order-17"}
TO_A_GET = [("POST", 301), ("POST", 302), ("POST", 303), ("PATCH", 302), ("PATCH", 303)]


def follow(caller: Caller, elsewhere: str = "") -> None:
    """Follow redirects; `elsewhere` is reached by the library's own transport, as where the client
    was mounted for one host only."""
    if isinstance(caller, RequestsCaller):
        if elsewhere:
            caller.session.mount(elsewhere, requests.adapters.HTTPAdapter())
        return
    caller.client.follow_redirects = True
    if elsewhere:
        made = (
            httpx.AsyncHTTPTransport
            if isinstance(caller, AsyncHttpxCaller)
            else httpx.HTTPTransport
        )
        mounts: Any = dict(caller.client._mounts)
        mounts[httpx._utils.URLPattern(elsewhere)] = made(verify=False)
        caller.client._mounts = mounts


@pytest.mark.parametrize(("method", "status"), TO_A_GET)
@pytest.mark.parametrize("headers", [{}, KEY], ids=["our own key", "the caller's key"])
def test_the_get_of_a_redirect_goes_without_the_key_and_has_the_delivery(
    name: str, method: str, status: int, headers: dict[str, str]
) -> None:
    away = Answer(status, b"", {"Location": "/a", "X-Idempotency-Replayed": "true"})
    further = Answer(302, b"", {"Location": "/b"})
    with serving(away, further, Answer()) as server, calling(name) as caller:
        follow(caller)
        got = caller.send(method, server.url, headers=headers)
    assert [seen.method for seen in server.seen] == [method, "GET", "GET"]
    assert [key is None for key in server.keys] == [False, True, True]
    assert got.delivery is not None
    assert (got.delivery.attempts, got.delivery.replayed) == (1, True)
    assert got.delivery.conclusive
    assert got.delivery.key == (server.keys[0] or "").strip('"')


def test_a_redirect_to_another_host_goes_without_the_key(name: str) -> None:
    with serving(Answer()) as other:
        url = other.url.replace("127.0.0.1", "localhost")
        with serving(Answer(303, b"", {"Location": url})) as server, calling(name) as caller:
            follow(caller, elsewhere="all://localhost" if name != "requests" else url)
            got = caller.post(server.url)
    assert other.keys == [None]
    assert got.delivery is not None


@pytest.mark.parametrize("status", [307, 308])
def test_a_request_that_is_sent_on_as_it_is_keeps_its_key_to_another_host_too(
    name: str, status: int
) -> None:
    """What is carried out there must be found there by a retry."""
    with serving(Answer(201)) as other:
        with (
            serving(Answer(status, b"", {"Location": other.url})) as server,
            calling(name) as caller,
        ):
            follow(caller)
            got = caller.post(server.url)
        assert other.keys == server.keys != [None]
    assert got.delivery is not None
    assert got.delivery.conclusive


def test_a_request_that_was_redirected_and_is_sent_again_has_its_key(name: str) -> None:
    away = Answer(303, b"", {"Location": "/a"})
    with serving(away, Answer(), away, Answer()) as server, calling(name) as caller:
        follow(caller)
        if isinstance(caller, RequestsCaller):
            prepared = caller.session.prepare_request(requests.Request("POST", server.url))
            for _ in range(2):
                caller.session.send(prepared)
        else:
            request = caller.client.build_request("POST", server.url)
            for _ in range(2):
                if isinstance(caller, AsyncHttpxCaller):
                    caller.runner.run(caller.client.send(request))
                else:
                    caller.client.send(request)
    first, _, again, _ = server.keys
    assert first is not None
    assert first == again


# --- replays --------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [409, 425, 429, 500, 502, 503, 504])
def test_a_replayed_failure_is_given_at_once_whatever_it_is(name: str, status: int) -> None:
    stored = Answer(status, b"stored", {"Retry-After": "2", "X-Idempotency-Replayed": "true"})
    with serving(stored) as server, calling(name) as caller:
        got = caller.post(server.url)
    assert (got.status, got.content, caller.time.slept) == (status, b"stored", [])
    assert got.delivery is not None
    assert (got.delivery.attempts, got.delivery.replayed, got.delivery.conclusive) == (
        1,
        True,
        True,
    )


def test_the_servers_own_name_for_the_replay_header_is_an_option(name: str) -> None:
    stored = Answer(503, b"stored", {"X-Shop-Replay": "true"})
    with serving(stored) as server, calling(name, replay_header="x-shop-replay") as caller:
        got = caller.post(server.url)
    assert got.delivery is not None
    assert (got.status, got.delivery.attempts, got.delivery.replayed) == (503, 1, True)


def test_a_replayed_failure_keeps_its_journal_entry(name: str, journal: Journal) -> None:
    """It does not tell whether it had an effect: the same request must not go under a new key."""
    stored = Answer(500, b"", {"X-Idempotency-Replayed": "true"})
    with (
        serving(stored, stored) as server,
        calling(name, journal=journal) as caller,
    ):
        caller.post(server.url, given={"intent": "order-17"})
        caller.post(server.url, given={"intent": "order-17"})
    assert len(set(server.keys)) == 1
