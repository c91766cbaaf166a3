"""Each client against a server that loses, breaks and refuses: which keys it saw, how often it was
asked, how long the client waited, and what the caller was told."""

from __future__ import annotations

import re
import traceback
from typing import Any

import httpx
import pytest
import requests
from tests.client.callers import calling
from tests.client.scripted import Act, Answer, Cut, Drop, Hang, Say, Scripted, serving

from oncekey.client import RetriesExhausted, Retry

BUSY = Answer(409, b"{}", {"Retry-After": "2"})
LONG = Answer(201, b"0123456789" * 100)
QUOTED = re.compile(r'"[0-9a-f-]{36}"')


def one_key(server: Scripted) -> str:
    """The key of everything that was asked."""
    assert len(set(server.keys)) == 1, server.keys
    assert server.keys[0] is not None
    return server.keys[0]


# --- lost answers ---------------------------------------------------------------------------------

BREAKS: dict[str, Act] = {
    "closed unread": Drop(read=False),
    "reset unread": Drop(read=False, reset=True),
    "closed": Drop(),
    "reset": Drop(reset=True),
    "no head": Say(b""),
    "half a head": Say(b"HTTP/1.1 200 OK\r\nContent-"),
    "a head without an end": Say(b"HTTP/1.1 200 OK\r\nX-Whole: yes\r\n"),
    "no body": Cut(0),
    "half a body": Cut(500),
    "half a body, reset": Cut(500, reset=True),
    "all but a byte": Cut(999),
    "half a chunk": Cut(500, Answer(body=b"x" * 1_000, chunked=True)),
    "no last chunk": Cut(1_005, Answer(body=b"x" * 1_000, chunked=True)),
}


@pytest.mark.parametrize("how", BREAKS)
def test_a_lost_answer_is_fetched_again_under_the_same_key(name: str, how: str) -> None:
    act = BREAKS[how]
    seen = 1 if isinstance(act, Drop) and not act.read else 2
    with serving(act, LONG) as server, calling(name, chances=[0.5]) as caller:
        got = caller.post(server.url + "/pay?a=1", body=b'{"cents": 5}')
    assert (got.status, got.content) == (201, LONG.body)
    assert QUOTED.fullmatch(one_key(server))
    assert [ask.body for ask in server.seen] == [b'{"cents": 5}'] * seen
    assert [(ask.method, ask.target) for ask in server.seen] == [("POST", "/pay?a=1")] * seen
    assert caller.time.slept == [50_000]
    assert got.delivery is not None
    assert f'"{got.delivery.key}"' == server.keys[0]
    assert (got.delivery.attempts, got.delivery.replayed) == (2, False)
    assert (got.delivery.conclusive, got.delivery.waited) == (True, 0.05)
    assert server.is_used_up()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("body", [b"", b"all of it"])
def test_a_body_that_is_said_to_end_with_the_connection_may_do_so(
    name: str, version: str, body: bytes
) -> None:
    closes = b"Connection: close\r\n" if version == "1.1" else b""
    head = f"HTTP/{version} 201 OK\r\n".encode() + closes + b"\r\n"
    with serving(Say(head + body)) as server, calling(name) as caller:
        got = caller.post(server.url)
    assert (got.status, got.content) == (201, body)


@pytest.mark.parametrize("head", ["", "Location: /c/1\r\n", "Content-Length: 0\r\n"])
def test_a_head_that_ended_is_told_from_one_that_was_cut(name: str, head: str) -> None:
    """Whatever it says about its body, or does not."""
    whole = Say(f"HTTP/1.1 201 Created\r\n{head}\r\n".encode())
    with serving(whole) as server, calling(name) as caller:
        got = caller.post(server.url)
    assert (got.status, got.content, len(server.seen)) == (201, b"", 1)
    cut = Say(f"HTTP/1.1 201 Created\r\n{head}".encode())
    with serving(cut, Answer()) as server, calling(name) as caller:
        got = caller.post(server.url)
    assert (got.status, len(server.seen)) == (200, 2)


def test_two_requests_have_two_keys(name: str) -> None:
    with (
        serving(Drop(), Answer(), Answer(503), Answer()) as server,
        calling(name) as caller,
    ):
        caller.post(server.url)
        caller.post(server.url)
    first, again, second, retried = server.keys
    assert first == again
    assert second == retried
    assert first != second


@pytest.mark.parametrize("what", [Drop(), Drop(reset=True), Cut(10), Cut(10, reset=True)])
def test_losing_all_tries_warns_of_a_new_key(name: str, what: Act) -> None:
    retry = Retry(attempts=3)
    with (
        serving(what, what, what) as server,
        calling(name, retry=retry) as caller,
        pytest.raises(RetriesExhausted) as caught,
    ):
        caller.post(server.url + "/pay")
    error = caught.value
    assert (error.attempts, error.safe_new_key, error.response) == (3, False, None)
    assert f'"{error.key}"' == one_key(server)
    assert len(server.seen) == 3
    assert isinstance(error.last, Exception)
    # The errors of requests have the whole URL in their text.
    assert error.__cause__ is (None if name == "requests" else error.last)
    assert "do NOT use a new key" in str(error)


