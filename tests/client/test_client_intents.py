"""Which key a request goes under when it comes again: sent on, sent again, or for another."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
from requests.auth import HTTPDigestAuth
from tests.client.callers import AsyncHttpxCaller, Caller, RequestsCaller, calling
from tests.client.scripted import Answer, Cut, Drop, Hang, serving
from tests.client.test_client_unsent import closed_port
from urllib3.exceptions import HTTPError

from oncekey import ConfigurationError, InFlight, InvalidKey, Mismatch
from oncekey.client import Journal, NotSent, RetriesExhausted, Retry, delivery_of

ONCE = Retry(attempts=1)
ORDER = {"intent": "order-17"}
AWAY = Answer(307, b"", {"Location": "/there"})
CHALLENGE = Answer(
    401, b"", {"WWW-Authenticate": 'Digest realm="r", nonce="abc", qop="auth", algorithm=MD5'}
)


def prepared(caller: Caller, url: str, given: dict[str, str] | None = ORDER) -> Any:
    """A request object of the library, to be sent more than once."""
    if isinstance(caller, RequestsCaller):
        headers = {"Oncekey-Intent": given["intent"]} if given else {}
        return caller.session.prepare_request(
            requests.Request("POST", url, data=b"{}", headers=headers)
        )
    extensions = {"oncekey": given} if given else {}
    return caller.client.build_request("POST", url, content=b"{}", extensions=extensions)


def send(caller: Caller, request: Any) -> int:
    if isinstance(caller, RequestsCaller):
        return caller.session.send(request).status_code
    if isinstance(caller, AsyncHttpxCaller):
        return caller.runner.run(caller.client.send(request)).status_code
    return caller.client.send(request).status_code


# --- an intent that is sent on --------------------------------------------------------------------


@pytest.mark.parametrize("how", ["redirect", "challenge"])
def test_an_intent_that_was_carried_out_elsewhere_keeps_its_key(
    name: str, journal: Journal, how: str
) -> None:
    first = AWAY if how == "redirect" else CHALLENGE
    with serving(first, Answer(201), first, Answer(201)) as server:
        for _ in range(2):
            with calling(name, journal=journal) as caller:
                more: dict[str, Any] = {}
                if how == "challenge":
                    digest = HTTPDigestAuth if name == "requests" else httpx.DigestAuth
                    more["auth"] = digest("user", "password")
                elif not isinstance(caller, RequestsCaller):
                    caller.client.follow_redirects = True
                assert caller.post(server.url, given=ORDER, **more).status == 201
                assert journal.open_entries() == 0
    assert len(server.keys) == 4
    assert len(set(server.keys)) == 1


def test_an_intent_that_was_refused_elsewhere_may_come_corrected(
    name: str, journal: Journal
) -> None:
    with (
        serving(AWAY, Answer(422), Answer(201)) as server,
        calling(name, journal=journal) as caller,
    ):
        if not isinstance(caller, RequestsCaller):
            caller.client.follow_redirects = True
        assert caller.post(server.url, given=ORDER, body=b"wrong").status == 422
        assert caller.post(server.url, given=ORDER, body=b"right").status == 201
    assert server.keys[0] == server.keys[1] != server.keys[2]


def test_a_request_object_that_is_sent_again_leaves_its_intent_answered(
    name: str, journal: Journal
) -> None:
    with (
        serving(Drop(), Answer(201), Answer(201)) as server,
        calling(name, journal=journal, retry=ONCE) as caller,
    ):
        request = prepared(caller, server.url)
        with pytest.raises(RetriesExhausted):
            send(caller, request)
        assert send(caller, request) == 201
        caller.post(server.url, given=ORDER)  # whoever did not hear of the answer
    assert len(set(server.keys)) == 1


# --- an intent of which nothing was sent ----------------------------------------------------------


@pytest.mark.parametrize("why", ["in flight", "mismatch", "closed", "bad key"])
def test_a_request_object_that_was_not_sent_keeps_its_intent(
    journal: Journal, journal_path: Path, why: str
) -> None:
    hang = Hang(Answer(201))
    with (
        serving(hang, Answer(201)) as server,
        calling("requests", journal=journal) as caller,
    ):
        assert isinstance(caller, RequestsCaller)
        other = threading.Thread(target=caller.post, args=(server.url,), kwargs={"given": ORDER})
        other.start()
        assert hang.here.wait(10)
        request = prepared(caller, server.url)
        if why == "in flight":
            with pytest.raises(InFlight):
                send(caller, request)
        elif why == "mismatch":
            request.body = b"[]"
            with pytest.raises(Mismatch, match=r"journal\.forget\(intent="):
                send(caller, request)
            request.body = b"{}"
        elif why == "closed":
            closed = Journal(journal_path.with_suffix(".other"))
            closed.close()
            with (
                calling("requests", journal=closed) as refused,
                pytest.raises(NotSent, match="was closed"),
            ):
                send(refused, request)
        else:
            request.headers["Idempotency-Key"] = ""
            with pytest.raises(InvalidKey):
                send(caller, request)
            del request.headers["Idempotency-Key"]
        hang.go.set()
        other.join(10)
        assert send(caller, request) == 201
    assert len(server.keys) == 2
    assert len(set(server.keys)) == 1
    assert [seen.all("Oncekey-Intent") for seen in server.seen] == [[], []]


def test_an_intent_beside_a_key_is_not_sent_either(journal: Journal) -> None:
    with serving(Answer()) as server, calling("requests", journal=journal) as caller:
        caller.post(server.url, given=ORDER, headers={"Idempotency-Key": "mine"})
    assert server.keys == ["mine"]
    assert server.seen[0].all("Oncekey-Intent") == []


def test_an_intent_that_could_not_be_sent_may_come_changed(name: str, journal: Journal) -> None:
    with (
        closed_port() as nobody,
        serving(Answer(201)) as server,
        calling(name, journal=journal, retry=Retry(attempts=2)) as caller,
    ):
        with pytest.raises(RetriesExhausted) as caught:
            caller.post(nobody, given=ORDER)
        assert caught.value.safe_new_key
        assert journal.open_entries() == 0
        assert caller.post(server.url, given=ORDER, body=b"another").status == 201


@pytest.mark.parametrize("url", ["htp://127.0.0.1/", "/nowhere"])
def test_so_may_one_whose_address_cannot_be_used(journal: Journal, url: str) -> None:
    with calling("httpx", journal=journal) as caller, pytest.raises(httpx.UnsupportedProtocol):
        caller.post(url, given=ORDER)
    assert journal.open_entries() == 0


def test_one_that_may_have_been_sent_stays(name: str, journal: Journal) -> None:
    """Once lost it is not unsent, whatever comes after; nor is one that was found open."""
    with calling(name, journal=journal, retry=Retry(attempts=2)) as caller:
        with serving(Drop()) as server:
            url = server.url
            caller.time.on_sleep = lambda _: server.stop()
            with pytest.raises(RetriesExhausted) as caught:
                caller.post(url, given=ORDER)
        assert journal.open_entries() == 1
        with pytest.raises(RetriesExhausted) as again:
            caller.post(url, given=ORDER)
        assert journal.open_entries() == 1
    assert caught.value.key == again.value.key


def test_a_request_object_that_could_not_be_sent_gets_an_entry_again(
    name: str, journal: Journal
) -> None:
    """Its key was dropped, so it must not come back as the caller's own, which gets none."""
    with (
        closed_port() as nobody,
        calling(name, journal=journal, retry=ONCE) as caller,
    ):
        request = prepared(caller, nobody)
        with pytest.raises(RetriesExhausted):
            send(caller, request)
        assert "Idempotency-Key" not in request.headers
        with serving(Drop(), Answer()) as server:
            if isinstance(caller, RequestsCaller):
                request.url = server.url
            else:
                request.url = httpx.URL(server.url)
            with pytest.raises(RetriesExhausted):
                send(caller, request)
            assert journal.open_entries() == 1
            caller.post(server.url, given=ORDER)
    assert len(set(server.keys)) == 1


