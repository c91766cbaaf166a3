"""Each client against a server that loses, cuts and refuses: which keys the server received, how
often and how long the client waited, and what the caller got."""

from __future__ import annotations

import re
import traceback
from itertools import repeat
from typing import Any

import httpx
import pytest
import requests
from tests.client.clients import open_client
from tests.client.scripted_server import (
    Action,
    CutBody,
    DropConnection,
    Hang,
    Respond,
    ScriptedServer,
    SendBytes,
    scripted_server,
)

from oncekey.client import RetriesExhausted, Retry

BUSY = Respond(409, b"{}", {"Retry-After": "2"})
LONG = Respond(201, b"0123456789" * 100)
QUOTED = re.compile(r'"[0-9a-f-]{36}"')


def one_key(server: ScriptedServer) -> str:
    """The key that all requests had."""
    assert len(set(server.keys)) == 1, server.keys
    assert server.keys[0] is not None
    return server.keys[0]


# --- lost responses -------------------------------------------------------------------------------

LOSSES: dict[str, Action] = {
    "closed unread": DropConnection(read=False),
    "reset unread": DropConnection(read=False, reset=True),
    "closed": DropConnection(),
    "reset": DropConnection(reset=True),
    "no head": SendBytes(b""),
    "half a head": SendBytes(b"HTTP/1.1 200 OK\r\nContent-"),
    "a head without an end": SendBytes(b"HTTP/1.1 200 OK\r\nX-Whole: yes\r\n"),
    "no body": CutBody(0),
    "half a body": CutBody(500),
    "half a body, reset": CutBody(500, reset=True),
    "all but a byte": CutBody(999),
    "half a chunk": CutBody(500, Respond(body=b"x" * 1_000, chunked=True)),
    "no last chunk": CutBody(1_005, Respond(body=b"x" * 1_000, chunked=True)),
}


@pytest.mark.parametrize("how", LOSSES)
def test_a_lost_response_is_retried_under_the_same_key(client_name: str, how: str) -> None:
    act = LOSSES[how]
    seen = 1 if isinstance(act, DropConnection) and not act.read else 2
    with scripted_server(act, LONG) as server, open_client(client_name, chances=[0.5]) as client:
        got = client.post(server.url + "/pay?a=1", body=b'{"cents": 5}')
    assert (got.status, got.content) == (201, LONG.body)
    assert QUOTED.fullmatch(one_key(server))
    assert [request.body for request in server.received] == [b'{"cents": 5}'] * seen
    assert [(request.method, request.target) for request in server.received] == [
        ("POST", "/pay?a=1")
    ] * seen
    assert client.clock.slept == [50_000]
    assert got.delivery is not None
    assert f'"{got.delivery.key}"' == server.keys[0]
    assert (got.delivery.attempts, got.delivery.replayed) == (2, False)
    assert (got.delivery.conclusive, got.delivery.waited) == (True, 0.05)
    assert server.script_has_ended()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("body", [b"", b"all of it"])
def test_a_body_that_ends_with_the_connection_is_whole(
    client_name: str, version: str, body: bytes
) -> None:
    closes = b"Connection: close\r\n" if version == "1.1" else b""
    head = f"HTTP/{version} 201 OK\r\n".encode() + closes + b"\r\n"
    with scripted_server(SendBytes(head + body)) as server, open_client(client_name) as client:
        got = client.post(server.url)
    assert (got.status, got.content) == (201, body)


@pytest.mark.parametrize("head", ["", "Location: /c/1\r\n", "Content-Length: 0\r\n"])
def test_a_response_cut_in_its_head_is_retried(client_name: str, head: str) -> None:
    """That does not depend on what the head says about the body."""
    whole = SendBytes(f"HTTP/1.1 201 Created\r\n{head}\r\n".encode())
    with scripted_server(whole) as server, open_client(client_name) as client:
        got = client.post(server.url)
    assert (got.status, got.content, len(server.received)) == (201, b"", 1)
    cut = SendBytes(f"HTTP/1.1 201 Created\r\n{head}".encode())
    with scripted_server(cut, Respond()) as server, open_client(client_name) as client:
        got = client.post(server.url)
    assert (got.status, len(server.received)) == (200, 2)


def test_two_requests_have_two_keys(client_name: str) -> None:
    with (
        scripted_server(DropConnection(), Respond(), Respond(503), Respond()) as server,
        open_client(client_name) as client,
    ):
        client.post(server.url)
        client.post(server.url)
    first, again, second, retried = server.keys
    assert first == again
    assert second == retried
    assert first != second


@pytest.mark.parametrize(
    "what", [DropConnection(), DropConnection(reset=True), CutBody(10), CutBody(10, reset=True)]
)
def test_a_new_key_is_not_safe_if_all_responses_were_lost(client_name: str, what: Action) -> None:
    retry = Retry(attempts=3)
    with (
        scripted_server(what, what, what) as server,
        open_client(client_name, retry=retry) as client,
        pytest.raises(RetriesExhausted) as caught,
    ):
        client.post(server.url + "/pay")
    error = caught.value
    assert (error.attempts, error.safe_new_key, error.response) == (3, False, None)
    assert f'"{error.key}"' == one_key(server)
    assert len(server.received) == 3
    assert isinstance(error.last, Exception)
    # The errors of requests have the whole URL in their text.
    assert error.__cause__ is (None if client_name == "requests" else error.last)
    assert "do NOT use a new key" in str(error)


