"""The client against the middleware of oncekey, on a real server behind a proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.client.clients import open_client
from tests.http.app_server import ALICE, ServedApp, serve_app
from tests.support.servers import Proxy, Uvicorn
from tests.support.servers.processes import wait_until

from oncekey.client import Journal, RetriesExhausted, Retry

HEADERS = dict([ALICE, ("Content-Type", "application/json")])


@pytest.fixture(scope="module")
def uvicorn() -> Iterator[ServedApp]:
    with serve_app(Uvicorn) as made:
        yield made


@pytest.fixture
def app(uvicorn: ServedApp) -> ServedApp:
    uvicorn.reset()
    return uvicorn


@pytest.fixture
def proxy(app: ServedApp) -> Iterator[Proxy]:
    with Proxy(app.server.port) as proxy:
        yield proxy


def test_a_lost_response_is_replayed_and_the_handler_runs_once(
    app: ServedApp, proxy: Proxy, client_name: str
) -> None:
    proxy.drop_replies(after=b"POST")
    with open_client(client_name) as client:
        got = client.post(
            f"http://127.0.0.1:{proxy.port}/charges", body=b'{"cents": 5}', headers=HEADERS
        )
    assert got.status == 201
    assert got.delivery is not None
    assert (got.delivery.attempts, got.delivery.replayed) == (2, True)
    assert got.response.json() == {"number": 1, "received": {"cents": 5}}
    assert app.effects() == 1


def test_two_requests_run_the_handler_twice_and_are_no_replays(
    app: ServedApp, client_name: str
) -> None:
    with open_client(client_name) as client:
        for _ in range(2):
            got = client.post(f"{app.server.url}/charges", body=b'{"cents": 5}', headers=HEADERS)
            assert got.delivery is not None
            assert not got.delivery.replayed
    assert app.effects() == 2


def test_a_request_in_flight_is_waited_for_until_it_ends(app: ServedApp, client_name: str) -> None:
    """A try times out while the handler runs. A later one gets a 409 with Retry-After. The handler
    ends while the client waits. On a busy machine more tries than these may time out."""
    events: list[Any] = []
    key = f"gated-{client_name}"
    asked: list[int] = []

    def while_waiting(us: int) -> None:
        if 409 in statuses():
            asked.append(us)
            app.open_gate("gated")
            wait_until(lambda: app.post("/gated", key, b"{}").status == 200, "it has ended")

    def statuses() -> list[int]:
        return [progress.status for progress in events if progress.kind == "answered"]

    retry = Retry(attempts=50, deadline="1d")
    with open_client(client_name, on_progress=events.append, retry=retry) as client:
        client.clock.on_sleep = while_waiting
        headers = {**HEADERS, "Idempotency-Key": key}
        got = client.post(f"{app.server.url}/gated", timeout=1, headers=headers)
    assert (got.status, got.content) == (200, b'{"done":true}')
    assert got.delivery is not None
    assert got.delivery.attempts >= 3
    assert got.delivery.replayed
    assert app.effects() == 1
    assert statuses() == [409, 200]
    assert asked[0] >= 1_000_000, "as the server asked"


def test_a_key_of_another_request_is_not_retried(app: ServedApp, client_name: str) -> None:
    headers = {**HEADERS, "Idempotency-Key": "order-17-" + client_name}
    with open_client(client_name) as client:
        client.post(f"{app.server.url}/charges", body=b'{"cents": 5}', headers=headers)
        got = client.post(f"{app.server.url}/charges", body=b'{"cents": 6}', headers=headers)
    assert (got.status, client.clock.slept) == (422, [])


def test_a_journal_finds_a_lost_response_after_a_restart(
    app: ServedApp, proxy: Proxy, client_name: str, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{proxy.port}/charges"
    body = b'{"cents": 7}'
    with (
        Journal(tmp_path / "keys") as journal,
        open_client(client_name, journal=journal, retry=Retry(attempts=1)) as client,
    ):
        proxy.drop_replies(after=b"POST")
        with pytest.raises(RetriesExhausted) as caught:
            client.post(url, body=body, headers=HEADERS)
    assert not caught.value.safe_new_key
    with (
        Journal(tmp_path / "keys") as journal,
        open_client(client_name, journal=journal) as client,
    ):
        got = client.post(url, body=body, headers=HEADERS)
        assert journal.open_entries() == 0
    assert got.delivery is not None
    assert got.delivery.replayed
    assert app.effects() == 1