def test_a_timeout_is_a_lost_answer(name: str) -> None:
    hung = Hang()
    with serving(hung, Answer()) as server, calling(name) as caller:
        got = caller.post(server.url, timeout=0.5)
    assert got.status == 200
    assert len(server.seen) == 2
    assert one_key(server)


# --- statuses -------------------------------------------------------------------------------------

FINAL = [
    *range(200, 204),
    *(206, 300, 301, 304, 305, 400, 401, 402, 403, 404, 405, 406, 408, 409, 410, 411, 412, 413),
    *(415, 418, 421, 422, 423, 424, 426, 428, 431, 451, 500, 501, 505, 507, 511, 599),
]


def test_a_final_status_is_given_at_once(name: str) -> None:
    with serving(*map(Answer, FINAL)) as server, calling(name) as caller:
        got = {status: caller.post(server.url) for status in FINAL}
    assert {status for status in FINAL if got[status].status != status} == set()
    assert caller.time.slept == []
    assert len(set(server.keys)) == len(FINAL)
    deliveries = {status: one.delivery for status, one in got.items() if one.delivery is not None}
    assert {delivery.attempts for delivery in deliveries.values()} == {1}
    open_still = {status for status in FINAL if not deliveries[status].conclusive}
    assert open_still == {401, 409, *(status for status in FINAL if status >= 500)}


@pytest.mark.parametrize("status", [425, 429, 502, 503, 504])
def test_a_passing_status_is_tried_again(name: str, status: int) -> None:
    with (
        serving(Answer(status), Answer(status, b"", {"Retry-After": "3"}), LONG) as server,
        calling(name, chances=[0.5, 0.25]) as caller,
    ):
        got = caller.post(server.url)
    assert got.content == LONG.body
    assert caller.time.slept == [50_000, 3_050_000]
    assert one_key(server)


def test_a_request_in_flight_is_waited_for(name: str) -> None:
    replay = Answer(201, b"made", {"X-Idempotency-Replayed": "true"})
    with serving(BUSY, BUSY, replay) as server, calling(name, chances=[0.0, 0.0]) as caller:
        got = caller.post(server.url)
    assert caller.time.slept == [2_000_000, 2_000_000]
    assert one_key(server)
    assert got.delivery is not None
    assert (got.delivery.attempts, got.delivery.replayed) == (3, True)
    assert (got.delivery.waited, got.delivery.elapsed) == (4.0, 4.0)


@pytest.mark.parametrize(
    ("header", "value", "replayed"),
    [
        ("X-Idempotency-Replayed", "true", True),
        ("x-idempotency-replayed", "True", True),
        ("Idempotent-Replayed", "true", True),
        ("X-Idempotency-Replayed", "false", False),
        ("X-Other", "true", False),
    ],
)
def test_a_replay_is_told_from_a_first_answer(
    name: str, header: str, value: str, replayed: bool
) -> None:
    with serving(Answer(headers={header: value})) as server, calling(name) as caller:
        got = caller.post(server.url)
    assert got.delivery is not None
    assert got.delivery.replayed is replayed


@pytest.mark.parametrize("header", ["X-Idempotency-Replayed", "Idempotent-Replayed"])
def test_a_stored_refusal_tells_what_became_of_a_lost_try(name: str, header: str) -> None:
    stored = Answer(404, b"", {header: "true"})
    with serving(Drop(), stored, Drop(), Answer(404)) as server, calling(name) as caller:
        told, untold = caller.post(server.url).delivery, caller.post(server.url).delivery
    assert told is not None
    assert untold is not None
    assert (told.conclusive, untold.conclusive) == (True, False)


@pytest.mark.parametrize(("status", "safe"), [(425, True), (429, True), (503, False), (502, False)])
def test_giving_up_on_a_status_hands_over_its_response(name: str, status: int, safe: bool) -> None:
    refusal = Answer(status, b'{"why": "load"}', {"Content-Type": "application/json"})
    with (
        serving(refusal, refusal) as server,
        calling(name, retry=Retry(attempts=2)) as caller,
        pytest.raises(RetriesExhausted) as caught,
    ):
        caller.post(server.url)
    error = caught.value
    assert (error.last, error.safe_new_key, error.attempts) == (status, safe, 2)
    assert error.__cause__ is None
    assert error.response.json() == {"why": "load"}
    assert (error.elapsed, error.response.status_code) == (0.05, status)
    assert ("safe to use a new key" in str(error)) is safe