def test_a_timeout_is_retried_under_the_same_key(client_name: str) -> None:
    """On a busy machine other tries may time out as well; they are retried alike."""
    script: list[Action] = [Hang(), *repeat(Respond(), 20)]
    retry = Retry(attempts=20, deadline="1d")
    with scripted_server(*script) as server, open_client(client_name, retry=retry) as client:
        got = client.post(server.url, timeout=0.3)
    assert got.status == 200
    assert len(server.received) >= 2
    assert one_key(server)


# --- statuses -------------------------------------------------------------------------------------

NOT_RETRIED = [
    *range(200, 204),
    *(206, 300, 301, 304, 305, 400, 401, 402, 403, 404, 405, 406, 408, 409, 410, 411, 412, 413),
    *(415, 418, 421, 422, 423, 424, 426, 428, 431, 451, 500, 501, 505, 507, 511, 599),
]


def test_other_statuses_are_not_retried(client_name: str) -> None:
    with scripted_server(*map(Respond, NOT_RETRIED)) as server, open_client(client_name) as client:
        got = {status: client.post(server.url) for status in NOT_RETRIED}
    assert {status for status in NOT_RETRIED if got[status].status != status} == set()
    assert client.clock.slept == []
    assert len(set(server.keys)) == len(NOT_RETRIED)
    deliveries = {status: one.delivery for status, one in got.items() if one.delivery is not None}
    assert {delivery.attempts for delivery in deliveries.values()} == {1}
    inconclusive = {status for status in NOT_RETRIED if not deliveries[status].conclusive}
    assert inconclusive == {401, 409, *(status for status in NOT_RETRIED if status >= 500)}


@pytest.mark.parametrize("status", [425, 429, 502, 503, 504])
def test_a_temporary_status_is_retried(client_name: str, status: int) -> None:
    with (
        scripted_server(
            Respond(status), Respond(status, b"", {"Retry-After": "3"}), LONG
        ) as server,
        open_client(client_name, chances=[0.5, 0.25]) as client,
    ):
        got = client.post(server.url)
    assert got.content == LONG.body
    assert client.clock.slept == [50_000, 3_050_000]
    assert one_key(server)


def test_a_409_with_retry_after_is_retried(client_name: str) -> None:
    replay = Respond(201, b"made", {"X-Idempotency-Replayed": "true"})
    with (
        scripted_server(BUSY, BUSY, replay) as server,
        open_client(client_name, chances=[0.0, 0.0]) as client,
    ):
        got = client.post(server.url)
    assert client.clock.slept == [2_000_000, 2_000_000]
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
def test_a_replay_is_known_by_its_header(
    client_name: str, header: str, value: str, replayed: bool
) -> None:
    with (
        scripted_server(Respond(headers={header: value})) as server,
        open_client(client_name) as client,
    ):
        got = client.post(server.url)
    assert got.delivery is not None
    assert got.delivery.replayed is replayed


@pytest.mark.parametrize("header", ["X-Idempotency-Replayed", "Idempotent-Replayed"])
def test_a_replayed_refusal_is_conclusive_after_a_lost_try(client_name: str, header: str) -> None:
    stored = Respond(404, b"", {header: "true"})
    with (
        scripted_server(DropConnection(), stored, DropConnection(), Respond(404)) as server,
        open_client(client_name) as client,
    ):
        replayed, first = client.post(server.url).delivery, client.post(server.url).delivery
    assert replayed is not None
    assert first is not None
    assert (replayed.conclusive, first.conclusive) == (True, False)


@pytest.mark.parametrize(("status", "safe"), [(425, True), (429, True), (503, False), (502, False)])
def test_retries_exhausted_by_a_status_has_the_response(
    client_name: str, status: int, safe: bool
) -> None:
    refusal = Respond(status, b'{"why": "load"}', {"Content-Type": "application/json"})
    with (
        scripted_server(refusal, refusal) as server,
        open_client(client_name, retry=Retry(attempts=2)) as client,
        pytest.raises(RetriesExhausted) as caught,
    ):
        client.post(server.url)
    error = caught.value
    assert (error.last, error.safe_new_key, error.attempts) == (status, safe, 2)
    assert error.__cause__ is None
    assert error.response.json() == {"why": "load"}
    assert (error.elapsed, error.response.status_code) == (0.05, status)
    assert ("safe to use a new key" in str(error)) is safe


@pytest.mark.parametrize("cut", [False, True])
def test_a_new_key_is_not_safe_if_problem_details_say_so(client_name: str, cut: bool) -> None:
    """That includes problem details of which only a part came."""
    problem = b'{"type": "about:blank", "safe_new_key": false}'
    warning = Respond(429, problem, {"Content-Type": "application/problem+json"})
    act: Action = CutBody(5, warning) if cut else warning
    with (
        scripted_server(act, act) as server,
        open_client(client_name, retry=Retry(attempts=2)) as client,
        pytest.raises(RetriesExhausted, match="do NOT use a new key") as caught,
    ):
        client.post(server.url)
    assert not caught.value.safe_new_key