# --- the key that an error tells ------------------------------------------------------------------


def test_the_answer_to_a_key_that_was_given_closes_its_entry(name: str, journal: Journal) -> None:
    with (
        serving(Drop(), Answer(201), Answer(201)) as server,
        calling(name, journal=journal, retry=ONCE) as caller,
    ):
        with pytest.raises(RetriesExhausted) as caught:
            caller.post(server.url)
        caller.post(server.url, given={"key": caught.value.key})
        assert journal.open_entries() == 0
        caller.post(server.url)
    lost, given, new = (str(key).strip('"') for key in server.keys)  # some callers do not quote
    assert lost == given != new


def test_a_key_that_was_given_gets_no_entry(name: str, journal: Journal) -> None:
    with (
        serving(Drop()) as server,
        calling(name, journal=journal, retry=ONCE) as caller,
        pytest.raises(RetriesExhausted),
    ):
        caller.post(server.url, given={"key": "mine"})
    assert journal.open_entries() == 0


# --- on whose behalf ------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, ORDER])
def test_an_account_takes_up_its_own_keys_only(
    name: str, journal: Journal, given: dict[str, str] | None
) -> None:
    with serving(Drop(), Answer(201), Answer(201)) as server:
        with (
            calling(name, journal=journal, retry=ONCE, account="a") as caller,
            pytest.raises(RetriesExhausted),
        ):
            caller.post(server.url, given=given)
        for account in ("b", "a"):
            with calling(name, journal=journal, account=account) as caller:
                caller.post(server.url, given=given)
    lost, others, again = server.keys
    assert lost == again != others