@pytest.mark.parametrize("cut", [False, True])
def test_a_refusal_that_warns_of_a_new_key_is_taken_at_its_word(name: str, cut: bool) -> None:
    """Also where the warning may have been in what did not come."""
    told = b'{"type": "about:blank", "safe_new_key": false}'
    warning = Answer(429, told, {"Content-Type": "application/problem+json"})
    act: Act = Cut(5, warning) if cut else warning
    with (
        serving(act, act) as server,
        calling(name, retry=Retry(attempts=2)) as caller,
        pytest.raises(RetriesExhausted, match="do NOT use a new key") as caught,
    ):
        caller.post(server.url)
    assert not caught.value.safe_new_key


@pytest.mark.parametrize("lines", ["soon", "2\r\nRetry-After: 1", "1.5"])
def test_a_conflict_that_names_a_time_in_its_own_way_is_waited_for(name: str, lines: str) -> None:
    busy = Answer(409, b"", {"Retry-After": lines})
    with serving(busy, Answer()) as server, calling(name, chances=[0.0]) as caller:
        assert caller.post(server.url).status == 200
    assert caller.time.slept == [0 if lines == "soon" else 2_000_000]


def test_a_wait_beyond_the_deadline_is_not_begun(name: str) -> None:
    with (
        serving(Answer(503, b"", {"Retry-After": "61"})) as server,
        calling(name) as caller,
        pytest.raises(RetriesExhausted, match=r"begin in 61\.\d s, after the deadline: 60\.0 s"),
    ):
        caller.post(server.url)
    assert caller.time.slept == []


def test_a_broken_refusal_is_still_a_refusal(name: str) -> None:
    """The status said that nothing was done; that its body broke off changes nothing."""
    broken = Cut(5, Answer(429, b"x" * 100))
    with (
        serving(broken, broken) as server,
        calling(name, retry=Retry(attempts=2)) as caller,
        pytest.raises(RetriesExhausted) as caught,
    ):
        caller.post(server.url)
    assert caught.value.safe_new_key
    assert caught.value.last == 429
    assert caught.value.response.content == b""


# --- pass-through ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_other_methods_pass_untouched(name: str, method: str) -> None:
    with serving(Answer(503)) as server, calling(name) as caller:
        got = caller.send(method, server.url)
    assert (got.status, server.keys, got.delivery) == (503, [None], None)


def test_other_methods_are_guarded_where_wanted(name: str) -> None:
    with serving(Answer(503), Answer()) as server, calling(name, methods=["put"]) as caller:
        got = caller.send("PUT", server.url)
    assert (got.status, len(server.seen)) == (200, 2)
    assert one_key(server)


def test_without_retries_answers_and_errors_are_the_servers(name: str) -> None:
    with serving(Answer(503), Drop()) as server, calling(name, retry=None) as caller:
        got = caller.post(server.url)
        with pytest.raises((httpx.TransportError, requests.ConnectionError)) as caught:
            caller.post(server.url)
    assert not isinstance(caught.value, RetriesExhausted)
    assert got.status == 503
    assert got.delivery is not None
    assert not got.delivery.conclusive
    first, second = server.keys
    assert first is not None
    assert first != second is not None


def test_messages_tell_no_secret(name: str) -> None:
    told: list[Any] = []
    with (
        serving(Drop(), Answer(503)) as server,
        calling(name, retry=Retry(attempts=2), on_progress=told.append) as caller,
        pytest.raises(RetriesExhausted) as caught,
    ):
        caller.post(server.url.replace("http://", "http://jo:s3cret@") + "/pay?token=s3cret")
    error = caught.value
    for text in (str(error), repr(error), *map(str, told)):
        assert error.key not in text
        assert "s3cret" not in text
    assert f"{server.url}/pay" in str(error)
    assert error.tag in str(error)
    assert {progress.tag for progress in told} == {error.tag}


@pytest.mark.parametrize("how", ["lost", "unreachable"])
def test_tracebacks_tell_no_secret(name: str, how: str) -> None:
    with serving(Drop(), Drop()) as server:
        url = server.url
        if how == "unreachable":
            server.stop()
        with (
            calling(name, retry=Retry(attempts=2)) as caller,
            pytest.raises(RetriesExhausted) as caught,
        ):
            caller.post(url + "/pay?token=s3cret")
    text = "".join(traceback.format_exception(caught.value))
    assert "s3cret" not in text.replace('"/pay?token=s3cret"', "")  # the line above


def test_the_last_error_knows_its_request(name: str) -> None:
    with (
        serving(Drop(), Cut(10)) as server,
        calling(name, retry=Retry(attempts=2)) as caller,
        pytest.raises(RetriesExhausted) as caught,
    ):
        caller.post(server.url)
    last: Any = caught.value.last
    if name != "requests":
        assert last.request is caught.value.request


def test_connections_are_given_back(name: str) -> None:
    """Three calls with a retry each, on as few connections as there can be."""
    acts = [Answer(503, b"x" * 9_000), LONG] * 3
    with serving(*acts) as server, calling(name) as caller:
        for _ in range(3):
            assert caller.post(server.url).content == LONG.body
    assert server.connections == 1