@pytest.mark.parametrize("lines", ["soon", "2\r\nRetry-After: 1", "1.5"])
def test_a_409_with_any_retry_after_is_retried(client_name: str, lines: str) -> None:
    busy = Respond(409, b"", {"Retry-After": lines})
    with (
        scripted_server(busy, Respond()) as server,
        open_client(client_name, chances=[0.0]) as client,
    ):
        assert client.post(server.url).status == 200
    assert client.clock.slept == [0 if lines == "soon" else 2_000_000]


def test_a_wait_beyond_the_deadline_is_not_begun(client_name: str) -> None:
    with (
        scripted_server(Respond(503, b"", {"Retry-After": "61"})) as server,
        open_client(client_name) as client,
        pytest.raises(RetriesExhausted, match=r"begin in 61\.\d s, after the deadline: 60\.0 s"),
    ):
        client.post(server.url)
    assert client.clock.slept == []


def test_a_429_whose_body_broke_off_is_still_harmless(client_name: str) -> None:
    """The status alone says that nothing was done."""
    broken = CutBody(5, Respond(429, b"x" * 100))
    with (
        scripted_server(broken, broken) as server,
        open_client(client_name, retry=Retry(attempts=2)) as client,
        pytest.raises(RetriesExhausted) as caught,
    ):
        client.post(server.url)
    assert caught.value.safe_new_key
    assert caught.value.last == 429
    assert caught.value.response.content == b""


# --- other methods, and no retries ----------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_requests_with_other_methods_get_no_key(client_name: str, method: str) -> None:
    with scripted_server(Respond(503)) as server, open_client(client_name) as client:
        got = client.send(method, server.url)
    assert (got.status, server.keys, got.delivery) == (503, [None], None)


def test_methods_names_the_methods_that_get_a_key(client_name: str) -> None:
    with (
        scripted_server(Respond(503), Respond()) as server,
        open_client(client_name, methods=["put"]) as client,
    ):
        got = client.send("PUT", server.url)
    assert (got.status, len(server.received)) == (200, 2)
    assert one_key(server)


def test_without_retries_the_caller_gets_responses_and_errors(client_name: str) -> None:
    with (
        scripted_server(Respond(503), DropConnection()) as server,
        open_client(client_name, retry=None) as client,
    ):
        got = client.post(server.url)
        with pytest.raises((httpx.TransportError, requests.ConnectionError)) as caught:
            client.post(server.url)
    assert not isinstance(caught.value, RetriesExhausted)
    assert got.status == 503
    assert got.delivery is not None
    assert not got.delivery.conclusive
    first, second = server.keys
    assert first is not None
    assert first != second is not None


def test_errors_and_progress_show_no_secret(client_name: str) -> None:
    events: list[Any] = []
    with (
        scripted_server(DropConnection(), Respond(503)) as server,
        open_client(client_name, retry=Retry(attempts=2), on_progress=events.append) as client,
        pytest.raises(RetriesExhausted) as caught,
    ):
        client.post(server.url.replace("http://", "http://jo:s3cret@") + "/pay?token=s3cret")
    error = caught.value
    for text in (str(error), repr(error), *map(str, events)):
        assert error.key not in text
        assert "s3cret" not in text
    assert f"{server.url}/pay" in str(error)
    assert error.tag in str(error)
    assert {progress.tag for progress in events} == {error.tag}


@pytest.mark.parametrize("how", ["lost", "unreachable"])
def test_tracebacks_show_no_secret(client_name: str, how: str) -> None:
    with scripted_server(DropConnection(), DropConnection()) as server:
        url = server.url
        if how == "unreachable":
            server.stop()
        with (
            open_client(client_name, retry=Retry(attempts=2)) as client,
            pytest.raises(RetriesExhausted) as caught,
        ):
            client.post(url + "/pay?token=s3cret")
    text = "".join(traceback.format_exception(caught.value))
    assert "s3cret" not in text.replace(
        '"/pay?token=s3cret"', ""
    )  # as in the source line of the call


def test_the_last_error_knows_its_request(client_name: str) -> None:
    with (
        scripted_server(DropConnection(), CutBody(10)) as server,
        open_client(client_name, retry=Retry(attempts=2)) as client,
        pytest.raises(RetriesExhausted) as caught,
    ):
        client.post(server.url)
    last: Any = caught.value.last
    if client_name != "requests":
        assert last.request is caught.value.request


def test_connections_are_reused_across_retries(client_name: str) -> None:
    """Three requests with a retry each use one connection."""
    acts = [Respond(503, b"x" * 9_000), LONG] * 3
    with scripted_server(*acts) as server, open_client(client_name) as client:
        for _ in range(3):
            assert client.post(server.url).content == LONG.body
    assert server.connections == 1