@pytest.mark.parametrize("account", ["x" * 256, "tab\t", None, 17, b"a"])
def test_an_account_has_limits(name: str, account: Any) -> None:
    with (
        pytest.raises(ConfigurationError, match="account"),
        calling(name, account=account),
    ):
        pass


# --- without retries ------------------------------------------------------------------------------


def test_without_retries_an_answer_counts_when_all_of_it_is_there(
    name: str, journal: Journal
) -> None:
    with (
        serving(Cut(5), Answer(201)) as server,
        calling(name, journal=journal, retry=None) as caller,
    ):
        with pytest.raises((httpx.HTTPError, requests.RequestException, HTTPError)):
            caller.post(server.url)
        assert journal.open_entries() == 1
        caller.post(server.url)
    assert len(set(server.keys)) == 1
    assert journal.open_entries() == 0


def test_without_retries_a_problem_is_read_too(name: str, journal: Journal) -> None:
    problem = Answer(422, b'{"title": "no"}', {"Content-Type": "application/problem+json"})
    with (
        serving(problem, Answer(201)) as server,
        calling(name, journal=journal, retry=None) as caller,
    ):
        got = caller.post(server.url, given=ORDER, body=b"wrong")
        assert got.content == problem.body
        delivery = delivery_of(got.response)
        assert delivery is not None
        assert delivery.conclusive
        caller.post(server.url, given=ORDER, body=b"right")
    assert server.keys[0] != server.keys[1]


# --- how requests hands an intent over ------------------------------------------------------------


def test_an_intent_in_bytes_is_utf_8(journal: Journal) -> None:
    with (
        serving(Answer(201), Answer(201)) as server,
        calling("requests", journal=journal) as caller,
    ):
        for name in ("Bücher", "Bücher".encode()):
            caller.post(server.url, headers={"Oncekey-Intent": name})
        with pytest.raises(InvalidKey, match="not UTF-8"):
            caller.post(server.url, headers={"Oncekey-Intent": "Bücher".encode("latin-1")})
    assert len(set(server.keys)) == 1
