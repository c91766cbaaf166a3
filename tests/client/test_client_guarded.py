"""Both ends of oncekey: its client against its middleware, on a real server behind a real wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.client.callers import calling
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
def wire(app: ServedApp) -> Iterator[Proxy]:
    with Proxy(app.server.port) as proxy:
        yield proxy


def test_a_lost_answer_is_replayed_and_the_effect_is_one(
    app: ServedApp, wire: Proxy, name: str
) -> None:
    wire.drop_replies(after=b"POST")
    with calling(name) as caller:
        got = caller.post(
            f"http://127.0.0.1:{wire.port}/charges", body=b'{"cents": 5}', headers=HEADERS
        )
    assert got.status == 201
    assert got.delivery is not None
    assert (got.delivery.attempts, got.delivery.replayed) == (2, True)
    assert got.response.json() == {"number": 1, "asked": {"cents": 5}}
    assert app.effects() == 1


def test_a_first_answer_is_no_replay_and_two_requests_are_two_effects(
    app: ServedApp, name: str
) -> None:
    with calling(name) as caller:
        for _ in range(2):
            got = caller.post(f"{app.server.url}/charges", body=b'{"cents": 5}', headers=HEADERS)
            assert got.delivery is not None
            assert not got.delivery.replayed
    assert app.effects() == 2


def test_a_request_in_flight_is_waited_out(app: ServedApp, name: str) -> None:
    """The first try is given up by its timeout while the handler runs; the second one is told to
    wait; while it does, the handler ends."""
    told: list[Any] = []
    key = f"gated-{name}"
    steps = iter(["it is running", "it may end"])

    def while_waiting(us: int) -> None:
        if next(steps) == "it is running":
            app.wait_at_gate("gated")
        else:
            app.open_gate("gated")
            wait_until(lambda: app.post("/gated", key, b"{}").status == 200, "it has ended")

    with calling(name, on_progress=told.append, chances=[0.5, 0.5]) as caller:
        caller.time.on_sleep = while_waiting
        headers = {**HEADERS, "Idempotency-Key": key}
        got = caller.post(f"{app.server.url}/gated", timeout=1, headers=headers)
    assert (got.status, got.content) == (200, b'{"done":true}')
    assert got.delivery is not None
    assert (got.delivery.attempts, got.delivery.replayed) == (3, True)
    assert app.effects() == 1
    assert [progress.status for progress in told if progress.kind == "answered"] == [409, 200]
    assert caller.time.slept[1] >= 1_000_000, "as the server asked"


def test_a_key_for_another_request_is_refused_for_good(app: ServedApp, name: str) -> None:
    headers = {**HEADERS, "Idempotency-Key": "order-17-" + name}
    with calling(name) as caller:
        caller.post(f"{app.server.url}/charges", body=b'{"cents": 5}', headers=headers)
        got = caller.post(f"{app.server.url}/charges", body=b'{"cents": 6}', headers=headers)
    assert (got.status, caller.time.slept) == (422, [])


def test_a_journal_carries_a_lost_answer_over(
    app: ServedApp, wire: Proxy, name: str, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{wire.port}/charges"
    body = b'{"cents": 7}'
    with (
        Journal(tmp_path / "keys") as journal,
        calling(name, journal=journal, retry=Retry(attempts=1)) as caller,
    ):
        wire.drop_replies(after=b"POST")
        with pytest.raises(RetriesExhausted) as caught:
            caller.post(url, body=body, headers=HEADERS)
    assert not caught.value.safe_new_key
    with (
        Journal(tmp_path / "keys") as journal,
        calling(name, journal=journal) as caller,
    ):
        got = caller.post(url, body=body, headers=HEADERS)
        assert journal.open_entries() == 0
    assert got.delivery is not None
    assert got.delivery.replayed
    assert app.effects() == 1
